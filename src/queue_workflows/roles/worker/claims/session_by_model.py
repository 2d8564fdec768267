"""The claims of a worker that keeps models loaded, as `repositories/claims/claim_by_model` makes them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import psycopg

from queue_workflows.engine.telemetry import count_ended
from queue_workflows.gpu.affinity import Affinity
from queue_workflows.repositories.claims.claim_by_model import AffinityRepository
from queue_workflows.repositories.claims.end import Ended, Ending
from queue_workflows.repositories.claims.unread_claims import UNREADABLE
from queue_workflows.repositories.sql.claimed_job import ClaimedJob
from queue_workflows.repositories.sql.low_water_marks import PAST_ALL, Marks
from queue_workflows.repositories.sql.pipeline_commits import in_one_round_trip
from queue_workflows.roles.worker.claims.session import ClaimSession
from queue_workflows.roles.worker.claims.terms import ClaimTerms


def intake_on(terms: ClaimTerms, connection: psycopg.Connection[Any]) -> ClaimSession:
    """The claim session that a worker on these terms has."""
    if terms.affinity is None:
        return ClaimSession(terms, connection)
    return ModelClaimSession(terms, terms.affinity, connection)


class ModelClaimSession(ClaimSession):
    """Ends and claims are two statements in one round trip, so that there is one claim and not four."""

    def __init__(self, terms: ClaimTerms, affinity: Affinity, connection: psycopg.Connection[Any]) -> None:
        super().__init__(terms, connection)
        self._preferred = affinity
        self._warm = AffinityRepository(connection)

    def claim(
        self,
        marks: Marks,
        now: float,
        *,
        limit: int = 1,
        alone: bool = False,
        suspects_first: bool = False,
    ) -> list[ClaimedJob]:
        """One job whatever the limit, as models are kept for one at a time.

        A suspect comes after all others: where none is left, also taken by another claim.
        """
        del limit, alone
        jobs = self._suspect(marks) if suspects_first else []
        if not jobs:
            jobs = self._warm_or_next(marks, now)
        return jobs or (self._suspect(marks) if marks.empty else [])

    def _warm_or_next(self, marks: Marks, now: float) -> list[ClaimedJob]:
        """What is preferred; in plain order where a row cannot be read, as that claim can be read apart."""
        try:
            return self._ask(marks, now)()
        except UNREADABLE:
            return super().claim(marks, now, alone=True)

    def _suspect(self, marks: Marks) -> list[ClaimedJob]:
        """The suspect to claim past all other jobs, whatever its model."""
        if jobs := self._claimed_from(PAST_ALL, 1, alone=True):
            marks.claimed(jobs, 1)
        return self.begun(jobs)

    def end(self, endings: Sequence[Ending], *, is_counted: bool = False, keeps_locks: bool = False) -> Ended:
        """End a batch of jobs; one that is put on hold does not count as done."""
        self._note(endings)
        return super().end(endings, is_counted=is_counted, keeps_locks=keeps_locks)

    def end_and_claim(
        self, endings: Sequence[Ending], marks: Marks, now: float, *, limit: int = 1, alone: bool = False
    ) -> tuple[Ended, list[ClaimedJob]]:
        """The claim sees what the end left, which is committed before it."""
        self._note(endings)
        if self._holds_slots() or self._locks.held:
            return self.end(endings), self.claim(marks, now, limit=limit, alone=alone)
        with in_one_round_trip(self._connection) as commit:
            end_answer = self.repository.ask_end(endings)
            commit()
            claim_answer = self._ask(marks, now)
        ended = end_answer()
        count_ended(self._terms.queue, endings, ended.statuses)
        return ended, claim_answer()

    def _note(self, endings: Sequence[Ending]) -> None:
        if any(ending.hold_reason is not None for ending in endings):
            self._preferred.put_aside()

    def _ask(self, marks: Marks, now: float) -> Callable[[], list[ClaimedJob]]:
        # There are no marks in this order: each claim looks at everything.
        marks.unsure()
        marks.positions(now)
        terms, affinity = self._terms, self._preferred
        preference = affinity.preference(now)
        answer = self._warm.ask(
            terms.queue, preference, worker_id=terms.worker_id, lease_s=terms.lease_s, but=terms.lacked
        )

        def claimed() -> list[ClaimedJob]:
            job, has_passed = answer()
            marks.claimed([] if job is None else [job], 1)
            if job is None:
                self._learn_from_none(marks, leaves=preference.yield_s > 0)
                return []
            affinity.claimed(job.priority, now, has_passed=has_passed)
            if not (jobs := self.begun([job])):
                affinity.put_aside()
            return jobs

        return claimed

    def _learn_from_none(self, marks: Marks, *, leaves: bool) -> None:
        if leaves and not self._preferred.is_passing:
            return
        if not self._warm.is_anything_queued(self._terms.queue, but=self._terms.lacked):
            self._preferred.nothing_waits()
        elif not leaves:
            # Others are claiming what it looked at, and it leaves nothing to anybody: there may be more.
            marks.unsure()
