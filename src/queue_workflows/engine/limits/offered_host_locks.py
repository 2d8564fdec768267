"""Which jobs that are left to other hosts this worker may take, because their lock is free on its own.

    look: what waits so ──free here──> offered ──the next claim──> taken from its hold, not through the queue
                          freed here ─────┘ └─nothing to take─> kept for the next claim of a worker at no job

Through the queue the host where the lock is held could claim it as well, and would put it aside again. A
suspect is taken by a worker at no job only, so one claim beside other jobs does not use an offer up.
"""

from __future__ import annotations

from collections.abc import Iterable

from queue_workflows.repositories.sql.checks import ELSEWHERE


class LockOffers:
    """The offers to one worker, which claims them; any of its threads may offer."""

    def __init__(self) -> None:
        self._waiting: frozenset[str] = frozenset()
        # What the next claim tries first; most workers never see any.
        self.offered: set[str] = set()
        self._for_a_suspect: set[str] = set()

    def waited_for(self, keys: Iterable[str]) -> None:
        """What jobs of this queue wait for that are left to other hosts."""
        self._waiting = frozenset(keys)

    def offer(self, keys: Iterable[str]) -> None:
        """What of that is free on this host."""
        self.offered.update(keys)

    def freed(self, names: Iterable[str]) -> None:
        """Locks that a job has let go of, for which somebody may wait."""
        if self._waiting:
            self.offer(self._waiting.intersection(ELSEWHERE + name for name in names))

    def pop(self, *, alone: bool) -> list[str]:
        """What to try; not again before it is offered anew, but once more when nothing else runs."""
        keys, self.offered = self.offered, set()
        if alone:
            keys |= self._for_a_suspect
            self._for_a_suspect = set()
        else:
            self._for_a_suspect |= keys
        return sorted(keys)

    def has(self, *, alone: bool) -> bool:
        """Whether such a claim has something to try first."""
        return bool(self.offered or (alone and self._for_a_suspect))
