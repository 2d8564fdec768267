"""Every verb that writes on a connection of the caller's, as a row of one table.

Each says how it is called, what others see of it once it is committed, whom that wakes, and what makes it
fail in a serializable transaction.
"""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable
from typing import Any, Final, NamedTuple

import psycopg
from support.connections.kinds import Brought

import queue_workflows as qwf
from queue_workflows import (
    IngestJobRepository,
    InputSubmissionRepository,
    LimitRepository,
    NewIngestJob,
    RateRepository,
    ScheduleRepository,
    WorkerControlRepository,
    ingest_task,
)
from queue_workflows.models import Base

DOCUMENT: Final = {
    "name": "approval",
    "nodes": [{"id": "ask", "type": "input", "schema": {"ok": {"type": "boolean"}}}],
}
LONGER: Final = {**DOCUMENT, "nodes": [*DOCUMENT["nodes"], {"id": "more", "module": "work"}]}
OF_STAGE: Final = "stage"


@ingest_task("connections.greet", queue="fetch", max_attempts=7)
def greet(reason: str | None, args: dict[str, Any]) -> None:
    """A task with a default of its own."""


class Stage(NamedTuple):
    """What is there before a verb is called: an open run, one that has failed, a job of either sort."""

    waiting: uuid.UUID
    over: uuid.UUID
    queued_job: int
    failed_job: int


def clear(conn: psycopg.Connection[Any]) -> None:
    """Leave no jobs, no runs and no log; deleted, as to truncate so many tables takes longer than a test."""
    for table in ("ingest_jobs", "workflow_runs", "audit_log", "durable_events"):
        conn.execute(f"DELETE FROM {table}")


def stage(conn: psycopg.Connection[Any]) -> Stage:
    """Each of it, committed."""
    waiting, over = (qwf.start_run(DOCUMENT, conn=conn).id for _ in range(2))
    ended = "status = 'failed', finished_at = now()"
    conn.execute(f"UPDATE workflow_runs SET {ended} WHERE id = %s", (over,))
    queued, failed = (qwf.enqueue_ingest_job(OF_STAGE, queue="fetch", conn=conn).id for _ in range(2))
    conn.execute(f"UPDATE ingest_jobs SET {ended} WHERE id = %s", (failed,))
    conn.commit()
    return Stage(waiting, over, queued, failed)


EVERYTHING: Final = " UNION ALL ".join(
    f"SELECT '{table} ' || stored::text FROM {table} AS stored" for table in sorted(Base.metadata.tables)
)


def everything(conn: psycopg.Connection[Any]) -> list[str]:
    """Each row of each table, as this connection sees them."""
    return sorted(row[0] for row in conn.execute(EVERYTHING))


def job(task: str, args: dict[str, Any] | None = None, **options: Any) -> NewIngestJob:
    """One of many."""
    return NewIngestJob(task_name=task, queue="fetch", args=args, **options)


async def enqueue_one(on: Brought, _: Stage | None = None) -> list[str]:
    """A job without options."""
    await on.verb(qwf, "enqueue_ingest_job", "plain", queue="fetch", args={"a": 1})
    return ["plain"]


async def enqueue_with_options(on: Brought, _: Stage | None = None) -> list[str]:
    """A job with most that can be said of one."""
    await on.verb(
        qwf,
        "enqueue_ingest_job",
        "full",
        queue="fetch",
        args={"text": "100% %(sure)s $1 é", "n": [1.5, None]},
        reason="why",
        dedupe_key="k",
        priority=9,
        delay=3600,
        limit_key="host:x",
        max_attempts=2,
        backoff_s=1,
        timeout_s=2.5,
        stall_timeout_s=3,
        host_lock="lock",
        max_crashes=4,
    )
    return ["full"]


async def enqueue_keyed(on: Brought, _: Stage) -> list[str]:
    """A job that may have to wait in the lane of its key."""
    await on.verb(qwf, "enqueue_ingest_job", "keyed", queue="fetch", limit_key="host:y")
    return ["keyed"]


async def enqueue_bulk(on: Brought, _: Stage | None = None) -> list[str]:
    """Two jobs that differ in all."""
    jobs = [
        job("first", {"n": 1}, dedupe_key="a", limit_key="x", backoff_s=2),
        job("second", {"n": 2}, priority=7, delay=60, at_most_once=True),
    ]
    await on.verb(qwf, "enqueue_many", jobs)
    return ["first", "second"]


