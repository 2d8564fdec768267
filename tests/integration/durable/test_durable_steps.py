"""Steps of durable functions: each is stored once, and another attempt goes on where the last one was."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from queue_workflows.engine.registry.ingest_task import IngestTask
from queue_workflows.engine.registry.tasks import ingest_task
from queue_workflows.errors import StepFailed
from queue_workflows.repositories.durable.steps import StepRepository
from queue_workflows.testing import drain

CALLS: list[str] = []
FAILS: dict[str, int] = {}


def called(name: str, value: Any = None) -> Any:
    """What a step does: it says so, and fails as often as it was told to."""
    CALLS.append(name)
    if FAILS.get(name, 0) > 0:
        FAILS[name] -= 1
        raise ValueError(f"{name} fails")
    return value


@ingest_task("durable_sync", queue="fetch", durable=True)
def durable_sync(reason: str | None, args: dict[str, Any], *, ctx: Any) -> Any:
    """Three steps, the last of which depends on the others."""
    one = ctx.step("one", called, "one", 1)
    two = ctx.step("two", called, "two", {"n": (one, 2)})
    return ctx.step("three", called, "three", [one, two])


@ingest_task("durable_async", queue="fetch", durable=True)
async def durable_async(reason: str | None, args: dict[str, Any], *, ctx: Any) -> Any:
    """`durable_sync`, awaited."""

    async def awaited(name: str, value: Any) -> Any:
        return called(name, value)

    one = await ctx.step("one", awaited, "one", 1)
    two = await ctx.step("two", awaited, "two", {"n": (one, 2)})
    return await ctx.step("three", called, "three", [one, two])


@ingest_task("goes_on_without", queue="fetch", durable=True)
def goes_on_without(reason: str | None, args: dict[str, Any], *, ctx: Any) -> Any:
    """One step fails for good, and the function does something else."""
    try:
        return ctx.step("first", called, "first", 1)
    except StepFailed as failed:
        return ctx.step("instead", called, "instead", failed.error_type)


BOTH = pytest.mark.parametrize("task", [durable_sync, durable_async], ids=["sync", "async"])


@pytest.fixture(autouse=True)
def conn(qwf_configured: str) -> Iterator[psycopg.Connection]:
    """Nothing was called or stored before."""
    CALLS.clear()
    FAILS.clear()
    with psycopg.connect(qwf_configured, autocommit=True) as connection:
        connection.execute("TRUNCATE ingest_jobs, durable_steps, durable_events")
        yield connection


def stored(conn: psycopg.Connection, job_id: int) -> list[tuple]:
    """The steps of a job."""
    return [
        (row.position, row.name, row.status.value, row.result)
        for row in StepRepository(conn, "ingest").stored(job_id)
    ]


@BOTH
def test_each_step_is_stored_with_its_result(conn: psycopg.Connection, task: IngestTask):
    """As JSON has it, in the order of the calls; and the function gets what another attempt would."""
    job = task.enqueue({}, conn=conn)
    (outcome,) = drain(conn=conn, raises=True)
    assert outcome.result == [1, {"n": [1, 2]}]
    assert CALLS == ["one", "two", "three"]
    assert stored(conn, job.id) == [
        (1, "one", "done", 1),
        (2, "two", "done", {"n": [1, 2]}),
        (3, "three", "done", [1, {"n": [1, 2]}]),
    ]


@BOTH
def test_another_attempt_calls_no_stored_step(conn: psycopg.Connection, task: IngestTask):
    """It goes on with the step that failed, as nothing of that is stored."""
    FAILS["three"] = 1
    task.enqueue({}, conn=conn)
    outcomes = drain(conn=conn, with_scheduled=True)
    assert [(one.status, one.attempt) for one in outcomes] == [("scheduled", 1), ("completed", 2)]
    assert CALLS == ["one", "two", "three", "three"]
    assert outcomes[1].result == [1, {"n": [1, 2]}]


def test_a_failure_that_the_function_goes_on_without_is_stored(conn: psycopg.Connection):
    """So that another attempt goes the same way, though the step would succeed by then."""
    FAILS.update(first=1, instead=1)
    job = goes_on_without.enqueue({}, conn=conn)
    outcomes = drain(conn=conn, with_scheduled=True)
    assert outcomes[-1].result == "ValueError"
    assert CALLS == ["first", "instead", "instead"]
    assert [row[:3] for row in stored(conn, job.id)] == [(1, "first", "failed"), (2, "instead", "done")]
