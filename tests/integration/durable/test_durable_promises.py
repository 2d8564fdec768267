"""What durable functions promise of single steps: effects here once, tries, refusals, versions."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from queue_workflows.engine.registry.ingest_task import IngestTask
from queue_workflows.engine.registry.tasks import TaskRegistry, current_tasks, ingest_task
from queue_workflows.errors import ConfigurationError, StepFailed
from queue_workflows.repositories import IngestJobRepository
from queue_workflows.repositories.durable.steps import StepRepository
from queue_workflows.testing import drain

CALLS: list[Any] = []
WAY: list[str] = []


def note(value: Any = None) -> Any:
    """What a step does."""
    CALLS.append(value)
    return value


@ingest_task("writes", queue="fetch", durable=True)
def writes(reason: str | None, args: dict[str, Any], *, ctx: Any) -> Any:
    """A row by its first step; its second one writes, and fails once."""

    def write(what: str) -> int:
        ctx.connection().execute("INSERT INTO ledger VALUES (%s)", [what])
        return len(CALLS)

    def write_and_fail() -> None:
        write("second")
        if not CALLS:
            note("failed")
            raise ValueError("not yet")

    ctx.step("first", write, "first")
    ctx.step("second", write_and_fail)


@ingest_task("writes_async", queue="fetch", durable=True)
async def writes_async(reason: str | None, args: dict[str, Any], *, ctx: Any) -> Any:
    """`writes`, awaited."""

    async def write(what: str) -> None:
        await (await ctx.connection()).execute("INSERT INTO ledger VALUES (%s)", [what])

    async def write_and_fail() -> None:
        await write("second")
        if not CALLS:
            note("failed")
            raise ValueError("not yet")

    await ctx.step("first", write, "first")
    await ctx.step("second", write_and_fail)


@ingest_task("tries", queue="fetch", durable=True, max_attempts=1)
def tries(reason: str | None, args: dict[str, Any], *, ctx: Any) -> Any:
    """A step that fails twice."""

    def twice() -> int:
        note("try")
        if len(CALLS) < 3:
            raise OSError("not yet")
        return len(CALLS)

    return ctx.step("twice", twice, retries=args["retries"], backoff_s=0)


@ingest_task("tries_async", queue="fetch", durable=True, max_attempts=1)
async def tries_async(reason: str | None, args: dict[str, Any], *, ctx: Any) -> Any:
    """`tries`, awaited."""

    async def twice() -> int:
        note("try")
        if len(CALLS) < 3:
            raise OSError("not yet")
        return len(CALLS)

    return await ctx.step("twice", twice, retries=args["retries"], backoff_s=0)


@ingest_task("slow", queue="fetch", durable=True, max_attempts=1)
def slow(reason: str | None, args: dict[str, Any], *, ctx: Any) -> Any:
    """A step that takes too long."""
    ctx.step("slow", time.sleep, 5, timeout_s=0.05)


@ingest_task("slow_async", queue="fetch", durable=True, max_attempts=1)
async def slow_async(reason: str | None, args: dict[str, Any], *, ctx: Any) -> Any:
    """`slow`, awaited."""
    await ctx.step("slow", asyncio.sleep, 5, timeout_s=0.05)


@ingest_task("unstorable", queue="fetch", durable=True)
def unstorable(reason: str | None, args: dict[str, Any], *, ctx: Any) -> Any:
    """A result that is no JSON."""
    ctx.step("odd", note, {"when": object()})


@ingest_task("writes_too_much", queue="fetch", durable=True)
def writes_too_much(reason: str | None, args: dict[str, Any], *, ctx: Any) -> Any:
    """A result beyond what a payload may have, of a step that writes here."""

    def write() -> Any:
        note("called")
        ctx.connection().execute("INSERT INTO ledger VALUES ('too much')")
        return object() if args["odd"] else "x" * 17_000_000

    return len(ctx.step("much", write, retries=3, backoff_s=0))


@ingest_task("writes_too_much_async", queue="fetch", durable=True)
async def writes_too_much_async(reason: str | None, args: dict[str, Any], *, ctx: Any) -> Any:
    """`writes_too_much`, awaited."""

    async def write() -> Any:
        note("called")
        await (await ctx.connection()).execute("INSERT INTO ledger VALUES ('too much')")
        return object() if args["odd"] else "x" * 17_000_000

    return len(await ctx.step("much", write, retries=3, backoff_s=0))


@ingest_task("changes", queue="fetch", durable=True, max_attempts=5)
def changes(reason: str | None, args: dict[str, Any], *, ctx: Any) -> Any:
    """Goes the way that it is told at each attempt."""
    for name in WAY[ctx.attempt - 1].split():
        if name == "!":
            raise ValueError("another attempt")
        ctx.step(name, note, name)


@ingest_task("changes_beside", queue="fetch", durable=True, max_attempts=5)
async def changes_beside(reason: str | None, args: dict[str, Any], *, ctx: Any) -> Any:
    """Branches that come to their steps in an order that is not the one before."""

    async def branch(name: str, pauses: list[float]) -> None:
        for number, pause in enumerate(pauses):
            await asyncio.sleep(pause)
            await ctx.step(f"{name}{number}", note, f"{name}{number}")

    quick, idle = [0.0, 0.0, 0.0], [0.02, 0.02, 0.02]
    one, other = (quick, idle) if ctx.attempt == 1 else (idle, quick)
    await asyncio.gather(branch("a", one), branch("b", other))
    if ctx.attempt == 1:
        raise ValueError("another attempt")


@pytest.fixture(autouse=True)
def conn(qwf_configured: str) -> Iterator[psycopg.Connection]:
    """Nothing was called or stored before."""
    CALLS.clear()
    WAY.clear()
    with psycopg.connect(qwf_configured, autocommit=True) as connection:
        connection.execute("TRUNCATE ingest_jobs, durable_steps, durable_events")
        connection.execute("CREATE TABLE IF NOT EXISTS ledger (what text); TRUNCATE ledger")
        yield connection


def errors_of(conn: psycopg.Connection, job_id: int) -> list[dict[str, Any]]:
    """What is kept of the failures of a job."""
    row = IngestJobRepository(conn).fetch(job_id)
    assert row is not None
    return row.errors


@pytest.mark.parametrize("task", [writes, writes_async])
def test_what_a_step_writes_here_is_there_once(conn: psycopg.Connection, task: IngestTask):
    """What the try that failed wrote is not; a stored step writes nothing again."""
    task.enqueue({}, conn=conn)
    outcomes = drain(conn=conn, with_scheduled=True)
    assert [one.status for one in outcomes] == ["scheduled", "completed"]
    assert conn.execute("SELECT what FROM ledger ORDER BY what").fetchall() == [("first",), ("second",)]


@pytest.mark.parametrize("task", [tries, tries_async])
def test_a_step_is_tried_as_often_as_it_says(conn: psycopg.Connection, task: IngestTask):
    """Within one attempt of its job; the row says how often."""
    job = task.enqueue({"retries": 2}, conn=conn)
    (outcome,) = drain(conn=conn)
    assert (outcome.status, outcome.result) == ("completed", 3)
    (row,) = StepRepository(conn, "ingest").stored(job.id)
    assert row.tries == 3


@pytest.mark.parametrize("task", [tries, tries_async])
def test_after_all_its_tries_it_has_failed(conn: psycopg.Connection, task: IngestTask):
    """The error names the step and what it raised, which is its cause."""
    task.enqueue({"retries": 1}, conn=conn)
    (outcome,) = drain(conn=conn)
    assert outcome.status == "failed"
    assert isinstance(outcome.exception, StepFailed)
    assert (outcome.exception.step, outcome.exception.error_type) == ("twice", "OSError")
    assert isinstance(outcome.exception.__cause__, OSError)


@pytest.mark.parametrize("task", [slow, slow_async])
def test_a_try_takes_no_longer_than_it_may(conn: psycopg.Connection, task: IngestTask):
    """It is a failure like another."""
    task.enqueue({}, conn=conn)
    (outcome,) = drain(conn=conn)
    assert isinstance(outcome.exception, StepFailed)
    assert outcome.exception.error_type.endswith("StepTimeout")


def test_a_result_that_is_no_json_is_stored_nowhere(conn: psycopg.Connection):
    """The job has failed, as by a result of its own: the work was done, and would only be done twice."""
    job = unstorable.enqueue({}, conn=conn)
    (outcome,) = drain(conn=conn)
    assert (outcome.status, CALLS) == ("failed", [CALLS[0]])
    assert "the step 'odd' cannot be stored" in errors_of(conn, job.id)[-1]["message"]
    assert StepRepository(conn, "ingest").stored(job.id) == []


@pytest.mark.parametrize("odd", [False, True], ids=["too large", "no JSON"])
@pytest.mark.parametrize("task", [writes_too_much, writes_too_much_async], ids=["sync", "async"])
def test_what_cannot_be_stored_is_refused_before_anything_is(
    conn: psycopg.Connection, task: IngestTask, odd: bool
):
    """Neither a row of the step nor what it wrote is there; it is not tried again, as that would not help."""
    job = task.enqueue({"odd": odd}, conn=conn)
    (outcome,) = drain(conn=conn)
    assert (outcome.status, CALLS) == ("failed", ["called"])
    said = errors_of(conn, job.id)[-1]["message"]
    assert "the result of the step 'much' cannot be stored" in said
    assert ("larger" in said or "bytes" in said or "MiB" in said) is not odd
    assert StepRepository(conn, "ingest").stored(job.id) == []
    assert conn.execute("SELECT FROM ledger").fetchall() == []


@pytest.mark.parametrize(
    ("ways", "said"),
    [
        (["a b !", "a c"], "step 2 was the step 'b', and the code now comes to the step 'c'"),
        (["a b !", "b a"], "step 1 was the step 'a', and the code now comes to the step 'b'"),
        (["a b !", "a"], "step 2 was the step 'b', and the code now comes to its end"),
        (["a a !", "a c"], "step 2 was the step 'a' (call 2), and the code now comes to the step 'c'"),
    ],
)
def test_another_way_is_refused(conn: psycopg.Connection, ways: list[str], said: str):
    """Both are named, and nothing of the new way has been done."""
    WAY.extend([*ways, ways[0].removesuffix("!")])
    job = changes.enqueue({}, conn=conn)
    outcomes = drain(conn=conn, with_scheduled=True)
    assert said in errors_of(conn, job.id)[1]["message"]
    assert errors_of(conn, job.id)[1]["type"] == "queue_workflows.errors.NonDeterminism"
    assert outcomes[-1].status == "completed"
    assert "c" not in CALLS


def test_branches_may_come_in_another_order(conn: psycopg.Connection):
    """Each step is known by its name; none of them is done again."""
    changes_beside.enqueue({}, conn=conn)
    outcomes = drain(conn=conn, with_scheduled=True)
    assert [one.status for one in outcomes] == ["scheduled", "completed"]
    assert sorted(CALLS) == ["a0", "a1", "a2", "b0", "b1", "b2"]


def _fails_once(ctx: Any, name: str) -> str:
    ctx.step(name, note, name)
    if ctx.attempt == 1:
        raise ValueError("another attempt")
    return ctx.step(f"{name}, again", note, name)


def test_a_function_goes_on_with_the_version_that_it_began_under(conn: psycopg.Connection):
    """While a worker has that; one without it leaves the job to others, which say that they know it."""

    def first(reason: str | None, args: dict[str, Any], *, ctx: Any) -> str:
        return _fails_once(ctx, "first")

    def second(reason: str | None, args: dict[str, Any], *, ctx: Any) -> str:
        return _fails_once(ctx, "second")

    tasks = current_tasks()
    tasks.register("versioned", first, queue="fetch", durable=True, version="1")
    job = tasks.task_named("versioned").enqueue({}, conn=conn)
    drain(conn=conn)
    for before in ({}, {"1": first}):
        tasks._known.pop("versioned")
        tasks._names.pop("versioned@1", None)
        tasks.register("versioned", second, queue="fetch", durable=True, version="2", versions=before)
        outcomes = drain(conn=conn, with_scheduled=True)
        if not before:
            row = IngestJobRepository(conn).fetch(job.id)
            assert (row.hold_reason, row.hold_key) == ("unknown_task", "versioned@1")
            assert "versioned@1" not in tasks.names()
            conn.execute("UPDATE ingest_jobs SET run_at = now()")
    assert "versioned@1" in tasks.names()
    assert (outcomes[-1].result, CALLS) == ("first", ["first", "first"])


@pytest.mark.parametrize(
    ("said", "refused"),
    [
        ({"durable": True, "at_most_once": True}, "begins again"),
        ({"version": "1"}, "give durable=True"),
        ({"durable": True, "versions": {"1": note}}, "none itself"),
    ],
)
def test_what_makes_no_sense_of_a_durable_task(said: dict[str, Any], refused: str):
    """Is refused where it is registered."""
    with pytest.raises(ConfigurationError, match=refused):
        TaskRegistry().register("odd", lambda reason: None, **said)
