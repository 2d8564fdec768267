"""How soon an idle loop looks again for what nobody may announce to it.

Past a proxy that keeps no sessions no writer can wake a loop. What comes soon after something else is then
found by looks: each after a thirtieth of the time since, for some seconds no more than 30 ms apart, and later
at the poll. The workers of a queue that hear no wake share these looks: beside their polls, many of them ask
the server no more often than a few do.
"""

from __future__ import annotations

from typing import Final

# While a transaction from before the wait may still commit without a wake: doubled with each look.
FIRST_LOOK_S: Final = 0.005
# Past a proxy: the least pause, and the longest while something has come within the last `_SPELL_S`.
_LEAST_S: Final = 0.01
_MOST_S: Final = 0.03
_SPELL_S: Final = 5.0
_SHARE: Final = 1 / 30
# What each worker beyond a few adds to the pause of all: beside their polls they look 200 times a second
# at most.
_EACH_S: Final = 0.005


class LookPace:
    """One loop's pauses, from the last time that it found something or was woken."""

    def __init__(self, now: float) -> None:
        self.found(now)

    def found(self, now: float) -> None:
        """There was something, so there may soon be more."""
        self._since = now
        self._pause = FIRST_LOOK_S

    def idles(self) -> None:
        """A wait begins, which is no news: only what was written before may still commit without a wake."""
        self._pause = FIRST_LOOK_S

    def pause(self, now: float, *, hears: bool, others: int = 0) -> float:
        """How long until the next look; `hears` where LISTEN works, `others` is how many more look here."""
        if hears:
            pause, self._pause = self._pause, self._pause * 2
            return pause
        idle_s = max(0.0, now - self._since)
        pause = idle_s * _SHARE
        if idle_s < _SPELL_S:
            pause = min(pause, _MOST_S)
        return max(pause, _LEAST_S, _EACH_S * (1 + others))
