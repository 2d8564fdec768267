"""The worker's own job runner in a test: it keeps what functions raise, and knows modules of the test."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from random import Random
from typing import Any

import psycopg

from queue_workflows.config import current_config
from queue_workflows.engine.execution.callable import Work
from queue_workflows.engine.execution.context import JobContext
from queue_workflows.engine.execution.executor import EventLoop
from queue_workflows.engine.execution.guards import HeldJob
from queue_workflows.engine.execution.redaction import Redactor
from queue_workflows.engine.outcomes import Outcome
from queue_workflows.engine.registry.node_modules import ModuleResolver
from queue_workflows.models import WorkflowRun
from queue_workflows.repositories.sql.checks import PayloadLimits
from queue_workflows.roles.worker.common.run_job import JobRunner
from queue_workflows.settings import Settings


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
    ) -> None:
        """`modules` are node modules or functions by name, asked before those of the host app."""
        super().__init__(
            settings,
            connected=connected,
            loop=LoopBesideTests(),
            limits=PayloadLimits(settings.payload_max_bytes, settings.payload_max_depth),
            redactor=Redactor(),
            rng=Random(),  # noqa: S311
        )
        if modules:
            self._modules = _modules_before(modules)
        self.raised: BaseException | None = None

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
