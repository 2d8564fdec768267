"""What workers claim and give back, without their processes, for tests of keyed limits."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
from support.rows.jobs import QUEUES, ending

from queue_workflows.engine.limits.held_host_locks import KeptLocks
from queue_workflows.engine.registry.tasks import TaskRegistry
from queue_workflows.repositories import ClaimedJob, IngestJobRepository, LimitRepository, NodeJobRepository
from queue_workflows.repositories.jobs.hooks import HookJobRepository
from queue_workflows.repositories.sql.checks import PayloadLimits
from queue_workflows.repositories.sql.low_water_marks import Marks
from queue_workflows.roles.worker.claims.session import ClaimSession
from queue_workflows.roles.worker.claims.terms import ClaimTerms

CLEAR_LIMITS = "TRUNCATE concurrency_limits, limit_slots"
FAMILIES: dict[str, Any] = {"node": NodeJobRepository, "ingest": IngestJobRepository}


class Hand:
    """One worker's claim_session."""

    def __init__(
        self,
        connection: psycopg.Connection,
        family: str,
        worker_id: str,
        queue: str,
        lock_dir: Path | None = None,
        *,
        tasks: TaskRegistry | None = None,
    ) -> None:
        self.connection = connection
        hooks = HookJobRepository.at(worker_id.partition(":")[0])
        self.terms = ClaimTerms(
            hooks if queue == "hooks" else FAMILIES[family],
            queue,
            worker_id,
            60.0,
            PayloadLimits(),
            locks=KeptLocks(lock_dir),
            tasks={} if tasks is None else tasks.with_options,
        )
        self.claim_session = ClaimSession(self.terms, connection)
        self.marks = Marks(0.0)
        self.held: list[ClaimedJob] = []

    def claim(self, limit: int = 1) -> list[ClaimedJob]:
        """Claim until there is something, or nothing to be claimed."""
        while True:
            jobs = self.claim_session.claim(self.marks, time.monotonic(), limit=limit)
            self.held += jobs
            if jobs or self.marks.empty:
                return jobs

    def end(self, jobs: Sequence[ClaimedJob] | None = None, status: str = "completed", **more: Any) -> None:
        """End some of what is held, or all of it."""
        ends = list(self.held if jobs is None else jobs)
        assert self.claim_session.end([ending(job, status, **more) for job in ends]).lost == []
        self.held = [job for job in self.held if job not in ends]

    def end_and_claim(self, limit: int = 1) -> list[ClaimedJob]:
        """End all, and what came with it."""
        ended, jobs = self.claim_session.end_and_claim(
            [ending(job) for job in self.held], self.marks, time.monotonic(), limit=limit
        )
        assert ended.lost == []
        self.held = list(jobs)
        return jobs


@contextmanager
def hand(
    dsn: str,
    worker_id: str,
    family: str = "ingest",
    queue: str | None = None,
    lock_dir: Path | None = None,
    *,
    tasks: TaskRegistry | None = None,
) -> Iterator[Hand]:
    """A hand on a connection of its own; one lock directory is one host."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        yield Hand(connection, family, worker_id, queue or QUEUES[family], lock_dir, tasks=tasks)


def cap(connection: psycopg.Connection, key: str, most: int) -> None:
    """Set a limit."""
    LimitRepository(connection).set(key, most, actor="me")


def holders(connection: psycopg.Connection, key: str) -> list[int]:
    """The jobs that hold slots of a key."""
    sql = "SELECT job_id FROM limit_slots WHERE limit_key = %s AND lease_expires_at > now() ORDER BY job_id"
    return [job for (job,) in connection.execute(sql, [key])]


def where(connection: psycopg.Connection, table: str, key: str) -> dict[str, int]:
    """How many jobs of a key stand where; those in the lane by that word."""
    sql = f"""
        SELECT
            CASE WHEN (hold_reason, hold_key) = ('limit_full', limit_key) THEN 'lane' ELSE status END,
            count(*)
        FROM {table} WHERE limit_key = %s GROUP BY 1
    """
    return dict(connection.execute(sql, [key]).fetchall())
