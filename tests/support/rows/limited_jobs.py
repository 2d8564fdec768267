"""Jobs that keep to limits, without a worker around them: contexts whose questions a real server answers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
from support.rows.claimed_jobs import context, ingest_job

from queue_workflows.engine.execution.context import JobContext
from queue_workflows.engine.limits.held_host_locks import KeptLocks
from queue_workflows.engine.limits.held_slots import KeptSlots
from queue_workflows.engine.limits.wait_loop import DatabaseCalls, Question
from queue_workflows.engine.limits.windows import Windows
from queue_workflows.repositories.sql.claimed_job import ClaimedJob


class LimitedJobs:
    """Contexts of one process; `held_up` is called before each question, on the thread that asks it."""

    def __init__(
        self, connection: psycopg.Connection[Any], worker: str = "host:fetch:1", lock_dir: Path | None = None
    ) -> None:
        self.connection = connection
        self.worker = worker
        self.kept = KeptSlots()
        self.held_up: Callable[[], None] = lambda: None
        self.asked = 0
        self.windows = Windows(DatabaseCalls(self._ask), self.kept, KeptLocks(lock_dir), lease_s=600)
        self._in_line = threading.Lock()
        self._last = 0

    def ctx(self, **changes: Any) -> JobContext:
        """The context of another job."""
        return self.ctx_of(ingest_job, **changes)

    def ctx_of(self, kind: Callable[..., ClaimedJob], **changes: Any) -> JobContext:
        """The same for a kind of job."""
        self._last += 1
        return context(kind(id=self._last, claimed_by=self.worker, **changes), windows=self.windows)

    def taken(self) -> list[tuple[str, int]]:
        """The slots that are held, each with the job that holds it."""
        return self.connection.execute(
            "SELECT limit_key, job_id FROM limit_slots WHERE lease_expires_at > now() ORDER BY 1, 2"
        ).fetchall()

    def _ask(self, job: Any, question: Question) -> Any:
        self.held_up()
        with self._in_line:
            self.asked += 1
            return question(self.connection)


@contextmanager
def limited_jobs(dsn: str, lock_dir: Path | None = None) -> Iterator[LimitedJobs]:
    """Those of one process, on empty tables."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("TRUNCATE rate_limits, limit_slots, concurrency_limits, audit_log")
        made = LimitedJobs(connection, lock_dir=lock_dir)
        try:
            yield made
        finally:
            made.windows.calls.close()
