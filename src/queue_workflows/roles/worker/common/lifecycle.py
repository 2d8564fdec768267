"""What a worker may do next, whether it runs one job at a time or many: claim, park, stop, start afresh."""

from __future__ import annotations

import logging
import math
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil

from queue_workflows import clock as time
from queue_workflows.config import RESERVED_QUEUES
from queue_workflows.db.connections.failures import DATABASE_AWAY
from queue_workflows.db.listen.listener import Listener
from queue_workflows.engine.node_inputs.loaded_model import UNKNOWN_MODEL
from queue_workflows.engine.registry.node_modules import UNKNOWN_MODULE
from queue_workflows.engine.registry.tasks import UNKNOWN_TASK
from queue_workflows.errors import ExitCode, QwfError
from queue_workflows.gpu.cuda_context import CudaContexts
from queue_workflows.repositories.sql.families import INGEST, NODE, Family
from queue_workflows.repositories.sql.table import LONGEST_PAGE
from queue_workflows.repositories.workers.control import Control
from queue_workflows.roles.worker.common.connection import WorkerConnection
from queue_workflows.roles.worker.common.fetch_size import FetchSize
from queue_workflows.roles.worker.common.host_lock_checks import HostLockChecks
from queue_workflows.roles.worker.common.run_job import JobRunner
from queue_workflows.roles.worker.guardian.guardian import Guardian
from queue_workflows.states import DesiredState, WorkerState

_log = logging.getLogger(__name__)

_MEMORY_EVERY_S: Final = 1.0
# How soon to fetch again what waits for a worker that knows it: others may have put it aside since.
_FETCH_EVERY_S: Final = 60.0
_FETCH_MORE_S: Final = 1.0
# So many jobs for models at a time: one is for us, others may have to put aside again what we leave.
_FETCHED_FOR_MODELS: Final = 32
# Nor can workers that lack a version of a module pass its jobs by.
_FETCHED_FOR_VERSIONS: Final = 32
_LOOK_AGAIN_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    """What the command line says of one worker."""

    queue: str
    concurrency: int = 1
    max_background: int = 0
    drain: bool = False
    max_jobs: int | None = None
    grace_s: float | None = None
    recycle_jobs: int | None = None
    recycle_mb: int | None = None
    exit_when_off: bool = False
    schema_wait_s: float = 60.0
    health: tuple[str, int] | None = None
    health_file: Path | None = None
    # This process declares limits in the name of this wiring; else of the one that the settings name.
    app: str | None = None


def family_of(queue: str) -> Family:
    """Reserved queues carry node jobs, all others ingest jobs."""
    return NODE if queue in RESERVED_QUEUES else INGEST


