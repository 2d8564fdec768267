"""A worker: claims jobs of one queue, one at a time, and sees each to its end.

    start ──> parked <──────────────── pause, off (off: executes itself anew first: nothing stays loaded)
       │        │ on                        ^
       └────────┴──> claim ──none──> idle ──┤        idle: advertised, LISTENing, and polling all the same
                       ^               │    │
                       └── work <──────┴────┘
                            │
                            └─ end of the last job and claim of the next: one statement, one commit

How a job is run is in `performing`, what happens when the database goes away in `touch`.
"""

from __future__ import annotations

import logging
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Final

import psutil
import psycopg

from queue_workflows.config import RESERVED_QUEUES
from queue_workflows.db.dsn import secrets_of
from queue_workflows.db.engine import Database
from queue_workflows.db.failures import DATABASE_AWAY
from queue_workflows.db.listen import Listener
from queue_workflows.errors import ExitCode, QwfError
from queue_workflows.host.deadman import boottime
from queue_workflows.jobs.asking import Errands
from queue_workflows.jobs.capture import captured
from queue_workflows.jobs.context import JobContext
from queue_workflows.jobs.ending import ending_instead
from queue_workflows.jobs.executor import EventLoop
from queue_workflows.jobs.guards import HeldJob, budget_for, budget_of
from queue_workflows.jobs.modules import UNKNOWN_MODULE
from queue_workflows.jobs.redaction import Redactor
from queue_workflows.jobs.tasks import UNKNOWN_TASK
from queue_workflows.jobs.windows import Windows
from queue_workflows.repositories.claimed import ClaimedJob
from queue_workflows.repositories.claiming import Marks
from queue_workflows.repositories.ending import Ending
from queue_workflows.repositories.families import INGEST, NODE, Family
from queue_workflows.repositories.holding import Control
from queue_workflows.roles.aside import Aside
from queue_workflows.roles.guardian import Guardian
from queue_workflows.roles.performing import Performed, Performer
from queue_workflows.roles.touch import Touch
from queue_workflows.settings import Settings
from queue_workflows.states import DesiredState, JobFamily, WorkerState

_log = logging.getLogger(__name__)

# The revision that brought the last table which a worker uses.
MIN_SCHEMA: Final = 23
_FIRST_LOOK_S: Final = 0.005
_MEMORY_EVERY_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    """What the command line says of one worker."""

    queue: str
    drain: bool = False
    max_jobs: int | None = None
    grace_s: float | None = None
    recycle_jobs: int | None = None
    recycle_mb: int | None = None
    exit_when_off: bool = False
    schema_wait_s: float = 60.0
    health: tuple[str, int] | None = None
    health_file: Path | None = None


def family_of(queue: str) -> Family:
    """Reserved queues carry node jobs, all others ingest jobs."""
    return NODE if queue in RESERVED_QUEUES else INGEST


