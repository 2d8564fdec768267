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

import logging
from typing import Final

import psycopg

from queue_workflows import clock as time
from queue_workflows.db.connections.failures import DATABASE_AWAY
from queue_workflows.engine.execution.context import JobContext
from queue_workflows.engine.execution.ending import ending_instead
from queue_workflows.engine.execution.error_capture import captured
from queue_workflows.engine.execution.guards import HeldJob, budget_for
from queue_workflows.engine.registry.tasks import UNKNOWN_TASK
from queue_workflows.errors import ExitCode, QwfError
from queue_workflows.host.processes.lease_timer import boottime
from queue_workflows.repositories.claims.end import Ending
from queue_workflows.repositories.sql.claimed_job import ClaimedJob
from queue_workflows.roles.worker.common.parts import WorkerParts
from queue_workflows.roles.worker.common.run_job import Performed
from queue_workflows.roles.worker.common.unknown_tasks import UnknownTasks
from queue_workflows.roles.worker.concurrent.suspect_isolation import SuspectsTurn
from queue_workflows.states import WorkerState

_log = logging.getLogger(__name__)

# The revision that brought the last column or index which a worker's statements cannot do without.
MIN_SCHEMA: Final = 35
_FIRST_LOOK_S: Final = 0.005


class Worker:
    """The main thread's loop; what it shares with the guardian is in the guardian."""

    def __init__(self, parts: WorkerParts) -> None:
        self._settings = parts.settings
        self._options = parts.options
        self._guardian = parts.guardian
        self._listener = parts.listener
        self._windows = parts.windows
        self._queue = parts.options.queue
        self._family = parts.family
        self._lease_s = parts.guardian.holdings.lease_s
        self._budget = parts.budget
        self._marks = parts.marks
        self._rng = parts.rng
        self._redactor = parts.redactor
        self._worker_connection = parts.worker_connection
        self._performer = parts.performer
        self._lifecycle = parts.lifecycle
        self._left = parts.leftovers(is_concurrent=False)
        self._suspects_turn = SuspectsTurn(parts.rng)
        self._unknown = UnknownTasks(parts.options.queue)

    def run(self) -> ExitCode:
        """Claim and work until there is a reason to stop."""
        self._worker_connection.connected()
        self._lifecycle.fetch_at_start()
        self._guardian.is_claiming = True
        self._suspects_turn.comes(time.monotonic())
        while (status := self._lifecycle.reason_to_stop()) is None:
            if self._guardian.wish is not None:
                self._lifecycle.park(self._guardian.wish)
                continue
            is_offered = self._lifecycle.fetch_again(time.monotonic())
            if self._unknown.is_due:
                self._unknown.put_aside(self._worker_connection)
            job = self._claim() if is_offered or not self._would_be_woken() else None
            if job is None and self._fetches_more(at_last=self._options.drain):
                continue
            if job is None and not self._options.drain:
                job = self._idle()
            elif job is None and self._marks.empty:
                return ExitCode.DONE
            while job is not None:
                if (job := self._work(job)) is not None:
                    self._lifecycle.leave_idle()
        return status

    # Claiming.

    def _claim(self) -> ClaimedJob | None:
        """The next job, or none."""
        self._guardian.main_at = now = time.monotonic()
        try:
            claim_session = self._worker_connection.claim_session()
            bounded = self._guardian.holdings.bounded(self._worker_connection.meanwhile)
            with self._guardian.claiming, bounded as reading:
                first = self._suspects_turn.take()
                return self._taken(
                    claim_session.claim(self._marks, now, alone=True, suspects_first=first), reading
                )
        except DATABASE_AWAY as exc:
            self._worker_connection.lost(exc)
            self._worker_connection.recover([])
            return None

    def _taken(self, jobs: list[ClaimedJob], reading: float) -> ClaimedJob | None:
        """What a confirmed claim brought; guarded from here on."""
        if not jobs:
            return None
        (job,) = jobs
        self._guardian.hold(
            HeldJob(
                job,
                self._context(job),
                budget_for(job, self._budget),
                time.monotonic(),
                reading + self._lease_s,
            )
        )
        return job

    def _would_be_woken(self) -> bool:
        """Whether the last claim found nothing at all, and all that came since has woken us or will."""
        return self._marks.empty and self._listener.is_wanted(self._queue)

    def _fetches_more(self, *, at_last: bool = False) -> bool:
        """Whether there is something to claim after all, in an empty queue: what others do not know."""
        if not self._marks.empty or not self._lifecycle.fetch_more(time.monotonic(), at_last=at_last):
            return False
        self._marks.unsure()
        return True

    def _idle(self) -> ClaimedJob | None:
        """Wait where a writer's NOTIFY finds us; the job that ended the wait, or none for another reason."""
        self._guardian.doing(WorkerState.IDLE)
        is_known = self._would_be_woken()
        if not self._listener.is_wanted(self._queue):
            self._listener.advertise(self._queue)
            is_known = False
        pause = _FIRST_LOOK_S
        while self._lifecycle.may_claim():
            is_offered = self._lifecycle.fetch_again(time.monotonic())
            # A short claim with marks proves nothing: the next one looks at everything.
            if is_offered or not is_known:
                job = self._claim()
                if job is not None:
                    return job
            is_known = False
            if not self._marks.empty or self._fetches_more():
                continue
            timeout = self._settings.poll_s * (0.75 + self._rng.random() / 2)
            if self._listener.must_look_again():
                # A transaction that inserted before we advertised may commit without a wake.
                timeout, pause = min(timeout, pause), pause * 2
            timeout = min(timeout, self._lifecycle.tidy())
            if (wake := self._listener.wait(timeout)) is None:
                self._guardian.cut_if_stuck()
            elif wake.reason != "interrupted":
                pause = _FIRST_LOOK_S
        return None

    # Working.

    def _work(self, job: ClaimedJob) -> ClaimedJob | None:
        """See one job to its end; the next one, if the end brought one."""
        held = self._guardian.holdings.get(job.id)
        performed: Performed | None = None
        try:
            performed = self._perform(held)
            self._guardian.jobs_done += performed.counts
            if performed.ending is not None:
                return self._end(held, performed.ending)
            # The lease is lost, so the row is another's; the process need not end, as the job has.
            self._worker_connection.claim_session().abandon([job.fence])
        except DATABASE_AWAY as exc:
            held.is_ending = True
            self._worker_connection.lost(exc)
            ending = performed.ending if performed else self._performer.unperformed(job, held.ctx)
            self._worker_connection.recover([ending] if ending else [])
        except (psycopg.Error, QwfError) as exc:
            held.is_ending = True
            self._end_refused(held, exc)
        self._guardian.holdings.drop(held)
        return None

    def _perform(self, held: HeldJob) -> Performed:
        began = self._left.before(held.job)
        try:
            return self._performer.perform(held.job, held.ctx)
        finally:
            self._guardian.damage.after_job()
            self._left.after(held, began)

    def _end(self, held: HeldJob, ending: Ending) -> ClaimedJob | None:
        """Write the end; the next job, if that brought one."""
        job = held.job
        held.is_ending = True
        last_words = held.ctx.take_progress(now=time.monotonic(), final=True)
        if last_words is not None:
            self._worker_connection.repository().beat_many([(job.fence, last_words)])
        # What waits for a worker that knows it, or for a lock, would else wait until there is no work.
        if ending.hold_reason == UNKNOWN_TASK and ending.hold_key is not None:
            self._unknown.met(ending.hold_key, time.monotonic())
        elif self._is_at_once():
            return self._end_and_claim(held, ending)
        with self._guardian.claiming:
            lost = self._worker_connection.claim_session().end([ending]).lost
            self._guardian.holdings.drop(held)
        if lost:
            self._tell_lost(job)
        return None

    def _is_at_once(self) -> bool:
        """Whether the next claim goes with this end: nothing else is to be asked, and it is of any job."""
        now = time.monotonic()
        return (
            self._lifecycle.may_claim()
            and not self._suspects_turn.comes(now)
            and not self._lifecycle.must_ask(now)
        )

    def _end_refused(self, held: HeldJob, exc: psycopg.Error | QwfError) -> None:
        """End otherwise what the server would not end as it should have: that is no crash of this worker."""
        _log.error("job %d: its end was refused: %s", held.job.id, " ".join(str(exc).split()))
        self._worker_connection.let_go()
        entry = captured(exc, self._redactor)
        self._worker_connection.recover(
            [ending_instead(exc, held.job, entry, for_good=held.ctx.has_begun_for_good)]
        )

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
            self._guardian.holdings.drop(held)
        if ended.lost:
            self._tell_lost(held.job)
        return following

    def _tell_lost(self, job: ClaimedJob) -> None:
        self._guardian.lost.add(job)
        _log.warning("job %d: attempt %d was over before its end could be stored", job.id, job.attempt)

    def _context(self, job: ClaimedJob) -> JobContext:
        return JobContext(
            job,
            family=self._family.title,
            make_durable=self._worker_connection.make_durable,
            windows=self._windows,
        )