class WorkerLifecycle:
    """Asked by the main loop between two jobs, or two batches of them."""

    def __init__(
        self,
        options: WorkerOptions,
        *,
        guardian: Guardian,
        listener: Listener,
        job_runner: JobRunner,
        worker_connection: WorkerConnection,
        gpu: CudaContexts | None = None,
    ) -> None:
        self._options = options
        self._guardian = guardian
        self._listener = listener
        self._job_runner = job_runner
        self._worker_connection = worker_connection
        self._family = family_of(options.queue)
        self._gpu = CudaContexts(clock=time.monotonic) if gpu is None else gpu
        self._memory = psutil.Process().memory_info
        self._memory_at = 0.0
        self._is_large = False
        self._fetch_at = math.inf
        self._fetch_all_at = -math.inf
        self._fetch_size = FetchSize(options.concurrency)
        # What was loaded when something was fetched that was not for it alone.
        self._warm_before: list[str] | None = None
        self._locks = HostLockChecks(
            guardian.terms, guardian.holdings, worker_connection, holds_nothing=guardian.poll.holds_nothing
        )
        # What was left to another worker is looked at again, also where nobody polls.
        self._look_again_s = math.inf if guardian.terms.affinity is None else _LOOK_AGAIN_S

    def may_claim(self) -> bool:
        """Whether there is nothing against another job."""
        return self._guardian.stopping is None and self._guardian.wish is None and self.left() > 0

    def left(self) -> float:
        """How many more jobs this process may do."""
        options, done, left = self._options, self._guardian.jobs_done, math.inf
        if options.max_jobs is not None:
            left = options.max_jobs - self._guardian.identity.jobs_done - done
        if options.recycle_jobs is not None:
            left = min(left, options.recycle_jobs - done)
        return 0 if self._is_bloated() or self._gpu.damage() else left

    def reason_to_stop(self) -> ExitCode | None:
        """When nothing is held: the status to end with, if it is to end; or this process starts afresh."""
        options, wish, guardian = self._options, self._guardian.wish, self._guardian
        if guardian.stopping is not None:
            return ExitCode.DONE
        most = options.max_jobs
        if most is not None and guardian.identity.jobs_done + guardian.jobs_done >= most:
            return ExitCode.DONE
        if options.exit_when_off and wish is not None and wish.desired is DesiredState.OFF:
            return ExitCode.STOPPED
        if self.left() <= 0:
            self._say_why_anew()
            guardian.execute_anew()
        return None

    def _say_why_anew(self) -> None:
        if damage := self._gpu.damage():
            _log.error(
                "this process can use its GPU no more, after %s: it starts afresh, with no model loaded",
                damage,
            )
        else:
            _log.info("recycled after %d jobs", self._guardian.jobs_done)

    def park(self, wish: Control) -> None:
        """Wait a turn for the operator; switched off, with nothing loaded."""
        self._guardian.main_at = time.monotonic()
        self.leave_idle()
        if wish.desired is DesiredState.OFF:
            if self._job_runner.has_loaded:
                self._guardian.execute_anew()
            self._guardian.doing(WorkerState.PARKED, wish.reason)
        else:
            self._job_runner.unload_all()
            self._guardian.doing(WorkerState.PAUSED, wish.reason)
        self._listener.wait(self._guardian.settings.poll_s)
        self._guardian.cut_if_stuck()

    def leave_idle(self) -> None:
        """Writers need not wake us any more: NOTIFY is dear to them, but a wake too many harms nobody."""
        if self._listener.is_wanted(self._options.queue):
            with suppress(QwfError):
                self._listener.withdraw(self._options.queue)

    def fetch_at_start(self) -> None:
        """`fetch_what_waited_for_us`, but for one that stands in for a worker that did."""
        if self._guardian.identity.part:
            self._fetch_at = time.monotonic() + _FETCH_EVERY_S
        else:
            self.fetch_what_waited_for_us()

    def fetch_what_waited_for_us(self) -> None:
        """Jobs on hold because nobody knew their task, module or model may run now.

        To know a module is to import it, which a worker that an operator wants empty does not do.
        """
        repository, queue = self._worker_connection.repository(), self._options.queue
        bounded = self._guardian.holdings.bounded
        known = self._job_runner.task_names()
        if self._family is not INGEST:
            with bounded():
                keys = repository.held_keys(UNKNOWN_MODULE, queue=queue)
            known = [key for key in keys if self._knows(key)]
            if (published := self._guardian.terms.published) is not None:
                published.find(known)
        is_more = False
        if self._family is INGEST:
            is_more = self._fetch_for_tasks(known) and self._fetch_size.was_full
        elif known:
            is_more = self._fetch_for_modules(known) > 0
        if self._job_runner.keeps_models:
            is_more |= self._fetch_for_models() > 0
        self._fetch_at = time.monotonic() + (_FETCH_MORE_S if is_more else _FETCH_EVERY_S)

    def _fetch_for_modules(self, known: list[str]) -> int:
        """All that waits for modules of ours, and some of what waits for a version of one, as `film@1`."""
        repository, fetched = self._worker_connection.repository(), 0
        names = [key for key in known if "@" not in key]
        versions = [key for key in known if "@" in key]
        few = LONGEST_PAGE if self._options.drain else _FETCHED_FOR_VERSIONS
        for keys, most in ((names, LONGEST_PAGE), (versions, few)):
            if keys:
                with self._guardian.holdings.bounded():
                    # Workers that do not know them may take them first, and put them aside again.
                    fetched += repository.promote_held(
                        UNKNOWN_MODULE, keys, queue=self._options.queue, limit=most
                    )
        return fetched

    def _fetch_for_tasks(self, known: list[str]) -> bool:
        """A page of what waits for our tasks; whether there was something."""
        fetch_size, had, now = self._fetch_size, self._had(), time.monotonic()
        if not known:
            fetch_size.fetched(0, had, now, math.inf)
            return False
        page = fetch_size.page(had, now)
        with self._guardian.holdings.bounded():
            found = self._worker_connection.repository().promote_held(
                UNKNOWN_TASK, known, queue=self._options.queue, limit=page
            )
        fetch_size.fetched(found, had, now, time.monotonic() - now)
        return found > 0

    def _had(self) -> int:
        return self._guardian.jobs_done + self._guardian.holdings.count()

    def fetch_more(self, now: float, *, at_last: bool = False) -> bool:
        """Having nothing to claim: whether something was fetched that waited for our tasks.

        `at_last` looks in any case: the worker would end.
        """
        if self._family is not INGEST or self._guardian.is_resting or not self.may_claim():
            return False
        is_due = self._fetch_size.is_due(self._had(), now)
        if not is_due and not at_last:
            return False
        if not is_due and (pause := self.fetch_in(now)) < math.inf:
            self._listener.wait(pause)
        if not at_last and self._guardian.poll.holds_nothing(UNKNOWN_TASK):
            self._fetch_size.fetched(0, self._had(), now, 0.0)
            return False
        try:
            return self._fetch_for_tasks(self._job_runner.task_names())
        except DATABASE_AWAY as exc:
            self._worker_connection.lost(exc)
            self._worker_connection.recover([])
            return False

    def fetch_in(self, now: float) -> float:
        """How many seconds until `fetch_more`, if others took what was fetched; infinite if none was."""
        return self._fetch_size.due_in(now)

    def _fetch_for_models(self) -> int:
        """Some of what waits for our models, each minute for all of them, and in between for the loaded ones.

        Workers that cannot load one may claim its jobs as soon as they are queued, and put them aside again:
        so few are fetched at a time, soon again until we have loaded another and while we are at that, and
        the first of them is our next job.
        """
        runner, affinity = self._job_runner, self._guardian.terms.affinity
        warm = runner.warm_models()
        is_for_all = (now := time.monotonic()) >= self._fetch_all_at or warm == self._warm_before
        if is_for_all:
            self._fetch_all_at = now + _FETCH_EVERY_S
        models = runner.loadable_models() if is_for_all else warm
        self._warm_before = None
        if not models:
            return 0
        most = LONGEST_PAGE if self._options.drain else _FETCHED_FOR_MODELS
        with self._guardian.holdings.bounded():
            fetched = self._worker_connection.repository().promote_held(
                UNKNOWN_MODEL, models, queue=self._options.queue, limit=most
            )
        if fetched and is_for_all:
            self._warm_before = warm
            if affinity is not None:
                affinity.look_for_the_oldest()
        return fetched

    def tidy(self) -> float:
        """Between two looks of an idle worker: in how many seconds it has to come again."""
        return min(
            max(self._job_runner.unload_idle(), 0.0), self._look_again_s, self.fetch_in(time.monotonic())
        )

    def must_fetch(self, now: float) -> bool:
        """Whether it is time to fetch what waits for a worker that knows it."""
        return now >= self._fetch_at

    def look_at_locks(self, now: float) -> None:
        """Look at locks if it is time: here, so that the next end and the next claim stay one question."""
        if self._locks.is_due(now):
            try:
                self._locks.look(now)
            except DATABASE_AWAY as exc:
                self._worker_connection.lost(exc)
                self._worker_connection.recover([])

    def must_ask(self, now: float) -> bool:
        """Whether it is time to `fetch_again`."""
        return not self._guardian.is_resting and (self.must_fetch(now) or self._locks.is_due(now))

    def fetch_again(self, now: float) -> bool:
        """Now and then: what a worker that does not know its task has put aside is not left to its delay.

        Whether a claim would bring something that nobody was woken for.
        """
        is_offered = False
        if not self.must_ask(now):
            return False
        try:
            is_offered = self._locks.look(now)
            if self.must_fetch(now):
                self.fetch_what_waited_for_us()
        except DATABASE_AWAY as exc:
            self._worker_connection.lost(exc)
            self._worker_connection.recover([])
        return is_offered

    def _is_bloated(self) -> bool:
        options = self._options
        if options.recycle_mb is None:
            return False
        now = time.monotonic()
        # What it takes before its first job it would take again.
        if self._guardian.jobs_done and now >= self._memory_at:
            self._memory_at = now + _MEMORY_EVERY_S
            self._is_large = self._memory().rss >> 20 >= options.recycle_mb
        return self._is_large

    def _knows(self, module: str) -> bool:
        self._guardian.main_at = time.monotonic()
        if self._guardian.wish is not None or self._guardian.stopping is not None:
            return False
        return self._job_runner.knows_module(module)
