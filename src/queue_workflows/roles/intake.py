"""The one seam between a worker and the jobs of its queue: what it takes in, keeps, and lets go of.

    Terms    what holds for as long as the worker lives
    Intake   the same on one connection: claim, end, both at once, renew; all of it in batches

Worker and guardian have a connection each, and so an intake each. What belongs to a claim or to its end
beside the row itself is done here and nowhere else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Self

import psycopg

from queue_workflows.jobs.guards import HeldJob
from queue_workflows.repositories.claimable import ClaimableRepository
from queue_workflows.repositories.claimed import ClaimedJob
from queue_workflows.repositories.claiming import Marks
from queue_workflows.repositories.ending import Ended, Ending
from queue_workflows.repositories.fields import PayloadLimits
from queue_workflows.roles.identity import Identity
from queue_workflows.settings import Settings


@dataclass(frozen=True, slots=True)
class Terms:
    """Who claims what, and for how long at a time."""

    repository: type[ClaimableRepository[Any, Any]]
    queue: str
    worker_id: str
    lease_s: float
    limits: PayloadLimits

    @classmethod
    def of(
        cls, identity: Identity, settings: Settings, repository: type[ClaimableRepository[Any, Any]]
    ) -> Self:
        """Those of one worker."""
        return cls(
            repository,
            identity.queue,
            identity.worker_id,
            settings.lease_for(identity.queue),
            PayloadLimits(settings.payload_max_bytes, settings.payload_max_depth),
        )


class Intake:
    """Claims and ends on one connection, by one thread; lives as long as the connection."""

    def __init__(self, terms: Terms, connection: psycopg.Connection[Any]) -> None:
        self._terms = terms
        self.repository = terms.repository(connection, payload_limits=terms.limits)

    def claim(self, marks: Marks, now: float, *, limit: int = 1, alone: bool = False) -> list[ClaimedJob]:
        """The next jobs, at most `limit`; `marks` learn from the answer."""
        terms = self._terms
        jobs = self.repository.claim(
            terms.queue,
            worker_id=terms.worker_id,
            lease_s=terms.lease_s,
            limit=limit,
            positions=marks.positions(now),
            alone=alone,
            durable=False,
        )
        marks.claimed(jobs, limit)
        return jobs

    def end(self, endings: Sequence[Ending]) -> Ended:
        """End a batch; those whose lease is lost are named and change nothing."""
        return self.repository.end_many(endings)

    def end_and_claim(
        self, endings: Sequence[Ending], marks: Marks, now: float, *, limit: int = 1, alone: bool = False
    ) -> tuple[Ended, list[ClaimedJob]]:
        """Both, in one statement and one commit."""
        terms = self._terms
        ended, jobs = self.repository.end_and_claim(
            endings,
            terms.queue,
            worker_id=terms.worker_id,
            lease_s=terms.lease_s,
            limit=limit,
            positions=marks.positions(now),
            alone=alone,
        )
        marks.claimed(jobs, limit)
        return ended, jobs

    def renew(self, held: Sequence[HeldJob]) -> dict[int, datetime | None]:
        """Extend leases: the jobs that are still held, and since when somebody wants each cancelled."""
        return self.repository.renew([one.job.fence for one in held], lease_s=self._terms.lease_s)
