"""What waits for a lock of this machine that nobody has by now: a worker looks, and queues it again."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

from queue_workflows.engine.limits.held_host_locks import LOOK_EVERY_S
from queue_workflows.repositories.claims.by_host_lock import HOST_LOCK, HostLockRepository
from queue_workflows.repositories.sql.checks import ELSEWHERE
from queue_workflows.roles.worker.claims.terms import ClaimTerms
from queue_workflows.roles.worker.common.connection import WorkerConnection
from queue_workflows.roles.worker.guardian.held_jobs import HeldJobs

# How soon to look again for jobs that another host leaves to those where their lock is free.
ELSEWHERE_EVERY_S: Final = 2.0


class HostLockChecks:
    """One worker's looks at host locks, in its main thread, between two jobs."""

    def __init__(
        self,
        terms: ClaimTerms,
        holdings: HeldJobs,
        worker_connection: WorkerConnection,
        *,
        holds_nothing: Callable[[str], bool] = lambda _reason: False,
    ) -> None:
        """`holds_nothing` says whether it is known of late that nothing is on hold for a reason."""
        self._holds_nothing = holds_nothing
        self._queue = terms.queue
        self._host = terms.host
        self._locks = terms.locks
        self._offers = terms.offers
        self._takes = terms.takes_offers
        self._holdings = holdings
        self._worker_connection = worker_connection
        self._missed_at = self._elsewhere_at = -math.inf

    def is_due(self, now: float) -> bool:
        """Whether it is time to `look`."""
        return now >= self._elsewhere_at or (self._locks.missed and now >= self._missed_at)

    def look(self, now: float) -> bool:
        """Look at locks that jobs missed here, and those that jobs on hold need, whichever host missed them.

        Whether the next claim has some of the latter, which are the first in line for each lock.
        """
        keys: list[str] = []
        if self._locks.missed and now >= self._missed_at:
            self._missed_at = now + LOOK_EVERY_S
            keys = self._locks.freed()
        if now >= self._elsewhere_at:
            is_first, self._elsewhere_at = math.isinf(self._elsewhere_at), now + ELSEWHERE_EVERY_S
            held = None if is_first else self._without_asking(now)
            if held is None:
                with self._holdings.bounded():
                    held = self._worker_connection.repository().held_keys(HOST_LOCK, queue=self._queue)
            if is_first:
                # A worker of this host that missed them may have ended since, and would have looked for them.
                self._locks.miss(held)
            free = [key for key in held if self._locks.is_free(key)]
            if self._takes:
                self._offers.waited_for(held)
                self._offers.offer(free)
            else:
                keys += free
        if self._takes:
            self._offers.offer(key for key in keys if key.startswith(ELSEWHERE))
            keys = [key for key in keys if not key.startswith(ELSEWHERE)]
        if keys:
            with self._holdings.bounded():
                HostLockRepository(self._worker_connection.connected()).promote(keys, host=self._host)
        return bool(self._offers.offered)

    def _without_asking(self, now: float) -> list[str] | None:
        """That nothing is on hold, where that is known of late; it is looked at again so much the sooner."""
        if not self._holds_nothing(HOST_LOCK):
            return None
        self._elsewhere_at = now + ELSEWHERE_EVERY_S / 2
        return []
