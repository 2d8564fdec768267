"""A worker: claims jobs of one queue, one at a time, and sees each to its end.

    start ──> parked <──────────────── pause, off (off: executes itself anew first: nothing stays loaded)
       │        │ on                        ^
       └────────┴──> claim ──none──> idle ──┤        idle: advertised, LISTENing, and polling all the same
                       ^               │    │
                       └── work <──────┴────┘
                            │
                            └─ end of the last job and claim of the next: one statement, one commit

How a job is run is in `common/run_job`, what happens when the database goes away in `common/connection`.
"""

from __future__ import annotations

from typing import Final

import psycopg

from queue_workflows import clock as time
from queue_workflows.db.connections.failures import DATABASE_AWAY
from queue_workflows.engine.execution.guards import HeldJob
from queue_workflows.engine.execution.log_fields import at_hand
from queue_workflows.engine.registry.node_modules import UNKNOWN_MODULE
from queue_workflows.engine.registry.tasks import UNKNOWN_TASK
from queue_workflows.errors import ExitCode, QwfError
from queue_workflows.host.processes.lease_timer import boottime
from queue_workflows.repositories.claims.end import Ended, Ending
from queue_workflows.repositories.sql.claimed_job import ClaimedIngestJob, ClaimedJob, ClaimedNodeJob
from queue_workflows.roles.worker.common.parts import WorkerParts
from queue_workflows.roles.worker.common.worker_base import WorkerBase
from queue_workflows.roles.worker.concurrent.suspect_isolation import SuspectsTurn
from queue_workflows.states import WorkerState

# The revision that brought the last column or index which a worker's statements cannot do without.
MIN_SCHEMA: Final = 48


