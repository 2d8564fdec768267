"""Durable functions park: for a time, for an event, for jobs that they spawned."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import psycopg
import pytest

from queue_workflows.engine.registry.ingest_task import IngestTask
from queue_workflows.engine.registry.tasks import current_tasks, ingest_task
from queue_workflows.errors import ChildFailed
from queue_workflows.repositories import IngestJobRepository
from queue_workflows.repositories.durable.events import EventRepository, emit_event
from queue_workflows.repositories.durable.steps import StepRepository
from queue_workflows.testing import drain

CALLS: list[Any] = []


def note(value: Any = None) -> Any:
    """What a step does."""
    CALLS.append(value)
    return value


@ingest_task("sleeps", queue="fetch", durable=True)
def sleeps(reason: str | None, args: dict[str, Any], *, ctx: Any) -> Any:
    """A day, between two steps."""
    ctx.step("before", note, "before")
    ctx.sleep(days=1)
    return ctx.step("after", note, "after")


@ingest_task("sleeps_async", queue="fetch", durable=True)
async def sleeps_async(reason: str | None, args: dict[str, Any], *, ctx: Any) -> Any:
    """`sleeps`, awaited."""
    await ctx.step("before", note, "before")
    await ctx.sleep(days=1)
    return await ctx.step("after", note, "after")


@ingest_task("waits", queue="fetch", durable=True)
def waits(reason: str | None, args: dict[str, Any], *, ctx: Any) -> Any:
    """For an event, for an hour at the most."""
    return ctx.wait_event(args["event"], timeout=3600, default="nothing")


@ingest_task("waits_async", queue="fetch", durable=True)
async def waits_async(reason: str | None, args: dict[str, Any], *, ctx: Any) -> Any:
    """`waits`, awaited."""
    return await ctx.wait_event(args["event"], timeout=3600, default="nothing")


@ingest_task("square", queue="load")
def square(reason: str | None, args: dict[str, Any]) -> int:
    """A child."""
    if args["n"] < 0:
        raise ValueError("below zero")
    return args["n"] ** 2


@ingest_task("parent", queue="fetch", durable=True)
def parent(reason: str | None, args: dict[str, Any], *, ctx: Any) -> Any:
    """Squares by its children."""
    children = [ctx.spawn(square, {"n": n}, max_attempts=1) for n in args["of"]]
    ctx.step("spawned", note, len(children))
    found = ctx.gather(*children, return_exceptions=args.get("tolerant", False))
    return [str(one) if isinstance(one, ChildFailed) else one for one in found]


@ingest_task("parent_async", queue="fetch", durable=True)
async def parent_async(reason: str | None, args: dict[str, Any], *, ctx: Any) -> Any:
    """`parent`, awaited."""
    children = [ctx.spawn("square", {"n": n}, max_attempts=1) for n in args["of"]]
    await ctx.step("spawned", note, len(children))
    found = await ctx.gather(*children, return_exceptions=args.get("tolerant", False))
    return [str(one) if isinstance(one, ChildFailed) else one for one in found]


@ingest_task("beside", queue="fetch", durable=True)
async def beside(reason: str | None, args: dict[str, Any], *, ctx: Any) -> Any:
    """Steps, an event and a sleep side by side."""

    async def slow(value: str) -> str:
        await asyncio.sleep(0.05)
        return note(value)

    return await asyncio.gather(
        ctx.step("a", slow, "a"), ctx.wait_event("go"), ctx.step("b", slow, "b"), ctx.sleep(hours=1)
    )


@ingest_task("told_the_same", queue="fetch", durable=True, max_attempts=2)
def told_the_same(reason: str | None, args: dict[str, Any], *, ctx: Any) -> Any:
    """What it is told is the same in its second attempt."""
    now, drawn = ctx.now(), [ctx.random().random(), ctx.random().random()]
    note((now, drawn))
    ctx.step("one", note, "one")
    if ctx.attempt == 1:
        raise ValueError("once more")
    return now.isoformat()


@ingest_task("endless", queue="fetch", durable=True)
def endless(reason: str | None, args: dict[str, Any], *, ctx: Any) -> Any:
    """Three rounds, then it ends."""
    done = ctx.step("count", note, args["done"] + 1)
    if done < 3:
        ctx.continue_as_new({"done": done})
    return done


@pytest.fixture(autouse=True)
def conn(qwf_configured: str) -> Iterator[psycopg.Connection]:
    """Nothing was called or stored before."""
    CALLS.clear()
    with psycopg.connect(qwf_configured, autocommit=True) as connection:
        connection.execute("TRUNCATE ingest_jobs, durable_steps, durable_events")
        yield connection


def row_of(conn: psycopg.Connection, job_id: int) -> Any:
    """A job as it is."""
    row = IngestJobRepository(conn).fetch(job_id)
    assert row is not None
    return row


@pytest.mark.parametrize("task", [sleeps, sleeps_async])
def test_a_sleeper_is_no_row_of_the_queue(conn: psycopg.Connection, task: IngestTask):
    """It is on hold until its time, uncounted, with what it did before."""
    job = task.enqueue({}, conn=conn)
    assert [one.status for one in drain(conn=conn)] == ["scheduled"]
    row = row_of(conn, job.id)
    assert (row.status, row.hold_reason, row.failures) == ("scheduled", "asleep", 0)
    assert 86_300 < (row.run_at - row.created_at).total_seconds() < 86_500
    (outcome,) = drain(conn=conn, with_scheduled=True)
    assert (outcome.status, outcome.result, CALLS) == ("completed", "after", ["before", "after"])


@pytest.mark.parametrize("task", [waits, waits_async])
def test_an_event_wakes_what_waits_for_it(conn: psycopg.Connection, task: IngestTask):
    """One waiter, and no other takes it."""
    jobs = [task.enqueue({"event": "paid:7"}, conn=conn).id for _ in range(2)]
    drain(conn=conn)
    assert [(row_of(conn, job).hold_reason, row_of(conn, job).hold_key) for job in jobs] == [
        ("event", "paid:7")
    ] * 2
    emit_event("paid:8", {"sum": 1}, conn=conn)
    assert drain(conn=conn) == []
    emit_event("paid:7", {"sum": 3}, conn=conn)
    drain(conn=conn)
    assert sorted(str(row_of(conn, job).result) for job in jobs) == ["None", "{'sum': 3}"]
    assert [event.name for event in EventRepository(conn).kept()] == ["paid:8"]


def test_an_event_that_came_before_the_wait_is_kept(conn: psycopg.Connection):
    """It is taken at once; the function does not park."""
    emit_event("early", [1, 2], conn=conn)
    waits.enqueue({"event": "early"}, conn=conn)
    (outcome,) = drain(conn=conn)
    assert (outcome.status, outcome.result) == ("completed", [1, 2])
    assert EventRepository(conn).kept() == []


def test_an_event_of_a_transaction_that_is_rolled_back_never_was(conn: psycopg.Connection):
    """It is emitted in the caller's transaction."""
    with conn.transaction(force_rollback=True):
        emit_event("never", conn=conn)
    assert EventRepository(conn).kept() == []


