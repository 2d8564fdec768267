"""Runs what is queued in the test's own process: the worker's claim, execution and end, without its guards.

    promote what is due ──> advance runs ──> claim ──> run ──> end ──> … until nothing is left

On a psycopg connection in autocommit it is all that workers and an orchestrator do: slots and locks are
taken, runs are advanced. In a transaction of the caller's, such as a Session's, only ingest jobs are claimed
and ended, in that transaction; limits and locks are left aside, for these need commits.
No lease is renewed, and nothing ends a job that hangs without being async: that is for the test runner's own
timeout. Models are those that the test gives, or else the application's, loaded once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final, Protocol

import psycopg
from psycopg.pq import TransactionStatus

from queue_workflows import clock as time
from queue_workflows.config import GPU_QUEUE, HOOKS_QUEUE, RESERVED_QUEUES, current_config, effective_settings
from queue_workflows.engine.execution.context import JobContext
from queue_workflows.engine.execution.guards import HeldJob, budget_for, budget_of
from queue_workflows.engine.execution.redaction import Redactor
from queue_workflows.engine.limits.wait_loop import DatabaseCalls
from queue_workflows.engine.limits.windows import Windows
from queue_workflows.engine.node_inputs.loaded_model import UNKNOWN_MODEL
from queue_workflows.engine.runs.dispatcher import Dispatcher
from queue_workflows.engine.runs.finished_run_hooks import deliver
from queue_workflows.engine.upkeep.tick import sweep
from queue_workflows.errors import ConfigurationError, LeaseLost
from queue_workflows.gpu.cache import ModelCache
from queue_workflows.gpu.models import ModelRegistry, ModelSpec
from queue_workflows.repositories.claims.begins import Rules, begin
from queue_workflows.repositories.claims.end import Ended, Ending
from queue_workflows.repositories.due_times import DueTimeRepository
from queue_workflows.repositories.jobs.ingest import IngestJobRepository
from queue_workflows.repositories.jobs.nodes import NodeJobRepository
from queue_workflows.repositories.runs.parked import ParkedJobRepository
from queue_workflows.repositories.sql.claimed_job import ClaimedIngestJob, ClaimedJob
from queue_workflows.repositories.sql.connection import Handle
from queue_workflows.repositories.sql.families import INGEST
from queue_workflows.repositories.sql.low_water_marks import Marks
from queue_workflows.roles.identity import Identity
from queue_workflows.roles.worker.claims.session import ClaimSession
from queue_workflows.roles.worker.claims.terms import ClaimTerms
from queue_workflows.roles.worker.common.lifecycle import family_of
from queue_workflows.settings import Settings
from queue_workflows.states import JobFamily, JobStatus
from queue_workflows.testing.job_runner import TestedJobRunner
from queue_workflows.testing.outcome import JobOutcome, name_of, outcome_of
from queue_workflows.workflow.document.load import Document
from queue_workflows.workflow.providing import find_document

# So long that a test need not renew it, also one in which somebody looks around with a debugger.
_LEASE_S: Final = 86_400.0
MOST: Final = 1_000
# The clock is moved a little further than to the moment at which something is due.
_BEYOND_S: Final = 0.001


def drain(
    *,
    conn: Handle,
    queues: Collection[str] | None = None,
    with_scheduled: bool = False,
    raises: bool = False,
    modules: Mapping[str, Any] | None = None,
    models: Mapping[str, Any] | None = None,
    most: int = MOST,
) -> list[JobOutcome]:
    """Run what is queued, and what that enqueues, here and now until nothing is left; what became of it.

    With `with_scheduled` the clock is moved over delays, retries and waits. With `raises` the first failure
    is raised. For workflows `modules` are node modules or functions by name, and `models` what nodes get as
    their `model`. Hooks are not run: where any wait it says so, unless `queues` names others. After `most`
    attempts it gives up.
    """
    worker = LocalWorker(conn, queues=queues, modules=modules, models=models)
    return worker.run_all(with_scheduled=with_scheduled, raises=raises, most=most)


class Claims(Protocol):
    """Where jobs are claimed and ended."""

    def claim(self, marks: Marks, now: float, *, alone: bool) -> list[ClaimedJob]:
        """The next job, if there is one."""

    def end(self, endings: Sequence[Ending]) -> Ended:
        """Write the ends of attempts."""


class _ClaimsInTransaction:
    """Claims and ends by the repository alone, in the caller's transaction; for ingest jobs."""

    def __init__(self, terms: ClaimTerms, conn: Handle) -> None:
        self._terms = terms
        self._repository = IngestJobRepository(conn, payload_limits=terms.limits)

    def claim(self, marks: Marks, now: float, *, alone: bool) -> list[ClaimedJob]:
        del marks, now
        terms = self._terms
        jobs = self._repository.claim(
            terms.queue, worker_id=terms.worker_id, lease_s=terms.lease_s, alone=alone
        )
        return list[ClaimedJob](jobs)

    def end(self, endings: Sequence[Ending]) -> Ended:
        return self._repository.end_many(endings)


