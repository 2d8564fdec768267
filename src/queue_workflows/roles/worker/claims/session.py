"""The one seam between a worker and the jobs of its queue: what it takes in, keeps, and lets go of.

On one connection, and on the worker's terms (`terms`): claim, end, both at once, renew; all of it in
batches. Worker and guardian have a connection each, and so a session each. What belongs to a claim or to its
end beside the row itself is done here and nowhere else.

Jobs with a limit's key take slots when they are claimed, and a job that finds none goes into the key's lane;
the slots are given back in the transaction of the end. Then, with the claim that follows, the next ones come
out of the lanes. All that is asked only for jobs that have a key.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from datetime import datetime
from itertools import groupby
from random import uniform
from typing import Any, NamedTuple, TypedDict

import psycopg

from queue_workflows import clock as time
from queue_workflows.engine.execution.guards import HeldJob
from queue_workflows.engine.limits.held_host_locks import BEHIND_S, HELD_S
from queue_workflows.engine.outcomes import Stop
from queue_workflows.engine.telemetry import count_claimed, count_ended, count_held
from queue_workflows.repositories.claims.by_host_lock import HOST_LOCK, HostLockRepository, keys_of
from queue_workflows.repositories.claims.end import Ended, Ending
from queue_workflows.repositories.claims.sweep import RECLAIMED_AT_ONCE
from queue_workflows.repositories.claims.unread_claims import UNREADABLE
from queue_workflows.repositories.claims.unusable_rows import Faults, failures_of, faults_of
from queue_workflows.repositories.jobs.hooks import HookJobRepository
from queue_workflows.repositories.limits.lane_turns import Reached
from queue_workflows.repositories.limits.lanes import LANE_DELAY_S, LIMIT_FULL, LaneRepository, counted
from queue_workflows.repositories.limits.slots import Slot, SlotRepository, Want
from queue_workflows.repositories.sql.claimed_job import ClaimedJob, Fence
from queue_workflows.repositories.sql.low_water_marks import Marks
from queue_workflows.repositories.sql.pipeline_commits import in_one_round_trip
from queue_workflows.roles.worker.claims.terms import ClaimTerms
from queue_workflows.states import JobStatus

_log = logging.getLogger(__name__)


class _Claiming(TypedDict):
    """How a worker claims."""

    worker_id: str
    lease_s: float
    limit: int
    positions: Sequence[int]


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
        self._connection = connection
        self.repository = terms.repository(connection, payload_limits=terms.limits)
        self._slots = SlotRepository(connection)
        self._lanes = LaneRepository(connection, self.repository.family)
        self._reached = Reached(terms.queue)

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
        self, limit: int, *, suspect: bool = False, beside: bool = False
    ) -> list[ClaimedJob]:
        """The next background hooks, at most `limit`; for a worker of hooks."""
        terms, repository = self._terms, self.repository
        assert isinstance(repository, HookJobRepository)  # noqa: S101 - nobody else has background jobs
        jobs = repository.claim_background(
            worker_id=terms.worker_id, lease_s=terms.lease_s, limit=limit, suspect=suspect, beside=beside
        )
        return self.begun(list[ClaimedJob](jobs))

    def end(self, endings: Sequence[Ending], *, is_counted: bool = False, keeps_locks: bool = False) -> Ended:
        """End a batch of jobs; those with a lost lease are named and change nothing.

        A process with functions that may run on until it ends `keeps_locks`, and frees them by its end.
        """
        fences = [ending.fence for ending in endings]
        if not self._kept or not (keys := self._kept.keys_of(fences)):
            ended = self.repository.end_many(endings)
        else:
            with in_one_round_trip(self._connection) as commit:
                self._slots.send_free(self._kept.of(fences))
                answer = self.repository.ask_end(endings)
                commit()
                admitted = self._lanes.send_admit(keys, self._reached)
            ended = answer()
            self._kept.forget(fences)
            admitted()
        if not keeps_locks:
            self._free_locks(fences)
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
        if alone or self._terms.offers or self._locks.has_of([ending.fence for ending in endings]):
            # A lock is freed after the end is stored, and what waits for it may be the next. A suspect is
            # claimed by a statement of its own.
            ended = self.end(endings, is_counted=True)
            jobs = self._claimed(marks, now, limit=limit, alone=alone)
            return Asked(endings, marks, limit, lambda: (ended, jobs))
        self._reached.by(marks)
        terms, positions = self._terms, marks.positions(now)
        claiming: _Claiming = {
            "worker_id": terms.worker_id,
            "lease_s": terms.lease_s,
            "limit": limit,
            "positions": positions,
        }
        fences = [ending.fence for ending in endings] if self._kept else []
        if not fences or not (keys := self._kept.keys_of(fences)):
            answer = self.repository.ask_end_and_claim(endings, terms.queue, **claiming)
            return Asked(endings, marks, limit, answer.load, is_full=1 < limit <= answer.jobs)
        with in_one_round_trip(self._connection) as commit:
            self._slots.send_free(self._kept.of(fences))
            end_answer = self.repository.ask_end(endings)
            commit()
            admitted = self._lanes.send_admit(keys, self._reached)
            claim_answer = self.repository.ask_claim(terms.queue, **claiming)
        ended, jobs = end_answer(), claim_answer()
        self._kept.forget(fences)
        admitted()
        return Asked(endings, marks, limit, lambda: (ended, jobs))

    def _claimed(
        self, marks: Marks, now: float, *, limit: int, alone: bool, suspects_first: bool = False
    ) -> list[ClaimedJob]:
        self._reached.by(marks)
        terms = self._terms
        if terms.offers.has(alone=alone) and (jobs := self._offered(limit, alone)):
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
        slots = self._kept.of(fences) if self._kept else []
        renewed = self._slots.renew(slots, lease_s=lease_s)
        alive = self.repository.renew(fences, lease_s=lease_s)
        if len(renewed) < len(slots):
            self._take_again(set(slots).difference(renewed), [one for one in held if one.job.id in alive])
        return alive

    def abandon(self, fences: Sequence[Fence]) -> None:
        """Give back what attempts hold that are another's by now, or over: there is no end to write."""
        self._free_locks(fences)
        if not self._kept or not (keys := self._kept.keys_of(fences)):
            return
        self._slots.free(self._kept.of(fences))
        self._lanes.admit_freed(keys, self._reached)
        self._kept.forget(fences)

    def give_back_unread(self, held: Sequence[HeldJob], *, max_crashes: int) -> None:
        """Give back what this worker was given and never heard of, uncounted, and the slots of it."""
        worker_id, kept = self._terms.worker_id, [one.job.id for one in held]
        taken = RECLAIMED_AT_ONCE
        while taken == RECLAIMED_AT_ONCE:
            taken = len(
                self.repository.reclaim_worker(worker_id, max_crashes=max_crashes, crashed=False, kept=kept)
            )
        if freed := self._slots.free_left_by(worker_id):
            self._lanes.admit_freed(freed, self._reached)

    def must_ask(self, claimed: list[ClaimedJob], faults: Faults) -> bool:
        """Whether `begun` has a question: not while the connection is at one."""
        if faults or self._kept.has_late:
            return True
        return any([job.limit_key or job.host_lock for job in claimed])  # noqa: C419 - half of the time

    def begun(self, claimed: list[ClaimedJob], faults: Faults | None = None) -> list[ClaimedJob]:
        """The jobs of a claim that may run; asks only if some have a key, or a slot is to be given back.

        A row that nobody can handle ends here, before anything is made of it; `faults` are those of these
        jobs, where they were looked for.
        """
        if self._kept.has_late:
            self._give_back(self._kept.pop_late())
        if faults := faults_of(claimed) if faults is None else faults:
            claimed = self._without(claimed, faults)
        try:
            jobs = self._with_slots(self._with_locks(claimed))
        except BaseException:
            # Nobody hears of these jobs, so nobody will end them.
            self._locks.free([job.fence for job in claimed])
            raise
        count_claimed(jobs)
        if len(jobs) < len(claimed):
            count_held(claimed, len(claimed) - len(jobs))
        return jobs

    def _without(self, jobs: list[ClaimedJob], faults: Faults) -> list[ClaimedJob]:
        """Jobs but for those with a fault, which end as failed."""
        _log.error("%d jobs are ended as failed: %s", len(faults), next(iter(faults.values())).message)
        endings = failures_of(jobs, faults)
        count_ended(self._terms.queue, endings, self.repository.end_many(endings).statuses)
        return [job for job in jobs if job.id not in faults]

    # Host locks.

    def _with_locks(self, jobs: list[ClaimedJob]) -> list[ClaimedJob]:
        """The jobs that have the lock of this machine that they need, or need none."""
        if not (refused := self._locks.take(jobs)):
            return jobs
        first = {job.host_lock: job for job in reversed(refused)}
        self.repository.end_many(
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
            self.repository.family,
            self._terms.queue,
            filter(None, first),
            host=self._terms.host,
            delay_s=BEHIND_S,
        )
        if keys := counted(limit_keys):
            self._lanes.admit(keys, self._reached)
        gone = {job.id for job in refused}
        return [job for job in jobs if job.id not in gone]

    def _offered(self, limit: int, alone: bool) -> list[ClaimedJob]:
        """Jobs that another host leaves to this one, from their hold; what cannot be read stays there."""
        terms = self._terms
        try:
            return HostLockRepository(self._connection).take(
                self.repository.family,
                terms.offers.pop(alone=alone),
                queue=terms.queue,
                worker_id=terms.worker_id,
                lease_s=terms.lease_s,
                limit=limit,
                alone=alone,
            )
        except UNREADABLE:
            return []

    def _free_locks(self, fences: Sequence[Fence]) -> None:
        """Free the locks of attempts that are over, and promote what waits for them."""
        if self._locks.any_held and (names := self._locks.free(fences)):
            takes = self._terms.takes_offers
            HostLockRepository(self._connection).promote(
                names if takes else keys_of(names), host=self._terms.host
            )
            if takes:
                self._terms.offers.freed(names)

    # Keyed limits.

    def _with_slots(self, jobs: list[ClaimedJob]) -> list[ClaimedJob]:
        """The jobs that have a slot, or need none."""
        keyed = [job for job in jobs if job.limit_key is not None]
        if not keyed:
            return jobs
        wants = [Want(job.limit_key or "", job.family, job.fence) for job in keyed]
        taken = self._slots.take(wants, lease_s=self._terms.lease_s)
        self._kept.claimed(keyed)
        self._kept.add(taken.slots.values())
        refused = [keyed[place] for place in sorted(taken.full)]
        try:
            if refused:
                self._put_aside(refused)
            self._lanes.admit(counted(job.limit_key for job in keyed), self._reached)
        except BaseException:
            # Nobody hears of these jobs, so nobody will end them.
            self._kept.forget([job.fence for job in keyed])
            raise
        gone = {job.id for job in refused}
        return [job for job in jobs if job.id not in gone]

    def _put_aside(self, jobs: Sequence[ClaimedJob]) -> None:
        """Put jobs into the lanes of their keys, and with them what stands in the queue for these."""
        keys = {job.limit_key or "" for job in jobs}
        self.repository.end_many(
            [
                Ending(
                    job.fence,
                    JobStatus.SCHEDULED,
                    delay_s=LANE_DELAY_S,
                    hold_reason=LIMIT_FULL,
                    hold_key=job.limit_key,
                )
                for job in jobs
            ]
        )
        self._lanes.move_others(keys)
        fences = [job.fence for job in jobs]
        self._kept.forget(fences)
        self._free_locks(fences)

    def _take_again(self, lost: set[Slot], held: Sequence[HeldJob]) -> None:
        """Slots that a crash of the server forgot; a job without them has to go back.

        Not those that were given back meanwhile: with their job, which is not held any more, or by itself.
        """
        lease_s = self._terms.lease_s
        wanted = [slot for slot in self._kept.of(one.job.fence for one in held) if slot in lost]
        # Each cap for itself, the lowest first: taken together, two would share the lower one.
        wanted.sort(key=_most)
        without: set[Fence] = set()
        for _, group in groupby(wanted, key=_most):
            without |= self._replace(list(group))
        for one in held:
            if one.job.fence in without:
                _log.warning("job %d: its slot of a limit is another's by now", one.job.id)
                one.tell(Stop.RELEASE, "its slot of a limit was lost", time.monotonic() + lease_s)

    def _replace(self, lost: Sequence[Slot]) -> set[Fence]:
        """Slots in the place of those that are lost and wanted still; the attempts that got none."""
        wants = [Want(slot.key, slot.family, slot.fence, slot.most) for slot in lost]
        again = self._slots.take(wants, lease_s=self._terms.lease_s)
        # A window may have been closed meanwhile, or the job be over.
        unwanted = [slot for place, slot in again.slots.items() if not self._kept.replace(lost[place], slot)]
        self._give_back(unwanted)
        for place in again.unlimited:
            self._kept.lose(lost[place])
        return {lost[place].fence for place in again.full if self._kept.lose(lost[place])}

    def _give_back(self, slots: Sequence[Slot]) -> None:
        """Slots that were taken for nobody."""
        if slots:
            self._slots.free(slots)
            self._lanes.admit_freed(counted(slot.key for slot in slots), self._reached)


def _most(slot: Slot) -> float:
    return math.inf if slot.most is None else slot.most
