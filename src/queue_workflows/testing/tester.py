"""All the helpers for one database that is a test's own, for sync tests and for async ones."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, TypedDict, Unpack

import psycopg

from queue_workflows.db.connections.engine import Database
from queue_workflows.engine.registry.ingest_task import IngestTask
from queue_workflows.models import IngestJob
from queue_workflows.repositories.due_times import DueTimeRepository
from queue_workflows.testing.enqueued import TaskName, all_enqueued, assert_enqueued, refute_enqueued
from queue_workflows.testing.inline_mode import inline
from queue_workflows.testing.local_worker import drain
from queue_workflows.testing.outcome import JobOutcome, RunOutcome
from queue_workflows.testing.task_call import perform
from queue_workflows.testing.workflow_run import run_workflow
from queue_workflows.workflow.document.load import Document

WorkflowSource = str | Document | Mapping[str, Any] | Path


class EnqueuedOptions(TypedDict, total=False):
    """What `assert_enqueued` and its siblings may be told of a job."""

    args: Mapping[str, Any] | None
    args__contains: Mapping[str, Any] | None
    queue: str | None
    dedupe_key: str | None
    priority: int | None
    after: int | None


class DrainOptions(TypedDict, total=False):
    """What `drain` may be told."""

    queues: Collection[str] | None
    with_scheduled: bool
    raises: bool
    modules: Mapping[str, Any] | None
    models: Mapping[str, Any] | None
    most: int


class RunOptions(TypedDict, total=False):
    """What `run_workflow` may be told."""

    answers: Mapping[str, Mapping[str, Any]] | None
    documents: Mapping[str, Mapping[str, Any] | Path] | None
    models: Mapping[str, Any] | None
    moves_clock: bool
    raises: bool
    most: int


class PerformOptions(TypedDict, total=False):
    """What `perform` may be told."""

    reason: str | None
    attempt: int
    max_attempts: int | None
    raises: bool


class JobTester:
    """The helpers of `queue_workflows.testing` on `conn`, a connection in autocommit to a test's database."""

    def __init__(self, database: Database) -> None:
        self.conn: psycopg.Connection[Any] = database.connect(autocommit=True, hot=True)

    def close(self) -> None:
        """Let go of the connection."""
        self.conn.close()

    def all_enqueued(
        self, task: TaskName | None = None, **options: Unpack[EnqueuedOptions]
    ) -> list[IngestJob]:
        """The jobs that wait, in the order in which they were enqueued."""
        return all_enqueued(task, conn=self.conn, **options)

    def assert_enqueued(
        self, task: TaskName | None = None, *, within: float = 0.0, **options: Unpack[EnqueuedOptions]
    ) -> IngestJob:
        """Assert that such a job waits, or is enqueued `within` so many seconds; the first that does."""
        return assert_enqueued(task, conn=self.conn, within=within, **options)

    def refute_enqueued(
        self, task: TaskName | None = None, *, within: float = 0.0, **options: Unpack[EnqueuedOptions]
    ) -> None:
        """Assert that no such job waits, nor is enqueued `within` so many seconds."""
        refute_enqueued(task, conn=self.conn, within=within, **options)

    def drain(self, **options: Unpack[DrainOptions]) -> list[JobOutcome]:
        """Run what is queued, and what that enqueues, until nothing is left; what became of it."""
        return drain(conn=self.conn, **options)

    def perform(
        self,
        task: IngestTask[..., Any] | str,
        args: Mapping[str, Any] | None = None,
        **options: Unpack[PerformOptions],
    ) -> JobOutcome:
        """Run a task's function once, as a worker does."""
        return perform(task, args, **options)

    def inline(self, *, raises: bool = True) -> AbstractContextManager[list[JobOutcome]]:
        """Run each ingest job as it is enqueued, in its caller's transaction."""
        return inline(raises=raises)

    def run_workflow(
        self,
        workflow: WorkflowSource,
        inputs: Mapping[str, Any] | None = None,
        modules: Mapping[str, Any] | None = None,
        **options: Unpack[RunOptions],
    ) -> RunOutcome:
        """Start a run and take it to its end."""
        return run_workflow(workflow, inputs, modules, conn=self.conn, **options)

    def advance(self, by: float | timedelta) -> None:
        """Let seconds pass: all that waits in the database is due so much earlier."""
        seconds = by.total_seconds() if isinstance(by, timedelta) else by
        DueTimeRepository(self.conn).advance(seconds)

    def clear(self) -> None:
        """Delete all jobs and runs."""
        DueTimeRepository(self.conn).empty()


class AsyncJobTester:
    """`JobTester` for async tests: each method is awaited, and the test's loop goes on meanwhile."""

    def __init__(self, tester: JobTester) -> None:
        self._tester = tester
        self.conn = tester.conn

    async def all_enqueued(
        self, task: TaskName | None = None, **options: Unpack[EnqueuedOptions]
    ) -> list[IngestJob]:
        """The jobs that wait, in the order in which they were enqueued."""
        return await asyncio.to_thread(self._tester.all_enqueued, task, **options)

    async def assert_enqueued(
        self, task: TaskName | None = None, *, within: float = 0.0, **options: Unpack[EnqueuedOptions]
    ) -> IngestJob:
        """Assert that such a job waits, or is enqueued `within` so many seconds; the first that does."""
        return await asyncio.to_thread(self._tester.assert_enqueued, task, within=within, **options)

    async def refute_enqueued(
        self, task: TaskName | None = None, *, within: float = 0.0, **options: Unpack[EnqueuedOptions]
    ) -> None:
        """Assert that no such job waits, nor is enqueued `within` so many seconds."""
        await asyncio.to_thread(self._tester.refute_enqueued, task, within=within, **options)

    async def drain(self, **options: Unpack[DrainOptions]) -> list[JobOutcome]:
        """Run what is queued, and what that enqueues, until nothing is left; what became of it."""
        return await asyncio.to_thread(self._tester.drain, **options)

    async def perform(
        self,
        task: IngestTask[..., Any] | str,
        args: Mapping[str, Any] | None = None,
        **options: Unpack[PerformOptions],
    ) -> JobOutcome:
        """Run a task's function once, as a worker does."""
        return await asyncio.to_thread(self._tester.perform, task, args, **options)

    def inline(self, *, raises: bool = True) -> AbstractContextManager[list[JobOutcome]]:
        """Run each ingest job as it is enqueued, in its caller's transaction; not awaited."""
        return self._tester.inline(raises=raises)

    async def run_workflow(
        self,
        workflow: WorkflowSource,
        inputs: Mapping[str, Any] | None = None,
        modules: Mapping[str, Any] | None = None,
        **options: Unpack[RunOptions],
    ) -> RunOutcome:
        """Start a run and take it to its end."""
        return await asyncio.to_thread(self._tester.run_workflow, workflow, inputs, modules, **options)

    async def advance(self, by: float | timedelta) -> None:
        """Let seconds pass: all that waits in the database is due so much earlier."""
        await asyncio.to_thread(self._tester.advance, by)

    async def clear(self) -> None:
        """Delete all jobs and runs."""
        await asyncio.to_thread(self._tester.clear)


@contextmanager
def job_tester(database: Database) -> Iterator[JobTester]:
    """A tester of a database that it empties first, closed at the end."""
    tester = JobTester(database)
    try:
        tester.clear()
        yield tester
    finally:
        tester.close()
