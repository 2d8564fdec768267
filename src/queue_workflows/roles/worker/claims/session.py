"""The one seam between a worker and the jobs of its queue: what it takes in, keeps, and lets go of.

On one connection, and on the worker's terms (`terms`): claim, end, both at once, renew; all of it in
batches. Worker and guardian have a connection each, and so a session each. What belongs to a claim or to its
end beside the row itself is done here and nowhere else.

    claim ──> a row that is unusable fails ──> its lock of this machine ──> its slot of a limit ──> may begin
    end  <── one transaction ── its slot is free        then: its lock is free, and the next job is let in

Locks are seen to by `host_locks`, slots by `slots`; both are asked only for jobs that need one.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Collection, Sequence
from datetime import datetime
from typing import Any, NamedTuple, TypedDict

import psycopg

from queue_workflows.engine.execution.guards import HeldJob
from queue_workflows.engine.telemetry import count_claimed, count_ended, count_held
from queue_workflows.repositories.claims.end import Ended, Ending, error_entry
from queue_workflows.repositories.claims.sweep import RECLAIMED_AT_ONCE
from queue_workflows.repositories.claims.unusable_rows import Faults, failures_of, faults_of
from queue_workflows.repositories.jobs.hooks import NOTHING_LEFT, HookJobRepository
from queue_workflows.repositories.sql.claimed_job import ClaimedJob, ClaimedNodeJob, Fence
from queue_workflows.repositories.sql.low_water_marks import Marks
from queue_workflows.repositories.sql.pipeline_commits import in_one_round_trip
from queue_workflows.roles.worker.claims.host_locks import HostLockClaims
from queue_workflows.roles.worker.claims.slots import SlotClaims
from queue_workflows.roles.worker.claims.terms import ClaimTerms
from queue_workflows.states import JobStatus

_log = logging.getLogger(__name__)


class _Claiming(TypedDict):
    """How a worker claims."""

    worker_id: str
    lease_s: float
    limit: int
    positions: Sequence[int]
    but: Sequence[str]


class Asked(NamedTuple):
    """An end and a claim that are done, and not read.

    `is_full` says that as many were claimed as were asked for, of several; where that had to be read to be
    known, or jobs have keys, it is not said.
    """

    endings: Sequence[Ending]
    marks: Marks
    limit: int
    load: Callable[[], tuple[Ended, list[ClaimedJob]]]
    is_full: bool = False


class ClaimSession:
    """Claims and ends on one connection, by one thread; lives as long as the connection."""

    def __init__(self, terms: ClaimTerms, connection: psycopg.Connection[Any]) -> None:
        self._terms = terms
        self._kept = terms.kept
        self._locks = terms.locks
        self._offers = terms.offers
        self._marks: Marks | None = None
        self._connection = connection
        self.repository = terms.repository(connection, payload_limits=terms.limits)
        self._slot_claims = SlotClaims(terms, connection, self.repository)
        self._lock_claims = HostLockClaims(terms, connection, self.repository, self._slot_claims)

    def claim(
        self,
        marks: Marks,
        now: float,
        *,
        limit: int = 1,
        alone: bool = False,
        suspects_first: bool = False,
    ) -> list[ClaimedJob]:
        """The next jobs, at most `limit`, but for those with a full limit; `marks` learn from the answer."""
        jobs = self._claimed(marks, now, limit=limit, alone=alone, suspects_first=suspects_first)
        marks.claimed(jobs, limit)
        return self.begun(jobs)

    def claim_background(
        self,
        limit: int,
        *,
        suspect: bool = False,
        beside: bool = False,
        runs: Collection[uuid.UUID] | None = None,
    ) -> list[ClaimedJob]:
        """The next background hooks, at most `limit`, of these `runs` if any are named; for hooks alone."""
        terms, repository = self._terms, self.repository
        assert isinstance(repository, HookJobRepository)  # noqa: S101 - nobody else has background jobs
        jobs = repository.claim_background(
            worker_id=terms.worker_id,
            lease_s=terms.lease_s,
            limit=limit,
            suspect=suspect,
            beside=beside,
            runs=runs,
        )
        return self.begun(self._in_time(repository, jobs))

    def _in_time(self, repository: HookJobRepository, jobs: Sequence[ClaimedNodeJob]) -> list[ClaimedJob]:
        """Jobs but for the listeners of sealed runs, which are skipped, whatever they would wait for."""
        listeners = [job.id for job in jobs if job.inputs.get("at_seal") == "kill"]
        late = repository.sealed(listeners) if listeners else ()
        endings = [
            Ending(job.fence, JobStatus.SKIPPED, error=error_entry("skipped", NOTHING_LEFT))
            for job in jobs
            if job.id in late
        ]
        if endings:
            count_ended(self._terms.queue, endings, repository.end_many(endings).statuses)
        return [job for job in jobs if job.id not in late]

    def end(self, endings: Sequence[Ending], *, is_counted: bool = False, keeps_locks: bool = False) -> Ended:
        """End a batch of jobs; those with a lost lease are named and change nothing.

        A process with functions that may run on until it ends `keeps_locks`, and frees them by its end.
        """
        fences = [ending.fence for ending in endings]
        if not self._holds_slots() or not (keys := self._kept.keys_of(fences)):
            ended = self.repository.end_many(endings)
        else:
            with in_one_round_trip(self._connection) as commit:
                self._slot_claims.send_free(fences)
                answer = self.repository.ask_end(endings)
                commit()
                admitted = self._slot_claims.send_admit(keys)
            ended = answer()
            self._kept.forget(fences)
            admitted()
        if self._locks.held and not keeps_locks:
            self._lock_claims.free(fences)
        if not is_counted:
            count_ended(self._terms.queue, endings, ended.statuses)
        return ended

    def end_and_claim(
        self, endings: Sequence[Ending], marks: Marks, now: float, *, limit: int = 1, alone: bool = False
    ) -> tuple[Ended, list[ClaimedJob]]:
        """End and claim, in one statement and one commit where no job that ends has a key."""
        answer = self.ask_end_and_claim(endings, marks, now, limit=limit, alone=alone)
        ended, jobs = self.read(answer)
        return ended, self.begun(jobs)

    def ask_end_and_claim(
        self, endings: Sequence[Ending], marks: Marks, now: float, *, limit: int = 1, alone: bool = False
    ) -> Asked:
        """An end and a claim, done and not read.

        What jobs with a key made room for comes out of the lanes in between: after the commit of the end, so
        that either this sees a job that went into a lane meanwhile, or that one sees the free slot; in one
        round trip.
        """
        locks = self._locks
        if alone or self._offers.offered or (locks.held and locks.has_of(end.fence for end in endings)):
            # A lock is freed after the end is stored, and what waits for it may be the next. A suspect is
            # claimed by a statement of its own.
            ended = self.end(endings, is_counted=True)
            jobs = self._claimed(marks, now, limit=limit, alone=alone)
            return Asked(endings, marks, limit, lambda: (ended, jobs))
        self._follow(marks)
        terms, positions = self._terms, marks.positions(now)
        claiming: _Claiming = {
            "worker_id": terms.worker_id,
            "lease_s": terms.lease_s,
            "limit": limit,
            "positions": positions,
            "but": terms.lacked,
        }
        fences = [ending.fence for ending in endings] if self._holds_slots() else []
        if not fences or not (keys := self._kept.keys_of(fences)):
            answer = self.repository.ask_end_and_claim(endings, terms.queue, **claiming)
            return Asked(endings, marks, limit, answer.load, is_full=1 < limit <= answer.jobs)
        with in_one_round_trip(self._connection) as commit:
            self._slot_claims.send_free(fences)
            end_answer = self.repository.ask_end(endings)
            commit()
            admitted = self._slot_claims.send_admit(keys)
            claim_answer = self.repository.ask_claim(terms.queue, **claiming)
        ended, jobs = end_answer(), claim_answer()
        self._kept.forget(fences)
        admitted()
        return Asked(endings, marks, limit, lambda: (ended, jobs))

    def _holds_slots(self) -> bool:
        return bool(self._kept.keys or self._kept.slots)

    def _follow(self, marks: Marks) -> None:
        if marks is not self._marks:
            self._marks = marks
            self._slot_claims.follow(marks)

    def _claimed(
        self, marks: Marks, now: float, *, limit: int, alone: bool, suspects_first: bool = False
    ) -> list[ClaimedJob]:
        self._follow(marks)
        if self._offers.has(alone=alone) and (jobs := self._lock_claims.offered(limit, alone=alone)):
            # They say nothing of the queue.
            marks.unsure()
            return jobs
        if alone:
            # A suspect is next only where there is nothing else, also below the marks.
            marks.unsure()
        return self._claimed_from(marks.positions(now), limit, alone=alone, suspects_first=suspects_first)

    def _claimed_from(
        self, positions: Sequence[int], limit: int, *, alone: bool, suspects_first: bool = False
    ) -> list[ClaimedJob]:
        terms = self._terms
        return self.repository.claim(
            terms.queue,
            worker_id=terms.worker_id,
            lease_s=terms.lease_s,
            limit=limit,
            positions=positions,
            alone=alone,
            suspects_first=suspects_first,
            durable=False,
            but=terms.lacked,
        )

    def read(self, asked: Asked) -> tuple[Ended, list[ClaimedJob]]:
        """What an end and a claim brought; asks nothing. Not all of those jobs may begin: see `begun`."""
        ended, jobs = asked.load()
        asked.marks.claimed(jobs, asked.limit)
        count_ended(self._terms.queue, asked.endings, ended.statuses)
        return ended, jobs

    def renew(self, held: Sequence[HeldJob]) -> dict[int, datetime | None]:
        """Extend leases: the jobs that are still held, and since when somebody wants each cancelled."""
        fences = [one.job.fence for one in held]
        lease_s = self._terms.lease_s
        lost = self._slot_claims.renew(held)
        alive = self.repository.renew(fences, lease_s=lease_s)
        if lost:
            self._slot_claims.take_again(lost, [one for one in held if one.job.id in alive])
        return alive

    def abandon(self, fences: Sequence[Fence]) -> None:
        """Give back what attempts hold that are another's by now, or over: there is no end to write."""
        self._lock_claims.free(fences)
        self._slot_claims.free(fences)

    def give_back_unread(self, held: Sequence[HeldJob], *, max_crashes: int) -> None:
        """Give back what this worker was given and never heard of, uncounted, and the slots of it."""
        worker_id, kept = self._terms.worker_id, [one.job.id for one in held]
        taken = RECLAIMED_AT_ONCE
        while taken == RECLAIMED_AT_ONCE:
            taken = len(
                self.repository.reclaim_worker(worker_id, max_crashes=max_crashes, crashed=False, kept=kept)
            )
        self._slot_claims.free_left_by(worker_id)

    def must_ask(self, claimed: list[ClaimedJob], faults: Faults) -> bool:
        """Whether `begun` has a question: not while the connection is at one."""
        return bool(faults or self._kept.late or _needy(claimed) or self._lacking(claimed))

    def begun(self, claimed: list[ClaimedJob], faults: Faults | None = None) -> list[ClaimedJob]:
        """The jobs of a claim that may run; asks only if some have a key, or a slot is to be given back.

        A row that nobody can handle ends here, before anything is made of it; `faults` are those of these
        jobs, where they were looked for.
        """
        if self._kept.late:
            self._slot_claims.free_late()
        if faults := faults_of(claimed) if faults is None else faults:
            claimed = self._without(claimed, faults)
        if lacking := self._lacking(claimed):
            claimed = self._with_options(claimed, lacking)
        jobs = self._with_what_they_need(claimed) if _needy(claimed) else claimed
        count_claimed(jobs)
        if len(jobs) < len(claimed):
            count_held(claimed, len(claimed) - len(jobs))
        return jobs

    def _lacking(self, claimed: list[ClaimedJob]) -> list[ClaimedJob]:
        """The jobs that may not have what their tasks say of all of theirs."""
        if not self._terms.tasks:
            return []
        # For workers that have such tasks alone.
        from queue_workflows.engine.registry.lacking_options import lacking

        return lacking(claimed, self._terms.tasks)

    def _with_options(self, claimed: list[ClaimedJob], lacking: list[ClaimedJob]) -> list[ClaimedJob]:
        """The jobs with the keys and locks that their tasks say, where their producers did not know these."""
        from queue_workflows.engine.registry.lacking_options import options_of
        from queue_workflows.repositories.claims.declared_options import fill_options

        options, faults = options_of(lacking, self._terms.tasks)
        if faults:
            claimed = self._without(claimed, faults)
        if not options:
            return claimed
        held = fill_options(self._connection, options)
        by_id = {one.fence.job_id: one for one in options}
        for job in claimed:
            if (one := by_id.get(job.id)) is not None:
                job.limit_key, job.host_lock = one.limit_key, one.host_lock
        return [job for job in claimed if job.id in held or job.id not in by_id]

    def _without(self, jobs: list[ClaimedJob], faults: Faults) -> list[ClaimedJob]:
        """Jobs but for those with a fault, which end as failed."""
        _log.error("%d jobs are ended as failed: %s", len(faults), next(iter(faults.values())).message)
        endings = failures_of(jobs, faults)
        count_ended(self._terms.queue, endings, self.repository.end_many(endings).statuses)
        return [job for job in jobs if job.id not in faults]

    def _with_what_they_need(self, claimed: list[ClaimedJob]) -> list[ClaimedJob]:
        """The jobs that have their lock and their slot; the others are on hold by now."""
        try:
            jobs, refused = self._slot_claims.taken(self._lock_claims.taken(claimed))
            if refused:
                self._lock_claims.free(refused)
        except BaseException:
            self._lock_claims.drop(claimed)
            raise
        return jobs


def _needy(jobs: Sequence[ClaimedJob]) -> list[ClaimedJob]:
    """The jobs that need a lock or a slot; made whole, as that takes half the time of `any`."""
    return [job for job in jobs if job.limit_key is not None or job.host_lock is not None]