async def enqueue_by_task(on: Brought, _: Stage) -> list[str]:
    """By a task: one, and many."""
    await on.verb(greet, "enqueue", {"name": "x"})
    await on.verb(greet, "enqueue_many", [{"name": "y"}, {"name": "z"}])
    return ["connections.greet"] * 3


async def enqueue_unique(on: Brought, _: Stage) -> list[str]:
    """Unique jobs, one and many, of which the second changes the first."""
    soon = qwf.Unique(by=("args.n",), replace=("args", "priority", "run_at"))
    await on.verb(qwf, "enqueue_ingest_job", "one", queue="fetch", args={"n": 1}, unique=soon)
    other = job("two", {"n": 1}, unique=qwf.Unique())
    made = await on.verb(
        qwf, "enqueue_many", [job("one", {"n": 1, "é": "%"}, unique=soon, priority=7), other, other]
    )
    assert [each.created for each in made] == [False, True, False]
    return ["one", "two"]


async def start_run(on: Brought, _: Stage) -> list[str]:
    """A run with a key."""
    await on.verb(qwf, "start_run", LONGER, dedupe_key="r", labels={"a": "é"}, priority=7)
    return ["r"]


async def start_capped_run(on: Brought, _: Stage) -> list[str]:
    """A run under which at most so many are open at once, which is another statement."""
    await on.verb(qwf, "start_run", DOCUMENT, dedupe_key="capped", max_open_runs=3)
    return ["capped"]


async def submit_input(on: Brought, there: Stage) -> list[str]:
    """An answer that the run's document allows."""
    await on.verb(qwf, "submit_input", there.waiting, "ask", {"ok": True}, submitted_by="me")
    return ["input_submitted"]


async def insert_submission(on: Brought, there: Stage) -> list[str]:
    """An answer by the repository, which checks less."""
    await on.reading(InputSubmissionRepository, "insert", there.waiting, "ask", {"ok": True})
    return ["input_submitted"]


async def cancel_run(on: Brought, there: Stage) -> list[str]:
    """One run, with who did it and why."""
    assert await on.verb(qwf, "cancel_run", str(there.waiting), reason="enough", actor="me") is True
    return ["cancel"]


async def cancel_runs(on: Brought, there: Stage) -> list[str]:
    """Two runs, of which one is over."""
    was = await on.verb(qwf, "cancel_runs", [there.waiting, there.over], actor="me")
    assert was == {there.waiting: "queued", there.over: "failed"}
    return ["cancel"]


async def cancel_node(on: Brought, there: Stage) -> list[str]:
    """A node of a run."""
    assert await on.verb(qwf, "cancel_node", there.waiting, "ask", actor="me") is True
    return ["cancel"]


async def retry_run(on: Brought, there: Stage) -> list[str]:
    """A run that has failed."""
    assert (await on.verb(qwf, "retry_run", there.over, actor="me")).again == ("ask",)
    return ["reopen"]


async def retry_run_with_document(on: Brought, there: Stage) -> list[str]:
    """A run that has failed, with another document."""
    assert (await on.verb(qwf, "retry_run", there.over, document=LONGER)).changed == ("more",)
    return ["reopen"]


async def cancel_job(on: Brought, there: Stage) -> list[str]:
    """A job that waits."""
    assert await on.reading(IngestJobRepository, "cancel", there.queued_job, actor="me") == "cancelled"
    return ["job.cancel"]


async def retry_job(on: Brought, there: Stage) -> list[str]:
    """A job that has failed."""
    await on.reading(IngestJobRepository, "retry_many", [there.failed_job], actor="me")
    return ["job.retry"]


async def set_cap(on: Brought, _: Stage) -> list[str]:
    """How many may hold a key at once."""
    await on.reading(LimitRepository, "set", "host:*", 2, actor="me", reason="100 % é")
    return ["limits.set"]


async def set_rate(on: Brought, _: Stage) -> list[str]:
    """How fast a key may be used."""
    await on.reading(RateRepository, "set", "host:*", 1.5, actor="me")
    return ["limits.set"]


async def pause_queue(on: Brought, _: Stage) -> list[str]:
    """A queue that no worker is to claim from for a while."""
    await on.reading(WorkerControlRepository, "set", "*", "cpu", "pause", actor="me", expires_in=60)
    return ["workers.pause"]


async def trigger_schedule(on: Brought, _: Stage) -> list[str]:
    """A schedule that is made, and enqueues a job at once."""
    times = {"cron": "0 * * * *", "task_name": "hourly", "queue": "fetch"}
    await on.reading(ScheduleRepository, "upsert", "hourly", **times)
    await on.reading(ScheduleRepository, "trigger", "hourly", actor="me")
    return ["schedule.trigger"]