def test_a_wait_ends_by_its_time(conn: psycopg.Connection):
    """And an event that comes after that is for somebody else."""
    waits.enqueue({"event": "late"}, conn=conn)
    outcomes = drain(conn=conn, with_scheduled=True)
    assert outcomes[-1].result == "nothing"
    emit_event("late", conn=conn)
    assert len(EventRepository(conn).kept()) == 1


@pytest.mark.parametrize("task", [parent, parent_async])
def test_children_are_enqueued_once_and_gathered(conn: psycopg.Connection, task: IngestTask):
    """In their order; the last end wakes the parent, which held no worker."""
    job = task.enqueue({"of": [3, 1, 2]}, conn=conn)
    drain(conn=conn, queues=["fetch"])
    row = row_of(conn, job.id)
    assert (row.status, row.hold_reason, row.hold_key) == ("scheduled", "children", "3")
    drain(conn=conn, raises=True)
    assert row_of(conn, job.id).result == [9, 1, 4]
    assert CALLS == [3]
    count = conn.execute("SELECT count(*) FROM ingest_jobs WHERE spawned_by = %s", [f"ingest:{job.id}"])
    assert count.fetchone() == (3,)
    assert EventRepository(conn).kept() == []


@pytest.mark.parametrize("task", [parent, parent_async])
def test_a_child_that_failed_fails_its_parent(conn: psycopg.Connection, task: IngestTask):
    """Unless it asked for exceptions in their places."""
    job = task.enqueue({"of": [1, -1]}, conn=conn, max_attempts=1)
    tolerant = task.enqueue({"of": [1, -1], "tolerant": True}, conn=conn)
    drain(conn=conn)
    assert row_of(conn, job.id).status == "failed"
    assert "ChildFailed" in row_of(conn, job.id).errors[-1]["type"]
    first, second = row_of(conn, tolerant.id).result
    assert (first, "is failed: below zero" in second) == (1, True)


