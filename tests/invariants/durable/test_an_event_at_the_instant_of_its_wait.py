"""An event and a wait for it, neither of which sees the other, as both are under way: it is woken."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from support.processes.workers import until

from queue_workflows.engine.registry.tasks import ingest_task
from queue_workflows.engine.upkeep.news import wake_by_news
from queue_workflows.repositories import IngestJobRepository
from queue_workflows.repositories.durable.events import EventRepository, emit_event
from queue_workflows.testing import drain


@ingest_task("waits_for_go", queue="fetch", durable=True)
def waits_for_go(reason: str | None, *, ctx: Any) -> Any:
    """One event."""
    return ctx.wait_event("go")


AT_THE_GATE = threading.Event()
GATE_OPENS = threading.Event()


def gate() -> None:
    """Say that the function is here, and wait until it may go on."""
    AT_THE_GATE.set()
    GATE_OPENS.wait()


@ingest_task("waits_behind_a_gate", queue="fetch", durable=True)
def waits_behind_a_gate(reason: str | None, *, ctx: Any) -> Any:
    """One event, after a step that the test ends."""
    ctx.step("gate", gate)
    return ctx.wait_event("go")


@pytest.fixture
def conn(qwf_configured: str) -> Iterator[psycopg.Connection]:
    """An empty queue."""
    with psycopg.connect(qwf_configured, autocommit=True) as connection:
        connection.execute("TRUNCATE ingest_jobs, durable_steps, durable_events")
        yield connection


def blocked_backends(conn: psycopg.Connection) -> int:
    """How many sessions wait for a lock of a name, or of a row."""
    row = conn.execute(
        "SELECT count(*) FROM pg_stat_activity"
        " WHERE datname = current_database() AND wait_event_type = 'Lock'"
    ).fetchone()
    assert row is not None
    return int(row[0])


@pytest.mark.parametrize("isolation", ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"])
def test_an_emitter_that_commits_after_the_wait_was_stored(
    conn: psycopg.Connection, qwf_configured: str, isolation: str
):
    """Its snapshot is older than the wait, and the waiter's is older than its event."""
    job = waits_for_go.enqueue(conn=conn)
    with psycopg.connect(qwf_configured) as emitter:
        emitter.execute(f"SET TRANSACTION ISOLATION LEVEL {isolation}")
        emitter.execute("SELECT count(*) FROM durable_steps")
        emit_event("go", 1, conn=emitter)
        drain(conn=conn)
        row = IngestJobRepository(conn).fetch(job.id)
        assert row is not None
        assert (row.status, row.hold_reason) == ("scheduled", "event")
    (outcome,) = drain(conn=conn)
    assert (outcome.status, outcome.result) == ("completed", 1)
    assert EventRepository(conn).kept() == []


def test_a_sweep_that_comes_while_the_wait_is_stored(conn: psycopg.Connection, qwf_configured: str):
    """It leaves the name to the next one, which sees the wait; and it waits for nobody meanwhile."""
    job = waits_behind_a_gate.enqueue(conn=conn).id
    waiter = threading.Thread(target=_drained, args=(qwf_configured,))
    waiter.start()
    AT_THE_GATE.wait()
    with psycopg.connect(qwf_configured) as other:
        # What stores the wait has the lock of the name by then, and is stopped at the row of its job.
        other.execute("SELECT FROM ingest_jobs WHERE id = %s FOR SHARE", [job])
        GATE_OPENS.set()
        until(lambda: blocked_backends(conn) == 1)
        emit_event("go", 2, conn=conn)
        wake_by_news(conn)
        assert conn.execute("SELECT is_news FROM durable_events").fetchall() == [(True,)]
    waiter.join()
    drain(conn=conn)
    row = IngestJobRepository(conn).fetch(job)
    assert row is not None
    assert (row.status, row.result) == ("completed", 2)


def _drained(dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        drain(conn=connection, queues=["fetch"])
