"""Jobs of either family for tests of what both share, and rows as they are in the table."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
from support.connections.kept import own_connection

from queue_workflows.repositories import (
    ClaimedJob,
    Ending,
    Fence,
    IngestJobRepository,
    NewIngestJob,
    NewNodeJob,
    NodeJobRepository,
    RunRepository,
)
from queue_workflows.states import JobStatus

QUEUES = {"node": "cpu", "ingest": "fetch"}
TABLES = {"node": "workflow_node_jobs", "ingest": "ingest_jobs"}
RESULTS = {"node": "context_delta", "ingest": "result"}
# What refers to a table stands before it.
EMPTIED = (
    "hook_records",
    "workflow_input_submissions",
    "workflow_dispatch_events",
    "workflow_node_jobs",
    "workflow_nodes",
    "workflow_runs",
    "ingest_jobs",
    "worker_control",
    "audit_log",
    "model_memory",
    "retention_marks",
)


def emptying(*tables: str) -> str:
    """The statement that leaves no rows in these tables, at the cost that their size deserves.

    To truncate means new files for each table and index, which takes longer than most tests. What is not
    larger than the planner takes an unknown table to be loses its rows instead, under a truncation's lock.
    """
    deletes = "; ".join(f"DELETE FROM {table}" for table in tables)
    return f"""
        DO $$ BEGIN
            LOCK TABLE {", ".join(tables)} IN ACCESS EXCLUSIVE MODE;
            IF (
                SELECT max(pg_relation_size(name::regclass)) > 10 * 8192
                FROM unnest('{{{",".join(tables)}}}'::text[]) name
            ) THEN TRUNCATE {", ".join(tables)} CASCADE;
            ELSE {deletes};
            END IF;
        END $$"""


CLEAR = emptying(*EMPTIED)
CLEAR_WITH_WORKERS = emptying(*EMPTIED, "worker_heartbeats", "worker_code")


class Jobs:
    """One family's jobs through one connection; a worker's hands and a test's eyes."""

    def __init__(self, family: str, connection: psycopg.Connection) -> None:
        self.family = family
        self.connection = connection
        self.queue, self.table = QUEUES[family], TABLES[family]
        self.repository: Any = {"node": NodeJobRepository, "ingest": IngestJobRepository}[family](connection)

    def enqueue(self, count: int = 1, *, priorities: tuple[int, ...] = (), **fields: Any) -> list[int]:
        """Jobs in order; their ids."""
        wanted = priorities or (5,) * count
        fields.setdefault("queue", self.queue)
        if self.family == "ingest":
            made = self.repository.enqueue_many(
                NewIngestJob(task_name="task", args={"n": n}, priority=priority, **fields)
                for n, priority in enumerate(wanted)
            )
        else:
            run = RunRepository(self.connection).insert("film", spec={}, spec_hash="h").id
            made = self.repository.insert_many(
                NewNodeJob(run_id=run, node_id=f"n{n}", inputs={"n": n}, priority=priority, **fields)
                for n, priority in enumerate(wanted)
            )
        return [each.id for each in made]

    def claim(self, worker: str = "w1", limit: int = 1, *, lease_s: float = 30, **more: Any) -> list[Any]:
        """Claim on this family's queue of the tests."""
        return self.repository.claim(self.queue, worker_id=worker, lease_s=lease_s, limit=limit, **more)

    def one(self, worker: str = "w1", **more: Any) -> Any:
        """A claim that gets a job."""
        (job,) = self.claim(worker, **more)
        return job

    def row(self, job_id: int) -> dict[str, Any]:
        """A job as it is in the table; `result` is whichever column has it."""
        cursor = self.connection.execute(f"SELECT to_jsonb(t) FROM {self.table} t WHERE id = %s", [job_id])
        (found,) = cursor.fetchone() or (None,)
        assert found is not None
        return {**found, "result": found[RESULTS[self.family]]}

    def seen(self, job_id: int, *names: str) -> tuple[Any, ...]:
        """Some columns of a row."""
        row = self.row(job_id)
        return tuple(row[name] for name in names)

    def rows(self) -> list[dict[str, Any]]:
        """All of them by id."""
        return [
            row for (row,) in self.connection.execute(f"SELECT to_jsonb(t) FROM {self.table} t ORDER BY id")
        ]

    def lapse(self, *ids: int, have_begun: bool = True) -> None:
        """Let leases be over, as if nobody had renewed them; the functions of suspects had begun."""
        self.connection.execute(
            f"""
            UPDATE {self.table} SET lease_expires_at = now() - interval '1 s',
                begun_generation = CASE WHEN %s AND suspect AND COALESCE(begun_generation, -1) < 0
                    THEN -attempt ELSE begun_generation END
            WHERE id = ANY(%s)
            """,
            [have_begun, list(ids)],
        )

    def events(self, job_id: int) -> list[tuple[Any, ...]]:
        """What the outbox has of a job; nothing for ingest jobs, whose ids are another table's."""
        if self.family == "ingest":
            return []
        return self.connection.execute(
            "SELECT generation, attempt, kind FROM workflow_dispatch_events"
            " WHERE node_job_id = %s ORDER BY id",
            [job_id],
        ).fetchall()

    def ended(self, *events: tuple[int, int, str]) -> list[tuple[int, int, str]]:
        """The events that are to be expected: those, of a family that has them."""
        return list(events) if self.family == "node" else []


def ending(job: ClaimedJob, status: str = "completed", **more: Any) -> Ending:
    """The end of a held job."""
    for name in ("result", "error", "progress"):
        if name in more:
            more[name] = json.dumps(more[name])
    return Ending(job.fence, JobStatus(status), **more)


def stale(fence: Fence) -> list[Fence]:
    """What is not this fence, in each of its parts."""
    return [
        fence._replace(attempt=fence.attempt - 1),
        fence._replace(attempt=fence.attempt + 1),
        fence._replace(claimed_by=fence.claimed_by + "x"),
        fence._replace(job_id=fence.job_id + 1_000_000),
    ]


@contextmanager
def jobs_of(family: str, dsn: str, *, autocommit: bool = True, clear: bool = True) -> Iterator[Jobs]:
    """One family's jobs on a connection of its own, with the tables emptied before."""
    with own_connection(dsn, autocommit=autocommit) as connection:
        if clear:
            connection.execute(CLEAR)
            if not autocommit:
                connection.commit()
        yield Jobs(family, connection)
        connection.rollback()