def test_branches_park_when_nothing_of_them_runs(conn: psycopg.Connection):
    """The steps beside a wait end first, and are not done again."""
    job = beside.enqueue({}, conn=conn)
    drain(conn=conn)
    assert row_of(conn, job.id).status == "scheduled"
    assert sorted(CALLS) == ["a", "b"]
    emit_event("go", "went", conn=conn)
    drain(conn=conn)
    assert (row_of(conn, job.id).status, row_of(conn, job.id).hold_reason) == ("scheduled", "asleep")
    outcomes = drain(conn=conn, with_scheduled=True)
    assert (outcomes[-1].result, sorted(CALLS)) == (["a", "went", "b", None], ["a", "b"])


def test_time_and_chance_are_the_same_in_another_attempt(conn: psycopg.Connection):
    """What was drawn differs from call to call, and from job to job."""
    job, other = (told_the_same.enqueue({}, conn=conn) for _ in range(2))
    drain(conn=conn, with_scheduled=True)
    seen = [one for one in CALLS if isinstance(one, tuple)]
    first, second = [one for one in seen if one[0].isoformat() == row_of(conn, job.id).result]
    assert first == second
    assert isinstance(first[0], datetime)
    assert first[0].isoformat() == row_of(conn, job.id).result
    assert len({drawn for _, both in seen for drawn in both}) == 4
    assert row_of(conn, other.id).status == "completed"


def test_an_endless_loop_begins_anew_with_other_arguments(conn: psycopg.Connection):
    """Under its id, without the steps of the rounds before."""
    job = endless.enqueue({"done": 0}, conn=conn)
    outcomes = drain(conn=conn)
    assert [one.status for one in outcomes] == ["queued", "queued", "completed"]
    assert (row_of(conn, job.id).result, CALLS, row_of(conn, job.id).failures) == (3, [1, 2, 3], 0)
    rows = StepRepository(conn, "ingest").stored(job.id)
    assert [(row.name, row.result) for row in rows] == [
        ("qwf:round", {"round": 2, "args": {"done": 2}}),
        ("count", 3),
    ]


def test_a_cancel_reaches_the_children(conn: psycopg.Connection):
    """And theirs; a child that is over stays as it is."""
    job = parent.enqueue({"of": [1, 2, 3]}, conn=conn)
    drain(conn=conn, queues=["fetch"])
    jobs = IngestJobRepository(conn)
    children = [
        row[0]
        for row in conn.execute(
            "SELECT id FROM ingest_jobs WHERE spawned_by IS NOT NULL ORDER BY id"
        ).fetchall()
    ]
    grandchild = square.enqueue({"n": 1}, conn=conn).id
    conn.execute(
        "UPDATE ingest_jobs SET spawned_by = %s WHERE id = %s", [f"ingest:{children[1]}", grandchild]
    )
    conn.execute(
        "UPDATE ingest_jobs SET status = 'completed', finished_at = now() WHERE id = %s", [children[0]]
    )
    jobs.cancel(job.id, actor="test", reason="enough")
    ids = [job.id, *children, grandchild]
    assert [row_of(conn, one).status for one in ids] == ["cancelled", "completed", *["cancelled"] * 3]
    assert drain(conn=conn) == []


def test_a_job_that_is_cancelled_spawns_nothing(conn: psycopg.Connection):
    """Nobody would cancel what it spawned after that."""

    def cancel() -> None:
        IngestJobRepository(conn).cancel(job.id)

    tasks = current_tasks()

    def late(reason: str | None, args: dict[str, Any], *, ctx: Any) -> None:
        ctx.step("cancel", cancel)
        ctx.spawn(square, {"n": 1})

    job = tasks.register("late", late, queue="fetch", durable=True).enqueue({}, conn=conn)
    (outcome,) = drain(conn=conn)
    assert outcome.status == "cancelled"
    assert conn.execute("SELECT count(*) FROM ingest_jobs").fetchone() == (1,)
