"""What a worker does with one claimed job: finds its function, runs it, and says how the row is to end."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from json import loads
from operator import attrgetter
from random import Random
from typing import TYPE_CHECKING, Any, Final, Protocol

import psycopg

from queue_workflows import clock as time
from queue_workflows.config import current_config
from queue_workflows.db.connections.exhaustion import is_exhausted, is_of_this_process, is_refused_a_thread
from queue_workflows.db.connections.failures import DATABASE_AWAY
from queue_workflows.engine.execution.callable import Work
from queue_workflows.engine.execution.context import JobContext
from queue_workflows.engine.execution.ending import ending_instead, ending_of, for_good
from queue_workflows.engine.execution.error_capture import captured
from queue_workflows.engine.execution.executor import (
    Loop,
    ended_from_outside,
    execute,
    is_the_users_own,
    perform,
)
from queue_workflows.engine.execution.guards import HeldJob
from queue_workflows.engine.execution.redaction import Redactor
from queue_workflows.engine.node_inputs.loaded_model import UNKNOWN_MODEL, on_loaded_model, unload_idle_for
from queue_workflows.engine.node_inputs.resolved_inputs import KeptInputs, on_resolved_inputs
from queue_workflows.engine.outcomes import Abandoned, Failed, OnHold, Outcome, Released
from queue_workflows.engine.registry.node_modules import UNKNOWN_MODULE, ModuleResolver
from queue_workflows.engine.registry.tasks import UNKNOWN_TASK, backoff_of, current_tasks
from queue_workflows.errors import LeaseLost, QwfError
from queue_workflows.gpu.cache import ModelCache
from queue_workflows.repositories.claims.end import Ending
from queue_workflows.repositories.runs.runs import RunRepository
from queue_workflows.repositories.sql.checks import PayloadLimits
from queue_workflows.repositories.sql.claimed_job import ClaimedIngestJob, ClaimedJob, ClaimedNodeJob
from queue_workflows.settings import Settings

if TYPE_CHECKING:
    from queue_workflows.hooks.attempt.runner import HookRunner
    from queue_workflows.models import WorkflowRun

_log = logging.getLogger(__name__)

# How long a job waits that this process does not know how to run; a worker that knows it fetches it within a
# minute. A short one would have workers that do not know a million of them put them aside all the time.
UNKNOWN_DELAY_S: Final = 3600.0
_TASK_NAME: Final = attrgetter("task_name")
# Outcomes of attempts after which the job waits as it did before.
_NO_JOBS_WORTH: Final = (Released, OnHold)


class Apart(Protocol):
    """Does off the event loop what waits for the database, and to its end."""

    async def __call__(self, work: Callable[[], None], /) -> None: ...


class JobRunner:
    """Knows what the host app wired in; `has_loaded` tells whether some of it may stay in this process."""

    def __init__(
        self,
        settings: Settings,
        *,
        connected: Callable[[], psycopg.Connection[Any]],
        loop: Loop | None,
        limits: PayloadLimits,
        redactor: Redactor,
        rng: Random,
        models: ModelCache | None = None,
        hooks: HookRunner | None = None,
        ask: Callable[[ClaimedJob, Callable[[psycopg.Connection[Any]], Any]], Any] | None = None,
    ) -> None:
        """Async jobs run on `loop`, but for those of `run_on_loop`.

        `models` are kept by a worker of the queue `gpu`, `hooks` runs those of one of `hooks`.

        `ask` puts a question for a node job that runs in another thread than the one of `connected`.
        """
        self._connected = connected
        self._loop = loop
        self._limits = limits
        self._redactor = redactor
        self._rng = rng
        self._models = models
        self._hooks = hooks
        self._inputs = None if hooks is None else KeptInputs()
        self._ask = ask or (lambda _job, question: question(connected()))
        self._load_timeout_s = settings.model_load_timeout_s
        self._backoff = backoff_of(settings)
        self._modules = ModuleResolver.of(current_config())
        self._invoke_context = current_config().invoke_context
        self._host_refs = current_config().ref_resolver
        self._tasks = current_tasks()
        self._last_run: WorkflowRun | None = None
        self.has_loaded = False

    def run(self, held: HeldJob) -> Ending | None:
        """Run the job's function here and now, or put the job aside for a worker that knows it.

        What to write for the attempt, None if there is nothing to write; a job's worth `counts` from now on.
        Raises that the database is away, before the function has begun. Whatever else is in the way then ends
        the attempt: for good where the row, or its run's, holds what cannot be read, and as any failed
        attempt where something of the host app's raised.
        """
        job, ctx = held.job, held.ctx
        try:
            return self._ending_of(for_good(self._outcome_of(held), ctx), job)
        except BaseException as exc:
            if is_the_users_own(exc) or _is_away(exc):
                raise
            return self._not_begun(exc, job, ctx)
        finally:
            if self._models is not None:
                # What the function leaves of its context must not keep a model that is unloaded.
                ctx.model = None
                self._models.used()

    async def run_on_loop(self, held: HeldJob, apart: Apart) -> Ending | None:
        """`run` for an async ingest job, on a loop that it shares; `apart` does there what has to wait.

        All that it takes is done in this one coroutine: each further one is kept for each job that waits.
        """
        job, ctx = held.job, held.ctx
        try:
            work = self._tasks.find(job.task_name) if isinstance(job, ClaimedIngestJob) else None
            if work is None:
                return self._ending_of(self._outcome_of(held), job)
            self.has_loaded = True
            if ctx.stopping is None and ctx.must_be_begun(work.rules):
                await apart(partial(ctx.begin, work.rules))
            if work.survives_outage:
                ctx.survives_outage = True
            limits, redactor = self._limits, self._redactor
            outcome = await perform(
                job, work, ctx, invoke_context=self._invoke_context, limits=limits, redactor=redactor
            )
            held.counts = not isinstance(outcome, _NO_JOBS_WORTH)
            return self._ending_of(for_good(outcome, ctx), job)
        except LeaseLost:
            return None
        except asyncio.CancelledError as cancelled:
            return self.ended_from_outside(cancelled, job, ctx)
        except BaseException as exc:
            if is_the_users_own(exc) or _is_away(exc):
                raise
            return self._not_begun(exc, job, ctx)

    def ended_from_outside(self, exc: BaseException, job: ClaimedJob, ctx: JobContext) -> Ending | None:
        """How a job on a loop ends that was ended where its function could not hear of it."""
        ctx.close()
        return self._ending_of(for_good(ended_from_outside(exc, ctx, self._redactor), ctx), job)

    def _not_begun(self, exc: BaseException, job: ClaimedJob, ctx: JobContext) -> Ending | None:
        entry = captured(exc, self._redactor)
        # Not by the exception itself: to look at one may raise anything.
        said = " ".join(loads(entry)["message"].split())
        _log.error("job %d cannot be run: %s: %s", job.id, type(exc).__name__, said)
        if isinstance(exc, psycopg.Error | QwfError):
            return ending_instead(exc, job, entry, for_good=ctx.has_begun_for_good)
        return self._ending_of(for_good(Failed(entry, retryable=True), ctx), job)

    def _outcome_of(self, held: HeldJob) -> Outcome:
        job, ctx = held.job, held.ctx
        if isinstance(job, ClaimedIngestJob):
            task = self._tasks.find(job.task_name)
            if task is None:
                return _unknown(UNKNOWN_TASK, job.task_name)
            self.has_loaded = True
            return self._executed(held, task, None)
        work, reason, key = self._look_up(job)
        if work is None:
            if self._hooks is not None and isinstance(job, ClaimedNodeJob):
                self._hooks.let_go(job)
            return _unknown(reason, key)
        self.has_loaded = True
        run = self._run_of(job)
        if isinstance(job, ClaimedNodeJob):
            if self._models is not None:
                unload_idle_for(job.required_model, ctx, self._models, time.monotonic)
            if job.survives_outage:
                work = replace(work, survives_outage=True)
            work = on_resolved_inputs(work, job, partial(self._ask, job), self._host_refs, self._inputs)
            if (model := job.required_model) is not None and (models := self._models) is not None:
                if not models.can_load(model):
                    return _unknown(UNKNOWN_MODEL, model)
                work = on_loaded_model(
                    work, model, ctx, models, timeout_s=self._load_timeout_s, clock=time.monotonic
                )
        return self._executed(held, work, run)

    def _executed(self, held: HeldJob, work: Work, run: WorkflowRun | None) -> Outcome:
        job, ctx = held.job, held.ctx
        if ctx.stopping is None and ctx.must_be_begun(work.rules):
            try:
                ctx.begin(work.rules)
            except LeaseLost:
                return Abandoned()
        if work.survives_outage:
            ctx.survives_outage = True
        outcome = execute(
            job,
            work,
            ctx,
            invoke_context=self._invoke_context,
            run=run,
            loop=self._loop,
            limits=self._limits,
            redactor=self._redactor,
        )
        held.counts = not isinstance(outcome, _NO_JOBS_WORTH)
        return outcome

    def sort(self, jobs: Sequence[ClaimedJob]) -> tuple[set[str], set[str]]:
        """Of these jobs, of one family, the tasks that this process does not know, and those for the loop."""
        if not jobs or not isinstance(jobs[0], ClaimedIngestJob):
            return set(), set()
        found = {name: self._tasks.find(name) for name in set(map(_TASK_NAME, jobs))}
        unknown = {name for name, work in found.items() if work is None}
        return unknown, {name for name, work in found.items() if work is not None and work.is_async}

    def put_aside(self, job: ClaimedIngestJob) -> Ending | None:
        """How a job ends if this process does not know its task."""
        return self._ending_of(_unknown(UNKNOWN_TASK, job.task_name), job)

    def failed(self, exc: BaseException, job: ClaimedJob, ctx: JobContext) -> Ending | None:
        """How a job ends that something unforeseen came across: a failure that counts, else it had no end."""
        failed = Failed(captured(exc, self._redactor), retryable=True)
        return self._ending_of(for_good(failed, ctx), job)

    def not_run(self, job: ClaimedJob, ctx: JobContext) -> Ending | None:
        """How a job ends if its function could not begin."""
        return self._ending_of(for_good(Released("the database was away"), ctx), job)

    def task_names(self) -> list[str]:
        """The ingest tasks that this process can run."""
        return self._tasks.names()

    def knows_module(self, module: str) -> bool:
        """Whether this process can run such a node; to find out is to import it."""
        self.has_loaded = True
        if self._hooks is not None:
            return self._hooks.knows(module)
        return self._modules.knows(module)

    @property
    def keeps_models(self) -> bool:
        """Whether jobs get their models here."""
        return self._models is not None

    def loadable_models(self) -> list[str]:
        """The models that this process can load."""
        return [] if self._models is None else self._models.loadable()

    def warm_models(self) -> list[str]:
        """The models that this process has loaded."""
        return [] if self._models is None else list(self._models.names)

    def unload_idle(self) -> float:
        """Unload what was kept long enough; in how many seconds there is something to unload again."""
        if self._models is None:
            return math.inf
        self._models.unload_idle()
        return self._models.next_unload_at() - time.monotonic()

    def unload_all(self) -> None:
        """Keep no model."""
        if self._models is not None:
            self._models.unload_all()

    def _ending_of(self, outcome: Outcome, job: ClaimedJob) -> Ending | None:
        return ending_of(outcome, job, self._backoff, self._rng.random())

    def _look_up(self, job: ClaimedJob) -> tuple[Work | None, str, str | None]:
        assert isinstance(job, ClaimedNodeJob)  # noqa: S101 - there are two families
        if self._hooks is not None:
            return self._hooks.work(job), UNKNOWN_MODULE, f"{job.plugin}/{job.node_module}"
        return self._modules.find(job.node_module), UNKNOWN_MODULE, job.node_module

    def _run_of(self, job: ClaimedJob) -> WorkflowRun | None:
        """The run of a node job, for a host app that puts a context around its jobs."""
        if self._invoke_context is None or not isinstance(job, ClaimedNodeJob):
            return None
        run_id, known = job.run_id, self._last_run
        run: WorkflowRun | None = self._ask(job, lambda conn: RunRepository(conn).fetch(run_id, known=known))
        # For the next one alone: another thread of a worker of hooks may put its own there at once.
        self._last_run = run
        return run


def _is_away(exc: BaseException) -> bool:
    """Whether the database is away, or this process is used up; a file of the host app's is neither."""
    is_a_files = isinstance(exc, OSError) and is_of_this_process(exc) and not is_exhausted(exc)
    return is_refused_a_thread(exc) or (isinstance(exc, DATABASE_AWAY) and not is_a_files)


def _unknown(reason: str, key: str | None) -> OnHold:
    """What a job comes to that this process does not know how to run."""
    return OnHold(UNKNOWN_DELAY_S, reason, key)
