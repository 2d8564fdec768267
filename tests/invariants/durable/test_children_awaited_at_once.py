"""Children that branches await at once are enqueued once each, all of them before one is asked for."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from queue_workflows.engine.registry.ingest_task import IngestTask
from queue_workflows.engine.registry.tasks import ingest_task
from queue_workflows.repositories import IngestJobRepository
from queue_workflows.testing import drain

SEEN: list[str] = []


@ingest_task("trebled", queue="load")
def trebled(reason: str | None, args: dict[str, Any]) -> int:
    """A child."""
    return 3 * args["n"]


@ingest_task("awaits_at_once", queue="fetch", durable=True, max_attempts=1)
async def awaits_at_once(reason: str | None, args: dict[str, Any], *, ctx: Any) -> Any:
    """What everybody writes."""
    return await asyncio.gather(*[ctx.spawn(trebled, {"n": n}) for n in range(5)])


@ingest_task("uses_a_time_at_once", queue="fetch", durable=True, max_attempts=1)
async def uses_a_time_at_once(reason: str | None, args: dict[str, Any], *, ctx: Any) -> Any:
    """Two steps that may use one time, and ask whether it is stored."""

    def stored() -> int:
        with psycopg.connect(args["dsn"]) as other:
            row = other.execute("SELECT count(*) FROM durable_steps WHERE kind = 'now'").fetchone()
        return 0 if row is None else row[0]

    ctx.now()
    return await asyncio.gather(ctx.step("a", stored), ctx.step("b", stored))


@ingest_task("refused_at_once", queue="fetch", durable=True, max_attempts=1)
async def refused_at_once(reason: str | None, args: dict[str, Any], *, ctx: Any) -> Any:
    """A child that cannot be enqueued is said to be that to each that comes after it."""
    child = ctx.spawn("unknown", queue="no queue!")
    SEEN.extend(map(str, await asyncio.gather(child, ctx.gather(child), return_exceptions=True)))


@pytest.fixture
def conn(qwf_configured: str) -> Iterator[psycopg.Connection]:
    """An empty queue."""
    with psycopg.connect(qwf_configured, autocommit=True) as connection:
        connection.execute("TRUNCATE ingest_jobs, durable_steps, durable_events")
        yield connection


def result_of(conn: psycopg.Connection, task: IngestTask, args: dict[str, Any] | None = None) -> Any:
    """What a job of that task comes to."""
    job = task.enqueue(args or {}, conn=conn)
    drain(conn=conn, with_scheduled=True)
    row = IngestJobRepository(conn).fetch(job.id)
    assert row is not None
    assert row.status == "completed", [one["message"] for one in row.errors]
    return row.result


def test_each_is_enqueued_once_and_brings_its_result(conn: psycopg.Connection):
    """`asyncio.gather` of children is as good as `ctx.gather`."""
    assert result_of(conn, awaits_at_once) == [0, 3, 6, 9, 12]
    assert conn.execute("SELECT count(*) FROM ingest_jobs").fetchone() == (6,)


def test_what_steps_may_have_used_is_stored_before_any_of_them(conn: psycopg.Connection, qwf_configured: str):
    """Also before the one that found that another was about to store it."""
    assert result_of(conn, uses_a_time_at_once, {"dsn": qwf_configured}) == [1, 1]


def test_a_child_that_cannot_be_enqueued_is_forgotten_by_nobody(conn: psycopg.Connection):
    """Whichever asks for it is told why."""
    SEEN.clear()
    refused_at_once.enqueue({}, conn=conn)
    (outcome,) = drain(conn=conn)
    assert [str(outcome.exception)] * 2 == SEEN
    assert "no queue!" in SEEN[0]
