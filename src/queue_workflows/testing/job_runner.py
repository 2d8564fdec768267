"""The worker's own job runner in a test: it keeps what functions raise, and knows modules of the test.

A job's limits of time are the worker's own verdicts; none of them ends the process that runs the tests.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from random import Random
from typing import Any, Final, Self

import psycopg

from queue_workflows import clock as time
from queue_workflows.config import current_config
from queue_workflows.engine.execution.callable import Work
from queue_workflows.engine.execution.context import JobContext
from queue_workflows.engine.execution.ending import for_good, outcome_of
from queue_workflows.engine.execution.executor import EventLoop
from queue_workflows.engine.execution.guards import (
    HeldJob,
    Verdict,
    next_verdict_at,
    overrun_in_words,
    verdict_on,
)
from queue_workflows.engine.execution.redaction import Redactor
from queue_workflows.engine.outcomes import Outcome
from queue_workflows.engine.registry.node_modules import ModuleResolver
from queue_workflows.gpu.cache import ModelCache
from queue_workflows.models import WorkflowRun
from queue_workflows.repositories.claims.end import Ending
from queue_workflows.repositories.sql.checks import PayloadLimits
from queue_workflows.roles.worker.common.run_job import JobRunner
from queue_workflows.settings import Settings

_OVERRUN: Final = (Verdict.WALL_CLOCK, Verdict.STALL, Verdict.MODEL_LOAD)
_LOOK_S: Final = 0.05


class TimeLimits:
    """Looks on while a job runs: asks it to stop when its time is used up, and then knows how it ends.

    An async function is cancelled; one that is not hears of it by `ctx`, and is waited for.
    """

    def __init__(self, held: HeldJob) -> None:
        self._held = held
        self._is_over = threading.Event()
        self._thread: threading.Thread | None = None
        self.outcome: Outcome | None = None

    def _look_on(self) -> None:
        held = self._held
        while not self._is_over.is_set():
            now = time.monotonic()
            verdict = verdict_on(held, now)
            if verdict is not None and verdict in _OVERRUN:
                self.outcome = outcome_of(verdict, held, now)
                if verdict is not Verdict.MODEL_LOAD:
                    held.overrun(verdict, overrun_in_words(verdict, held, now), held.end_at)
                return
            # It may say more of itself meanwhile: that it is silent from now on, or takes longer.
            self._is_over.wait(min(_LOOK_S, max(0.001, next_verdict_at(held) - now)))

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self._look_on, name="qwf-test-guard", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        if self._thread is not None:
            self._thread.join()


class LoopBesideTests:
    """An event loop for async jobs; in a thread of its own where the test itself runs on a loop."""

    def run(self, execution: Coroutine[Any, Any, Outcome]) -> Outcome:
        """Run one execution to its end."""
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return _run_here(execution)
        with ThreadPoolExecutor(1, thread_name_prefix="qwf-test-job") as thread:
            return thread.submit(_run_here, execution).result()


def _run_here(execution: Coroutine[Any, Any, Outcome]) -> Outcome:
    with EventLoop() as loop:
        return loop.run(execution)


class TestedJobRunner(JobRunner):
    """Runs jobs as a worker does; `raised` is what the function of the last one raised."""

    def __init__(
        self,
        settings: Settings,
        *,
        connected: Callable[[], psycopg.Connection[Any]],
        modules: Mapping[str, Any] | None = None,
        models: ModelCache | None = None,
    ) -> None:
        """`modules` are node modules or functions by name, asked before those of the host app."""
        super().__init__(
            settings,
            connected=connected,
            loop=LoopBesideTests(),
            limits=PayloadLimits(settings.payload_max_bytes, settings.payload_max_depth),
            redactor=Redactor(),
            rng=Random(),  # noqa: S311
            models=models,
        )
        if modules:
            self._modules = _modules_before(modules)
        self.raised: BaseException | None = None

    def run(self, held: HeldJob) -> Ending | None:
        """As in a worker; what used up its time has failed, whatever its function came to."""
        with TimeLimits(held) as limits:
            ending = super().run(held)
        if limits.outcome is None:
            return ending
        self.raised = None
        return self._ending_of(for_good(limits.outcome, held.ctx), held.job)

    def _executed(self, held: HeldJob, work: Work, run: WorkflowRun | None) -> Outcome:
        self.raised = None
        return super()._executed(held, replace(work, call=self._noting(work)), run)

    def _noting(self, work: Work) -> Callable[[Any, JobContext], Any]:
        def call(job: Any, ctx: JobContext) -> Any:
            try:
                value = work.call(job, ctx)
            except BaseException as raised:
                self.raised = raised
                raise
            return self._awaited(value) if work.is_async else value

        return call

    async def _awaited(self, value: Awaitable[Any]) -> Any:
        try:
            return await value
        except BaseException as raised:
            self.raised = raised
            raise


def _modules_before(modules: Mapping[str, Any]) -> ModuleResolver:
    config = current_config()

    def resolve(name: str) -> Any:
        found = modules.get(name)
        if found is not None or config.node_resolver is None:
            return found
        return config.node_resolver(name)

    return ModuleResolver(resolver=resolve, package=config.node_module_package)
