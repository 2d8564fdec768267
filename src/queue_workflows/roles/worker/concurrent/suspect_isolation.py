"""When a worker turns to a suspect though there is other work; pure, told the time.

A suspect (a job that ran while its worker died) is claimed by a worker that holds nothing else, after what is
not suspect. Under good work that never ends this would be never. So each worker turns to the suspects now and
then. One that runs one job at a time does so by chance, the likelier the longer its last job took: that needs
no memory, which a worker that dies of its job would lose. A worker of
many, which with enough to do always holds some, looks whether there is a suspect, and lets them end:

    together ──a suspect waits──> emptying ──nothing is held──> alone with a suspect ──> together
       ^                             │
       └──── its patience is over ───┘

Suspects of hooks keep their place, so a worker of hooks looks at the head of its queue, once per poll.

While it lets its jobs end, threads stand idle behind its longest job. So it is patient for a second, then
works on for four times as long as that took, and is twice as patient the next time: a suspect waits for about
ten times the longest job, and costs a fifth of the worker at most.
"""

from __future__ import annotations

from random import Random
from typing import Final

# How many polls lie between the looks where suspects come after all others.
_LOOKS_EVERY: Final = 10
# About once in so long a worker of one job takes a suspect first, and at every fourth job at the most.
TURN_EVERY_S: Final = 5.0
_LARGEST_SHARE: Final = 0.25
# What the start of a worker counts for, which may be all that any worker's life comes to.
_OF_A_START_S: Final = 0.1
_FIRST_PATIENCE_S: Final = 1.0
_LONGEST_PATIENCE_S: Final = 3600.0
_WORKED_BETWEEN: Final = 4


class SuspectIsolation:
    """Whether to let all jobs end, or to look whether there is a reason to."""

    def __init__(self, poll_s: float, *, is_last: bool = False, rng: Random | None = None) -> None:
        """`is_last` says that suspects come after all others: then to look for them is no hurry.

        Nor is it at first, when this worker may have been started because of one.
        """
        self._look_every_s = poll_s * (_LOOKS_EVERY if is_last else 1)
        self._look_at: float | None = None if is_last else 0.0
        self._rng = rng or Random()  # noqa: S311
        self._since: float | None = None
        self._patience_s = _FIRST_PATIENCE_S

    @property
    def is_wanted(self) -> bool:
        """Whether nothing is to be claimed until nothing is held."""
        return self._since is not None

    def must_look(self, now: float) -> bool:
        """Whether to look for a suspect."""
        if self._look_at is None:
            self._look_at = now + self._look_every_s * self._rng.random()
        return self._since is None and now >= self._look_at

    def seen(self, is_suspect: bool, now: float) -> None:
        """Note whether a look found a suspect."""
        self._look_at = now + self._look_every_s
        if is_suspect:
            self._since = now
        else:
            self._patience_s = _FIRST_PATIENCE_S

    def lost_patience(self, now: float) -> bool:
        """Whether it takes too long to be alone; then that is not wanted for a while."""
        if self._since is None or now - self._since < self._patience_s:
            return False
        self._look_at = now + _WORKED_BETWEEN * self._patience_s
        self._patience_s = min(self._patience_s * 2, _LONGEST_PATIENCE_S)
        self._since = None
        return True

    def had(self) -> None:
        """Note that the worker was alone, and asked for the head of the queue."""
        self._since, self._patience_s = None, _FIRST_PATIENCE_S


class SuspectsTurn:
    """Whether the next claim of a worker with one job at a time is of a suspect first."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self._since: float | None = None
        self._is_next = False

    def comes(self, now: float) -> bool:
        """Decide, before each claim, whether it is of a suspect first."""
        worked_s = _OF_A_START_S if self._since is None else now - self._since
        self._since = now
        self._is_next = self._rng.random() < min(_LARGEST_SHARE, worked_s / TURN_EVERY_S)
        return self._is_next

    def take(self) -> bool:
        """Whether this claim is of a suspect first; true once."""
        is_next, self._is_next = self._is_next, False
        return is_next
