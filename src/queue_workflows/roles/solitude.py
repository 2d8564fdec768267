"""When a crew empties its hands for a suspect; pure, told the time.

A suspect (a job whose worker died while it held several) is claimed by a worker that holds nothing else. A
crew with enough to do never does, so it looks at the head of its queue about once per poll:

    together ──a suspect is at the head──> emptying ──hands are empty──> alone with the head ──> together
       ^                                      │
       └──── its patience is over ────────────┘

While it empties its hands, threads stand idle behind its longest job. So it is patient for a second, then
works on for four times as long as that took, and is twice as patient the next time: a suspect waits for about
ten times the longest job, and costs a fifth of the worker at most.
"""

from __future__ import annotations

from typing import Final

_FIRST_PATIENCE_S: Final = 1.0
_LONGEST_PATIENCE_S: Final = 3600.0
_WORKED_BETWEEN: Final = 4


class Solitude:
    """Whether to empty the hands, or to look whether there is a reason to."""

    def __init__(self, look_every_s: float) -> None:
        self._look_every_s = look_every_s
        self._look_at = 0.0
        self._since: float | None = None
        self._patience_s = _FIRST_PATIENCE_S

    @property
    def is_wanted(self) -> bool:
        """Whether nothing is to be claimed until the hands are empty."""
        return self._since is not None

    def must_look(self, now: float) -> bool:
        """Whether to look at the head of the queue."""
        return self._since is None and now >= self._look_at

    def seen(self, is_suspect: bool, now: float) -> None:
        """What was at the head."""
        self._look_at = now + self._look_every_s
        if is_suspect:
            self._since = now
        else:
            self._patience_s = _FIRST_PATIENCE_S

    def lost_patience(self, now: float) -> bool:
        """Whether it takes too long; then it is not wanted for a while."""
        if self._since is None or now - self._since < self._patience_s:
            return False
        self._look_at = now + _WORKED_BETWEEN * self._patience_s
        self._patience_s = min(self._patience_s * 2, _LONGEST_PATIENCE_S)
        self._since = None
        return True

    def had(self) -> None:
        """It was alone, and asked for the head."""
        self._since, self._patience_s = None, _FIRST_PATIENCE_S
