"""An attempt with a lapsed lease stores nothing more; of two that store at once, both have what one did."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from support.processes.workers import until

from queue_workflows.engine.registry.tasks import ingest_task
from queue_workflows.engine.upkeep.tick import sweep
from queue_workflows.errors import LeaseLost
from queue_workflows.repositories import IngestJobRepository
from queue_workflows.repositories.durable.steps import NewStep, StepRepository
from queue_workflows.repositories.sql.claimed_job import Fence
from queue_workflows.settings import Settings
from queue_workflows.states import StepKind
from queue_workflows.testing import drain

AT_THE_GATE = threading.Event()
GATE_OPENS = threading.Event()


@ingest_task("writes_slowly", queue="fetch", durable=True, max_crashes=100)
def writes_slowly(reason: str | None, *, ctx: Any) -> Any:
    """Its first attempt writes, and is stopped before that is stored."""

    def write() -> int:
        ctx.connection().execute("INSERT INTO effects VALUES (%s)", [ctx.attempt])
        if ctx.attempt == 1:
            AT_THE_GATE.set()
            GATE_OPENS.wait()
        return ctx.attempt

    return ctx.step("write", write)


@ingest_task("says_its_attempt", queue="fetch", durable=True, max_crashes=100)
def says_its_attempt(reason: str | None, *, ctx: Any) -> Any:
    """One step."""
    return ctx.step("say", lambda: ctx.attempt)


@pytest.fixture
def conn(qwf_configured: str) -> Iterator[psycopg.Connection]:
    """An empty queue, and a table that steps write to."""
    with psycopg.connect(qwf_configured, autocommit=True) as connection:
        connection.execute("TRUNCATE ingest_jobs, durable_steps, durable_events")
        connection.execute("CREATE TABLE IF NOT EXISTS effects (attempt int); TRUNCATE effects")
        yield connection


def lapse(conn: psycopg.Connection) -> None:
    """What is held is held no more."""
    conn.execute("UPDATE ingest_jobs SET lease_expires_at = now() - interval '1 s' WHERE status = 'running'")


def test_an_attempt_with_a_lapsed_lease_stores_nothing(conn: psycopg.Connection, qwf_configured: str):
    """And what its step has written here never was."""
    job = writes_slowly.enqueue(conn=conn).id
    ends: list[BaseException] = []

    def first() -> None:
        with psycopg.connect(qwf_configured, autocommit=True) as connection:
            try:
                drain(conn=connection, queues=["fetch"])
            except LeaseLost as lost:
                ends.append(lost)

    zombie = threading.Thread(target=first)
    zombie.start()
    AT_THE_GATE.wait()
    lapse(conn)
    sweep(conn, Settings(), recovered_s=None)
    GATE_OPENS.set()
    zombie.join()
    assert len(ends) == 1
    assert StepRepository(conn, "ingest").stored(job) == []
    drain(conn=conn)
    row = IngestJobRepository(conn).fetch(job)
    assert row is not None
    assert (row.status, row.result) == ("completed", 2)
    assert conn.execute("SELECT attempt FROM effects").fetchall() == [(2,)]


def test_the_later_one_takes_what_the_earlier_one_stored(conn: psycopg.Connection, qwf_configured: str):
    """It waits for the row that the other is about to commit, and goes on with that."""
    job = says_its_attempt.enqueue(conn=conn).id
    (claimed,) = IngestJobRepository(conn).claim("fetch", worker_id="zombie", lease_s=60)
    with psycopg.connect(qwf_configured) as earlier:
        step = NewStep(Fence(job, 1, "zombie"), "say", 1, 1, StepKind.STEP, result='"the earlier one"')
        StepRepository(earlier, "ingest").store([step])
        assert claimed.attempt == 1
        lapse(conn)

        def later() -> None:
            with psycopg.connect(qwf_configured, autocommit=True) as connection:
                drain(conn=connection, queues=["fetch"])

        second = threading.Thread(target=later)
        second.start()
        until(lambda: _blocked(conn))
    second.join()
    row = IngestJobRepository(conn).fetch(job)
    assert row is not None
    assert (row.status, row.attempt, row.result) == ("completed", 2, "the earlier one")


def _blocked(conn: psycopg.Connection) -> bool:
    row = conn.execute(
        "SELECT count(*) FROM pg_stat_activity"
        " WHERE datname = current_database() AND wait_event_type = 'Lock'"
    ).fetchone()
    return row == (1,)