class Worker(WorkerBase):
    """The main thread's loop, which runs the jobs as well."""

    def __init__(self, parts: WorkerParts) -> None:
        super().__init__(
            parts,
            make_durable=parts.worker_connection.make_durable,
            after_job=parts.guardian.damage.after_job,
            leftovers=parts.leftovers(is_concurrent=False),
        )
        self._suspects_turn = SuspectsTurn(parts.rng)
        self._job_log = parts.guardian.job_log

    def run(self) -> ExitCode:
        """Claim and work until there is a reason to stop."""
        self._worker_connection.connected()
        self._turns.begin()
        self._lifecycle.fetch_at_start()
        self._guardian.is_claiming = True
        self._suspects_turn.comes(time.monotonic())
        self._look_pace.found(time.monotonic())
        while (status := self._lifecycle.reason_to_stop()) is None:
            if self._guardian.wish is not None:
                self._lifecycle.park(self._guardian.wish)
                continue
            is_offered = self._lifecycle.fetch_again(time.monotonic())
            if self._unknown.is_due(now := time.monotonic()):
                self._unknown.settle(self._worker_connection, now)
            job = self._claim() if is_offered or not self._would_be_woken() else None
            if job is None and self._fetches_more(time.monotonic(), at_last=self._parts.options.drain):
                continue
            if job is None and not self._parts.options.drain:
                job = self._idle()
            elif job is None and self._marks.empty:
                return ExitCode.DONE
            while job is not None:
                job = self._work(job)
                self._look_pace.found(time.monotonic())
                if job is not None:
                    self._lifecycle.leave_idle()
        return status

    # Claiming.

    def _claim(self) -> ClaimedJob | None:
        """The next job, or none."""
        self._guardian.main_at = now = time.monotonic()
        self._claims()
        try:
            claim_session = self._worker_connection.claim_session()
            bounded = self._holdings.bounded(self._worker_connection.meanwhile)
            with self._guardian.claiming, bounded as reading:
                first = self._suspects_turn.take()
                jobs = claim_session.claim(self._marks, now, alone=True, suspects_first=first)
                # It passes by what it lacks, so that it has not looked for others.
                is_left = not self._marks.empty or bool(self._guardian.terms.lacked)
                self._turns.looked(now, found=bool(jobs) or is_left, is_free=True)
                return self._taken(jobs, reading)
        except DATABASE_AWAY as exc:
            self._worker_connection.lost(exc)
            self._worker_connection.recover([])
            return None

    def _taken(self, jobs: list[ClaimedJob], reading: float) -> ClaimedJob | None:
        """What a confirmed claim brought; guarded from here on."""
        if not jobs:
            return None
        (job,) = jobs
        self._guardian.hold(self._held_job(job, reading, time.monotonic()))
        return job

    def _would_be_woken(self) -> bool:
        """Whether the last claim found nothing at all, and all that came since has woken us or will."""
        return self._marks.empty and self._listener.is_wanted(self._queue)

    def _fetches_more(self, now: float, *, at_last: bool = False) -> bool:
        """Whether there is something to claim after all, in an empty queue: what others do not know."""
        return self._marks.empty and super()._fetches_more(now, at_last=at_last)

    def _idle(self) -> ClaimedJob | None:
        """Wait where a writer's NOTIFY finds us; the job that ended the wait, or none for another reason."""
        self._guardian.doing(WorkerState.IDLE)
        is_known = self._would_be_woken()
        if self._advertise():
            is_known = False
        self._turns.wait_in_line(is_free=True)
        try:
            return self._woken(is_known=is_known)
        finally:
            self._guardian.is_resting = False
            self._turns.leave()

    def _woken(self, *, is_known: bool) -> ClaimedJob | None:
        """Wait, and look when woken, until there is a job or another reason to stop waiting."""
        self._look_pace.idles()
        while self._lifecycle.may_claim() and not self._unknown.is_due(time.monotonic()):
            is_offered = self._lifecycle.fetch_again(time.monotonic())
            # A short claim with marks proves nothing: the next one looks at everything.
            if is_offered or not is_known:
                job = self._claim()
                if job is not None:
                    return job
            is_known = False
            if not self._marks.empty or self._fetches_more(time.monotonic()):
                continue
            timeout = self._poll_s()
            now = time.monotonic()
            if is_unsettled := (again := self._look_again_in(now)) is not None:
                timeout = min(timeout, again)
            if now >= self._job_log.due:
                self._job_log.say_counted()
            timeout = min(timeout, self._lifecycle.tidy(), self._job_log.due_in(now))
            if (wake := self._listener.wait(timeout)) is None:
                self._guardian.cut_if_stuck()
                self._rest()
                is_known = not is_unsettled and self._is_polled_for()
            elif wake.reason != "interrupted":
                self._look_pace.found(time.monotonic())
                is_known = wake.reason == "notified" and not is_unsettled and self._is_seen_to()
        return None

    def _is_seen_to(self) -> bool:
        """Whether another worker of this host has looked since this one was woken, and left nothing."""
        woken = time.monotonic()
        due = woken + self._turns.pause(is_resting=self._guardian.is_resting)
        while (left := due - time.monotonic()) > 0:
            if (wake := self._listener.wait(left)) is None:
                break
            if wake.reason != "notified":
                return False
            woken = time.monotonic()
        return due > woken and self._turns.is_seen_to(woken)

    # Working.

    def _work(self, job: ClaimedJob) -> ClaimedJob | None:
        """See one job to its end; the next one, if the end brought one."""
        held = self._holdings.get(job.id)
        has_run, ending = False, None
        try:
            at_hand.set(held)
            try:
                ending = self._run_job(held)
            finally:
                at_hand.set(None)
            has_run = True
            held.ended = time.monotonic()
            self._guardian.jobs_done += held.counts
            if ending is not None:
                return self._end(held, ending)
            # The lease is lost, so the row is another's; the process need not end, as the job has.
            self._worker_connection.claim_session().abandon([job.fence])
        except DATABASE_AWAY as exc:
            held.is_ending = True
            self._worker_connection.lost(exc)
            if not has_run:
                ending = self._job_runner.not_run(job, held.ctx)
            self._worker_connection.recover([ending] if ending else [])
            if ending is not None:
                self._job_log.ended_one(held, ending, ending.status)
        except (psycopg.Error, QwfError) as exc:
            held.is_ending = True
            self._worker_connection.recover_refused(held, exc)
            if held.ending is not None:
                self._job_log.ended_one(held, held.ending, held.ending.status)
        self._holdings.drop(held)
        return None

    def _end(self, held: HeldJob, ending: Ending) -> ClaimedJob | None:
        """Write the end; the next job, if that brought one."""
        job = held.job
        held.is_ending = True
        last_words = held.ctx.take_progress(now=time.monotonic(), final=True)
        if last_words is not None:
            self._worker_connection.repository().beat_many([(job.fence, last_words)])
        # What waits for a worker that knows it, or for a lock, would else wait until there is no work.
        if not self._is_unknown(job, ending) and self._is_at_once():
            return self._end_and_claim(held, ending)
        with self._guardian.claiming:
            ended = self._worker_connection.claim_session().end([ending])
            self._holdings.drop(held)
        self._tell(held, ending, ended)
        return None

    def _is_unknown(self, job: ClaimedJob, ending: Ending) -> bool:
        """Note what a job that was put on hold needs and this process does not know; whether it is that."""
        if ending.hold_reason not in (UNKNOWN_TASK, UNKNOWN_MODULE):
            return False
        if (key := ending.hold_key) is not None:
            is_version = key != _name_of(job)
            (self._unknown.met_version if is_version else self._unknown.met)(key)
        return True

    def _tell(self, held: HeldJob, ending: Ending, ended: Ended) -> None:
        if ended.lost:
            self._guardian.lost.found_at_end(held.job)
        self._job_log.ended_one(held, ending, ended.statuses.get(held.job.id))

    def _is_at_once(self) -> bool:
        """Whether the next claim goes with this end: nothing else is to be asked, and it is of any job."""
        now = time.monotonic()
        if (
            not self._lifecycle.may_claim()
            or self._suspects_turn.comes(now)
            or self._lifecycle.must_fetch(now)
        ):
            return False
        # Here it costs one round trip; between an end and a claim of their own it would cost two.
        self._lifecycle.look_at_locks(now)
        return self._lifecycle.may_claim()

    def _end_and_claim(self, held: HeldJob, ending: Ending) -> ClaimedJob | None:
        if self._listener.is_wanted(self._queue):
            # It was idle until now, and most likely will be again: a claim of everything says so at once.
            self._marks.unsure()
        with self._guardian.claiming:
            reading = boottime()
            ended, jobs = self._worker_connection.claim_session().end_and_claim(
                [ending], self._marks, time.monotonic()
            )
            # In this order the timer has a lease to stand on throughout, and seldom needs to be set.
            following = self._taken(jobs, reading)
            self._holdings.drop(held)
        self._tell(held, ending, ended)
        return following


def _name_of(job: ClaimedJob) -> str | None:
    """By what claims pass a job by."""
    if isinstance(job, ClaimedIngestJob):
        return job.task_name
    return job.node_module if isinstance(job, ClaimedNodeJob) else None