class Worker:
    """The main thread's loop; what it shares with the guardian is in the guardian."""

    def __init__(
        self,
        database: Database,
        settings: Settings,
        options: WorkerOptions,
        *,
        guardian: Guardian,
        listener: Listener,
        loop: EventLoop,
        aside: Aside,
    ) -> None:
        self._settings = settings
        self._options = options
        self._guardian = guardian
        self._listener = listener
        self._windows = Windows(Errands(aside.ask), guardian.terms.kept, lease_s=guardian.holdings.lease_s)
        self._queue = options.queue
        self._family = family_of(options.queue)
        self._lease_s = guardian.holdings.lease_s
        self._budget = budget_of(options.queue, JobFamily(self._family.name), settings)
        self._marks = Marks(settings.poll_s)
        self._rng = Random()  # noqa: S311
        self._redactor = Redactor(secrets_of(database.params))
        self._touch = Touch(
            lambda: database.connect(autocommit=True, hot=True),
            guardian=guardian,
            listener=listener,
            marks=self._marks,
            rng=self._rng,
            pooled=database.pooled,
        )
        self._performer = Performer(
            settings,
            connected=self._touch.connected,
            loop=loop,
            limits=guardian.terms.limits,
            redactor=self._redactor,
            rng=self._rng,
        )
        self._memory = psutil.Process().memory_info
        self._memory_at = 0.0
        self._is_large = False

    def run(self) -> ExitCode:
        """Claim and work until there is a reason to stop."""
        self._touch.connected()
        self._fetch_what_waited_for_us()
        self._guardian.is_claiming = True
        while (status := self._reason_to_stop()) is None:
            if self._guardian.wish is not None:
                self._park(self._guardian.wish)
                continue
            job = self._claim()
            if job is None and not self._options.drain:
                job = self._idle()
            elif job is None and self._marks.empty:
                return ExitCode.DONE
            while job is not None:
                if (job := self._work(job)) is not None:
                    self._leave_idle()
        return status

    def _reason_to_stop(self) -> ExitCode | None:
        options, wish = self._options, self._guardian.wish
        if self._guardian.stopping is not None:
            return ExitCode.DONE
        if self._has_done_its_share():
            return ExitCode.DONE
        if options.exit_when_off and wish is not None and wish.desired is DesiredState.OFF:
            return ExitCode.STOPPED
        if self._is_worn():
            _log.info("recycled after %d jobs", self._guardian.jobs_done)
            self._guardian.execute_anew()
        return None

    def _has_done_its_share(self) -> bool:
        most = self._options.max_jobs
        return most is not None and self._guardian.identity.jobs_done + self._guardian.jobs_done >= most

    def _is_worn(self) -> bool:
        options = self._options
        if options.recycle_jobs is not None and self._guardian.jobs_done >= options.recycle_jobs:
            return True
        now = time.monotonic()
        # What it takes before its first job it would take again.
        if options.recycle_mb is not None and self._guardian.jobs_done and now >= self._memory_at:
            self._memory_at = now + _MEMORY_EVERY_S
            self._is_large = self._memory().rss >> 20 >= options.recycle_mb
        return self._is_large

    def _park(self, wish: Control) -> None:
        """Wait a turn for the operator; switched off, with nothing loaded."""
        self._guardian.main_at = time.monotonic()
        self._leave_idle()
        if wish.desired is DesiredState.OFF:
            if self._performer.has_loaded:
                self._guardian.execute_anew()
            self._guardian.doing(WorkerState.PARKED, wish.reason)
        else:
            self._guardian.doing(WorkerState.PAUSED, wish.reason)
        self._listener.wait(self._settings.poll_s)
        self._guardian.cut_if_stuck()

    # Claiming.

    def _claim(self) -> ClaimedJob | None:
        """The next job, or none."""
        self._guardian.main_at = now = time.monotonic()
        try:
            intake = self._touch.intake()
            bounded = self._guardian.holdings.bounded(self._touch.meanwhile)
            with self._guardian.claiming, bounded as reading:
                return self._taken(intake.claim(self._marks, now, alone=True), reading)
        except DATABASE_AWAY as exc:
            self._touch.lost(exc)
            self._touch.recover(None)
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

    def _idle(self) -> ClaimedJob | None:
        """Wait where a writer's NOTIFY finds us; the job that ended the wait, or none for another reason."""
        self._guardian.doing(WorkerState.IDLE)
        if not self._listener.is_wanted(self._queue):
            self._listener.advertise(self._queue)
        pause = _FIRST_LOOK_S
        while self._guardian.stopping is None and self._guardian.wish is None and not self._is_worn():
            # A short claim with marks proves nothing: the next one looks at everything.
            job = self._claim()
            if job is not None:
                return job
            if not self._marks.empty:
                continue
            timeout = self._settings.poll_s * (0.75 + self._rng.random() / 2)
            if self._listener.must_look_again():
                # Somebody who inserted before we advertised may commit without a wake.
                timeout, pause = min(timeout, pause), pause * 2
            if (wake := self._listener.wait(timeout)) is None:
                self._guardian.cut_if_stuck()
            elif wake.reason != "interrupted":
                pause = _FIRST_LOOK_S
        return None

    def _leave_idle(self) -> None:
        """Writers need not wake us any more: NOTIFY is dear to them, but a wake too many harms nobody."""
        if self._listener.is_wanted(self._queue):
            with suppress(QwfError):
                self._listener.withdraw(self._queue)

    # Working.

    def _work(self, job: ClaimedJob) -> ClaimedJob | None:
        """See one job to its end; the next one, if the end brought one."""
        held = self._guardian.holdings.get(job.id)
        performed: Performed | None = None
        try:
            performed = self._performer.perform(job, held.ctx)
            self._guardian.jobs_done += performed.counts
            if performed.ending is not None:
                return self._end(held, performed.ending)
            # The lease is lost, so the row is another's; the process need not end, as the job has.
            self._touch.intake().abandon([job.fence])
        except DATABASE_AWAY as exc:
            held.is_ending = True
            self._touch.lost(exc)
            self._touch.recover(performed.ending if performed else self._performer.unperformed(job))
        except (psycopg.Error, QwfError) as exc:
            held.is_ending = True
            self._end_refused(job, exc)
        self._guardian.holdings.drop(job.id)
        return None

    def _end(self, held: HeldJob, ending: Ending) -> ClaimedJob | None:
        """Write the end; the next job, if that brought one."""
        job = held.job
        held.is_ending = True
        last_words = held.ctx.take_progress(now=time.monotonic(), final=True)
        if last_words is not None:
            self._touch.repository().beat_many([(job.fence, last_words)])
        if self._may_claim_more():
            return self._end_and_claim(job, ending)
        with self._guardian.claiming:
            lost = self._touch.intake().end([ending]).lost
            self._guardian.holdings.drop(job.id)
        if lost:
            self._tell_lost(job)
        return None

    def _end_refused(self, job: ClaimedJob, exc: Exception) -> None:
        """End otherwise what the server would not end as it should have: that is no crash of this worker."""
        _log.error("job %d: its end was refused: %s", job.id, " ".join(str(exc).split()))
        self._touch.let_go()
        self._touch.recover(ending_instead(exc, job, captured(exc, self._redactor)))

    def _end_and_claim(self, job: ClaimedJob, ending: Ending) -> ClaimedJob | None:
        with self._guardian.claiming:
            reading = boottime()
            ended, jobs = self._touch.intake().end_and_claim(
                [ending], self._marks, time.monotonic(), alone=True
            )
            # In this order the timer has a lease to stand on throughout, and seldom needs to be set.
            following = self._taken(jobs, reading)
            self._guardian.holdings.drop(job.id)
        if ended.lost:
            self._tell_lost(job)
        return following

    def _may_claim_more(self) -> bool:
        return (
            self._guardian.stopping is None
            and self._guardian.wish is None
            and not self._has_done_its_share()
            and not self._is_worn()
        )

    def _tell_lost(self, job: ClaimedJob) -> None:
        _log.warning("job %d: attempt %d was over before its end could be stored", job.id, job.attempt)

    def _context(self, job: ClaimedJob) -> JobContext:
        return JobContext(
            job,
            family=self._family.title,
            make_durable=lambda: self._touch.make_durable(job),
            windows=self._windows,
        )

    def _fetch_what_waited_for_us(self) -> None:
        """Jobs on hold because nobody knew their task or module may run now.

        To know a module is to import it, which a worker that an operator wants empty does not do.
        """
        repository, bounded = self._touch.repository(), self._guardian.holdings.bounded
        reason, known = UNKNOWN_TASK, self._performer.task_names()
        if self._family is not INGEST:
            with bounded():
                keys = repository.held_keys(UNKNOWN_MODULE, queue=self._queue)
            reason, known = UNKNOWN_MODULE, [key for key in keys if self._knows(key)]
        if known:
            with bounded():
                repository.promote_held(reason, known, queue=self._queue)

    def _knows(self, module: str) -> bool:
        self._guardian.main_at = time.monotonic()
        if self._guardian.wish is not None or self._guardian.stopping is not None:
            return False
        return self._performer.knows_module(module)
