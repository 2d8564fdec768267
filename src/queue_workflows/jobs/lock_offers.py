"""Which jobs that are left to other hosts this worker may take, because their lock is free on its own.

    look: what waits so ──free here──> offered ──the next claim──> taken from its hold, not through the queue
                          freed here ─────┘

Through the queue the host where the lock is held could claim it as well, and would put it aside again.
"""

from __future__ import annotations

from collections.abc import Iterable

from queue_workflows.repositories.fields import ELSEWHERE


class LockOffers:
    """Of one worker, which claims what is offered; any of its threads may offer."""

    def __init__(self) -> None:
        self._waiting: frozenset[str] = frozenset()
        self._offered: set[str] = set()

    def __bool__(self) -> bool:
        """Whether the next claim has something to try first; most workers never see any."""
        return bool(self._offered)

    def waited_for(self, keys: Iterable[str]) -> None:
        """What jobs of this queue wait for that are left to other hosts."""
        self._waiting = frozenset(keys)

    def offer(self, keys: Iterable[str]) -> None:
        """What of that is free on this host."""
        self._offered.update(keys)

    def freed(self, names: Iterable[str]) -> None:
        """Locks that a job has let go of, for which somebody may wait."""
        if self._waiting:
            self.offer(self._waiting.intersection(ELSEWHERE + name for name in names))

    def pop(self) -> list[str]:
        """What to try; it is not tried again before it is offered anew."""
        keys, self._offered = sorted(self._offered), set()
        return keys