class LocalWorker:
    """Works off queues on one connection, in the thread that asks."""

    def __init__(
        self,
        conn: Handle,
        *,
        queues: Collection[str] | None = None,
        modules: Mapping[str, Any] | None = None,
        models: Mapping[str, Any] | None = None,
        find: Callable[[str], Document] = find_document,
    ) -> None:
        config = current_config()
        self._conn = conn
        self._own = own_of(conn)
        self._settings = effective_settings()
        known = config.ingest_queues | (RESERVED_QUEUES - {HOOKS_QUEUE} if self._own is not None else set())
        self._queues = sorted(known if queues is None else queues)
        self._refuses_hooks = queues is None and self._own is not None
        self._runner = TestedJobRunner(self._settings, connected=self._connected, modules=modules)
        self._models = ModelCache(
            ModelRegistry(lambda: _specs(models or {})),
            queue=GPU_QUEUE,
            budget_mb=None,
            keep_s=_LEASE_S,
            clock=time.monotonic,
        )
        self._gpu_runner = TestedJobRunner(
            self._settings, connected=self._connected, modules=modules, models=self._models
        )
        self._terms = {queue: self._terms_of(queue) for queue in self._queues}
        self._claims = {queue: self._claims_on(terms) for queue, terms in self._terms.items()}
        self._due = DueTimeRepository(conn)
        self._dispatcher = None if self._own is None else _dispatcher(self._own, self._settings, find)
        self.waited_s = 0.0

    def run_all(self, *, with_scheduled: bool, raises: bool, most: int) -> list[JobOutcome]:
        """Run attempts until nothing is left, and give up after so many."""
        try:
            outcomes = self._outcomes(with_scheduled=with_scheduled, raises=raises, most=most)
        finally:
            self._models.unload_all()
        if self._refuses_hooks and (waiting := self._waiting_hooks()):
            raise ConfigurationError(
                f"{waiting} jobs of hooks are queued, and hooks are not run here",
                advice="`qwf hooks run EVENT --here` runs them; queues=… names what to run beside them",
            )
        return outcomes

    def _outcomes(self, *, with_scheduled: bool, raises: bool, most: int) -> list[JobOutcome]:
        outcomes: list[JobOutcome] = []
        for outcome in self._attempts(with_scheduled=with_scheduled):
            outcomes.append(outcome)
            if raises:
                outcome.raise_failure()
            if len(outcomes) >= most:
                raise ConfigurationError(
                    f"{most} attempts were run and there is no end, the last of {outcome.name!r:.80}",
                    advice="look at what enqueues itself or asks to be run again, or give most=…",
                )
        return outcomes

    def _attempts(self, *, with_scheduled: bool) -> Iterator[JobOutcome]:
        """Run attempts until nothing is left that is due; each as soon as its end is written."""
        while True:
            moved, ran = self._upkeep(), False
            for queue in self._queues:
                for outcome in self._worked_off(queue):
                    ran = True
                    yield outcome
            if not (moved or ran or (with_scheduled and self._to_next_due())):
                return

    def _to_next_due(self) -> bool:
        """Move the clock to what is due next, if anything is."""
        seconds = self._due.next_in_s()
        if seconds is None:
            return False
        self._due.advance(seconds + _BEYOND_S)
        self.waited_s += seconds
        return True

    def _upkeep(self) -> bool:
        """What no worker has to be there for: what is due is queued, what lapsed ends, runs go on."""
        if self._own is None or self._dispatcher is None:
            return bool(IngestJobRepository(self._conn).promote())
        promoted = sweep(self._own, self._settings, recovered_s=None, chance=lambda: 1.0).promoted
        expired = ParkedJobRepository(self._own).expire().ended
        moved = self._dispatcher.turn()
        if self._dispatcher.has_ended_runs:
            deliver(self._own, current_config().run_finished_hooks, self._settings, Redactor())
        return bool(promoted or expired or moved or self._dispatcher.has_more)

    def _worked_off(self, queue: str) -> Iterator[JobOutcome]:
        marks = Marks(self._settings.poll_s)
        while jobs := self._claims[queue].claim(marks, time.monotonic(), alone=True):
            for job in jobs:
                yield self._run(job)
            marks.unsure()

    def _waiting_hooks(self) -> int:
        return NodeJobRepository(self._conn).counts().get(HOOKS_QUEUE, {}).get(JobStatus.QUEUED, 0)

    def _run(self, job: ClaimedJob) -> JobOutcome:
        held = self._held(job)
        runner = self._gpu_runner if job.queue == GPU_QUEUE else self._runner
        ending = runner.run(held)
        if ending is None:
            raise LeaseLost(job.family, job.id, job.attempt)
        repository = self._repository(job)
        if (last_words := held.ctx.take_progress(now=time.monotonic(), final=True)) is not None:
            repository.beat_many([(job.fence, last_words)])
        ended = self._claims[job.queue].end([ending])
        if ended.lost:
            raise LeaseLost(job.family, job.id, job.attempt)
        if ending.hold_reason == UNKNOWN_MODEL:
            raise ConfigurationError(
                f"{name_of(job)} wants the model {ending.hold_key!r:.80}, and nobody knows it",
                advice="give models={name: object}, or wire the application's by set_model_registrar",
            )
        return outcome_of(job, ending, ended.statuses[job.id], runner.raised)

    def _held(self, job: ClaimedJob) -> HeldJob:
        context = JobContext(
            job,
            family=family_of(job.queue).title,
            make_durable=self._make_durable,
            windows=self._windows(job),
        )
        family = JobFamily(family_of(job.queue).name)
        budget = budget_for(job, budget_of(job.queue, family, self._settings))
        return HeldJob(job, context, budget, time.monotonic(), math.inf)

    def _make_durable(self, job: ClaimedJob, rules: Rules | None = None, /) -> bool:
        try:
            if rules is not None:
                begin(self._conn, job, rules, lease_s=_LEASE_S)
            else:
                self._repository(job).make_durable(job.fence, lease_s=_LEASE_S)
        except LeaseLost:
            return False
        return True

    def _repository(self, job: ClaimedJob) -> IngestJobRepository | NodeJobRepository:
        kind = IngestJobRepository if isinstance(job, ClaimedIngestJob) else NodeJobRepository
        return kind(self._conn)

    def _windows(self, job: ClaimedJob) -> Windows | None:
        """What `ctx` needs for rates and windows; only a connection of our own can commit them."""
        if self._own is None:
            return None
        own, terms = self._own, self._terms[job.queue]
        return Windows(
            DatabaseCalls(lambda _job, question: question(own)), terms.kept, terms.locks, lease_s=_LEASE_S
        )

    def _connected(self) -> psycopg.Connection[Any]:
        if self._own is None:
            raise ConfigurationError(
                "a node of a workflow runs on a psycopg connection in autocommit alone",
                advice="take the fixture qwf_jobs, or commit first",
            )
        return self._own

    def _claims_on(self, terms: ClaimTerms) -> Claims:
        return (
            _ClaimsInTransaction(terms, self._conn) if self._own is None else ClaimSession(terms, self._own)
        )

    def _terms_of(self, queue: str) -> ClaimTerms:
        family = family_of(queue)
        if queue == HOOKS_QUEUE or (self._own is None and family is not INGEST):
            raise ConfigurationError(
                f"jobs of {queue!r:.80} cannot be run here",
                advice="hooks need a worker; workflows need a psycopg connection in autocommit",
            )
        kind = IngestJobRepository if family is INGEST else NodeJobRepository
        identity = Identity.take(self._settings.host_label, queue)
        return replace(ClaimTerms.of(identity, self._settings, kind), lease_s=_LEASE_S)


def _specs(models: Mapping[str, Any]) -> list[ModelSpec]:
    """What the test gives, and of the application's registrar what it did not."""
    given = [ModelSpec(name, load=partial(_same, model)) for name, model in models.items()]
    registrar = current_config().model_registrar
    known = [] if registrar is None else [spec for spec in registrar() if spec.name not in models]
    return [*given, *known]


def _same(model: Any) -> Any:
    return model


def own_of(conn: Handle) -> psycopg.Connection[Any] | None:
    """The connection, where each statement is a transaction of its own, as on a worker's."""
    if not isinstance(conn, psycopg.Connection) or not conn.autocommit:
        return None
    return conn if conn.info.transaction_status == TransactionStatus.IDLE else None


def _dispatcher(
    own: psycopg.Connection[Any], settings: Settings, find: Callable[[str], Document]
) -> Dispatcher:
    return Dispatcher(own, settings, host=current_config().ref_resolver, find_document=find)
