"""What waits for a lock of this machine that nobody has by now: a worker looks, and queues it again."""

from __future__ import annotations

import math
from typing import Final

from queue_workflows.jobs.kept_locks import LOOK_EVERY_S, KeptLocks
from queue_workflows.jobs.lock_offers import LockOffers
from queue_workflows.repositories.fields import ELSEWHERE
from queue_workflows.repositories.hook_jobs import QUEUE as HOOKS_QUEUE
from queue_workflows.repositories.host_locks import HOST_LOCK, HostLockRepository
from queue_workflows.roles.holdings import Holdings
from queue_workflows.roles.touch import Touch

# How soon to look again for jobs that another host leaves to those where their lock is free.
ELSEWHERE_EVERY_S: Final = 2.0


class LockLook:
    """Of one worker, in its main thread, between two jobs."""

    def __init__(
        self, queue: str, locks: KeptLocks, offers: LockOffers, holdings: Holdings, touch: Touch
    ) -> None:
        self._queue = queue
        self._locks = locks
        self._offers = offers
        self._holdings = holdings
        self._touch = touch
        self._missed_at = self._elsewhere_at = -math.inf

    def is_due(self, now: float) -> bool:
        """Whether it is time to `look`."""
        return now >= self._elsewhere_at or (self._locks.missed and now >= self._missed_at)

    def look(self, now: float) -> bool:
        """At the locks that jobs missed here, and those of jobs that another host leaves to this one.

        Whether the next claim has some of the latter.
        """
        keys: list[str] = []
        if self._locks.missed and now >= self._missed_at:
            self._missed_at = now + LOOK_EVERY_S
            keys = self._locks.freed()
        if now >= self._elsewhere_at:
            self._elsewhere_at = now + ELSEWHERE_EVERY_S
            with self._holdings.bounded():
                held = self._touch.repository().held_keys(HOST_LOCK, queue=self._queue)
            left = [key for key in held if key.startswith(ELSEWHERE)]
            # A run of hooks is one host's, so no other can come first.
            self._offers.waited_for(() if self._queue == HOOKS_QUEUE else left)
            keys += [key for key in left if self._locks.is_free(key)]
        if self._queue != HOOKS_QUEUE:
            self._offers.offer(key for key in keys if key.startswith(ELSEWHERE))
            keys = [key for key in keys if not key.startswith(ELSEWHERE)]
        if keys:
            with self._holdings.bounded():
                HostLockRepository(self._touch.connected()).promote(keys)
        return bool(self._offers)