async def emit_event(on: Brought, _: Stage) -> list[str]:
    """An event that a durable function may wait for, now or later."""
    await on.verb(qwf, "emit_event", "paid:7", {"sum": 1.5, "é": "%"})
    return ["paid:7"]


def late_key(conn: psycopg.Connection[Any], _: Stage) -> None:
    """Jobs and runs with the keys of ours."""
    qwf.enqueue_ingest_job("full", queue="fetch", dedupe_key="k", conn=conn)
    qwf.enqueue_ingest_job("first", queue="fetch", dedupe_key="a", conn=conn)
    qwf.enqueue_ingest_job("one", queue="fetch", args={"n": 1}, unique=qwf.Unique(by=("args.n",)), conn=conn)
    qwf.start_run(DOCUMENT, dedupe_key="r", conn=conn)
    qwf.start_run(DOCUMENT, dedupe_key="capped", conn=conn)


def late_end(conn: psycopg.Connection[Any], there: Stage) -> None:
    """An end of the run that is asked something, by a process that has seen nothing asked of it."""
    conn.execute("SELECT count(*) FROM workflow_dispatch_events")
    ended = "status = 'completed', finished_at = now()"
    conn.execute(f"UPDATE workflow_runs SET {ended} WHERE id = %s", (there.waiting,))


def late_retry(conn: psycopg.Connection[Any], there: Stage) -> None:
    """Another's retry of the run."""
    qwf.retry_run(there.over, conn=conn)


JOBS: Final = f"SELECT task_name FROM ingest_jobs WHERE task_name <> '{OF_STAGE}' ORDER BY position"
RUNS: Final = "SELECT dedupe_key FROM workflow_runs WHERE dedupe_key IS NOT NULL"
EVENTS: Final = "SELECT kind FROM workflow_dispatch_events ORDER BY id"
EMITTED: Final = "SELECT name FROM durable_events ORDER BY id"
LOGGED: Final = "SELECT action FROM audit_log ORDER BY id"
# What those listen for who run jobs, who advance runs, and who wait for an end.
FETCH, DISPATCH, ENDED = "fetch", "qwf:dispatch", "qwf:ended"


class Writing(NamedTuple):
    """A verb: `act` returns what `seen` finds once it is committed, which wakes whom `wakes` names.

    What `late` does makes it fail if another transaction commits it after the snapshot of its own; a verb
    without that depends on nothing that others write. Some have no awaitable form.
    """

    act: Callable[[Brought, Stage], Awaitable[list[str]]]
    seen: str
    wakes: frozenset[str]
    late: Callable[[psycopg.Connection[Any], Stage], None] | None = None
    is_awaitable: bool = True

    def __str__(self) -> str:
        return self.act.__name__


def _row(act: Any, seen: str, *wakes: str, late: Any = None, is_awaitable: bool = True) -> Writing:
    return Writing(act, seen, frozenset(wakes), late, is_awaitable)


WRITING: Final = (
    _row(enqueue_one, JOBS, FETCH),
    _row(enqueue_with_options, JOBS, late=late_key),
    _row(enqueue_keyed, JOBS, FETCH),
    _row(enqueue_bulk, JOBS, FETCH, late=late_key),
    _row(enqueue_by_task, JOBS, FETCH),
    _row(enqueue_unique, JOBS, FETCH, late=late_key),
    _row(start_run, RUNS, DISPATCH, late=late_key),
    _row(start_capped_run, RUNS, DISPATCH, late=late_key),
    _row(submit_input, EVENTS, DISPATCH, late=late_end),
    _row(insert_submission, EVENTS, DISPATCH),
    _row(cancel_run, EVENTS, DISPATCH, late=late_end),
    _row(cancel_runs, EVENTS, DISPATCH, late=late_end),
    _row(cancel_node, EVENTS, DISPATCH, late=late_end),
    _row(retry_run, EVENTS, DISPATCH, ENDED, late=late_retry),
    _row(retry_run_with_document, EVENTS, DISPATCH, ENDED, late=late_retry),
    _row(emit_event, EMITTED),
    _row(cancel_job, LOGGED, ENDED, is_awaitable=False),
    _row(retry_job, LOGGED, FETCH, ENDED, is_awaitable=False),
    _row(set_cap, LOGGED, is_awaitable=False),
    _row(set_rate, LOGGED, is_awaitable=False),
    _row(pause_queue, LOGGED, is_awaitable=False),
    _row(trigger_schedule, LOGGED, FETCH, is_awaitable=False),
)
