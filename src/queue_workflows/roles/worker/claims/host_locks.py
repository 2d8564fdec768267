"""Host locks in the claims of a worker: what a claim needs of this machine, and what an end frees on it.

A job with a lock that is held goes back to its hold, uncounted, with all that waits behind it for that lock.
What another host leaves to this one is taken from its hold, past the queue. The locks themselves are in
`engine/limits/held_host_locks`, which has the diagram.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from random import uniform
from typing import Any

import psycopg

from queue_workflows.engine.limits.held_host_locks import BEHIND_S, HELD_S
from queue_workflows.repositories.claims.by_host_lock import HOST_LOCK, HostLockRepository, keys_of
from queue_workflows.repositories.claims.end import Ending
from queue_workflows.repositories.claims.repository import ClaimableRepository
from queue_workflows.repositories.claims.unread_claims import UNREADABLE
from queue_workflows.repositories.sql.claimed_job import ClaimedJob, Fence
from queue_workflows.roles.worker.claims.slots import SlotClaims
from queue_workflows.roles.worker.claims.terms import ClaimTerms
from queue_workflows.states import JobStatus


class HostLockClaims:
    """The host locks of one claim session, on its connection."""

    def __init__(
        self,
        terms: ClaimTerms,
        connection: psycopg.Connection[Any],
        repository: ClaimableRepository[Any, Any],
        slots: SlotClaims,
    ) -> None:
        self._terms = terms
        self._held = terms.locks
        self._offers = terms.offers
        self._connection = connection
        self._repository = repository
        self._slots = slots

    def taken(self, jobs: list[ClaimedJob]) -> list[ClaimedJob]:
        """The jobs that have the lock of this machine that they need, or need none."""
        if not (refused := self._held.take(jobs)):
            return jobs
        first = {job.host_lock: job for job in reversed(refused)}
        self._repository.end_many(
            [
                Ending(
                    job.fence,
                    JobStatus.SCHEDULED,
                    delay_s=uniform(1, 1.5)  # noqa: S311
                    * (HELD_S if job is first[job.host_lock] else BEHIND_S),
                    hold_reason=HOST_LOCK,
                    hold_key=job.host_lock,
                )
                for job in refused
            ]
        )
        limit_keys = [job.limit_key for job in refused]
        # They would be claimed and put aside one after the other, before what stands behind them.
        limit_keys += HostLockRepository(self._connection).put_aside(
            self._repository.family,
            self._terms.queue,
            filter(None, first),
            host=self._terms.host,
            delay_s=BEHIND_S,
        )
        self._slots.admit(limit_keys)
        gone = {job.id for job in refused}
        return [job for job in jobs if job.id not in gone]

    def offered(self, limit: int, *, alone: bool) -> list[ClaimedJob]:
        """Jobs that another host leaves to this one, from their hold; what cannot be read stays there."""
        terms = self._terms
        try:
            return HostLockRepository(self._connection).take(
                self._repository.family,
                self._offers.pop(alone=alone),
                queue=terms.queue,
                worker_id=terms.worker_id,
                lease_s=terms.lease_s,
                limit=limit,
                alone=alone,
            )
        except UNREADABLE:
            return []

    def free(self, fences: Sequence[Fence]) -> None:
        """Free the locks of attempts that are over, and promote what waits for them."""
        if names := self._held.free(fences):
            takes = self._terms.takes_offers
            HostLockRepository(self._connection).promote(
                names if takes else keys_of(names), host=self._terms.host
            )
            if takes:
                self._offers.freed(names)

    def drop(self, jobs: Iterable[ClaimedJob]) -> None:
        """Free the locks of jobs that nobody hears of, as nobody will end them; what waits is not told."""
        self._held.free([job.fence for job in jobs])
