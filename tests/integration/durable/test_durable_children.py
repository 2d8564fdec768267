"""Which jobs are a durable function's children, and for how long it may ask what became of them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from queue_workflows.engine.outcomes import Discard, Skip
from queue_workflows.engine.registry.ingest_task import IngestTask
from queue_workflows.engine.registry.tasks import ingest_task
from queue_workflows.engine.upkeep.retention import Pruning
from queue_workflows.repositories import IngestJobRepository
from queue_workflows.settings import Settings
from queue_workflows.testing import drain


@ingest_task("doubled", queue="load")
def doubled(reason: str | None, args: dict[str, Any]) -> int:
    """A child."""
    if args["n"] < 0:
        raise ValueError("below zero")
    return args["n"] * 2


@ingest_task("sleeps_then_reads", queue="fetch", durable=True)
def sleeps_then_reads(reason: str | None, args: dict[str, Any], *, ctx: Any) -> Any:
    """Its children have ended long before it asks for them."""
    children = [ctx.spawn(doubled, {"n": 1}), ctx.spawn(doubled, {"n": 2}, dedupe_key="two")]
    ctx.sleep(days=40)
    return ctx.gather(*children)


@ingest_task("reads_one_by_key", queue="fetch", durable=True)
def reads_one_by_key(reason: str | None, args: dict[str, Any], *, ctx: Any) -> Any:
    """Its child may be there already."""
    return ctx.spawn(doubled, {"n": 1}, dedupe_key="one").result()


@ingest_task("reads_one", queue="fetch", durable=True)
def reads_one(reason: str | None, args: dict[str, Any], *, ctx: Any) -> Any:
    """It fails with its child."""
    return ctx.spawn(doubled, args, max_attempts=1).result()


@ingest_task("reads_one_async", queue="fetch", durable=True)
async def reads_one_async(reason: str | None, args: dict[str, Any], *, ctx: Any) -> Any:
    """`reads_one`, awaited."""
    return await ctx.spawn(doubled, args, max_attempts=1)


LEAVES = {"skip": Skip("enough"), "discard": Discard("of no use"), "error": ValueError("it failed")}


@ingest_task("spawns_and_leaves", queue="fetch", durable=True, max_attempts=1)
def spawns_and_leaves(reason: str | None, args: dict[str, Any], *, ctx: Any) -> None:
    """Nothing comes after the spawn."""
    ctx.spawn(doubled, {"n": 1})
    raise LEAVES[args["by"]]


@ingest_task("spawns_and_leaves_async", queue="fetch", durable=True, max_attempts=1)
async def spawns_and_leaves_async(reason: str | None, args: dict[str, Any], *, ctx: Any) -> None:
    """`spawns_and_leaves`, as a coroutine."""
    ctx.spawn(doubled, {"n": 1})
    raise LEAVES[args["by"]]


@ingest_task("spawns_and_fails_once", queue="fetch", durable=True, max_attempts=2)
def spawns_and_fails_once(reason: str | None, args: dict[str, Any], *, ctx: Any) -> Any:
    """A spawn, and a failure of the first attempt; then it waits for its child."""
    child = ctx.spawn(doubled, {"n": 4})
    if ctx.attempt == 1:
        raise ValueError("another attempt")
    return child.result()


@ingest_task("large", queue="load")
def large(reason: str | None, args: dict[str, Any]) -> str:
    """A child that returns so many bytes."""
    return "x" * args["bytes"]


@ingest_task("waits_for_one", queue="fetch", durable=True)
def waits_for_one(reason: str | None, args: dict[str, Any], *, ctx: Any) -> int:
    """As much as a job may return."""
    return len(ctx.spawn(large, {"bytes": (1 << 24) - 2}).result())


@ingest_task("gathers", queue="fetch", durable=True)
def gathers(reason: str | None, args: dict[str, Any], *, ctx: Any) -> int:
    """So many of them at a time."""
    children = [ctx.spawn(large, {"bytes": 6_000_000}) for _ in range(3)]
    size = args["size"]
    parts = [ctx.gather(*children[at : at + size]) for at in range(0, 3, size)]
    return sum(len(one) for part in parts for one in part)


TRIES: list[str] = []


@ingest_task("fails_beside", queue="fetch", durable=True, max_attempts=2, backoff=0)
async def fails_beside(reason: str | None, args: dict[str, Any], *, ctx: Any) -> str:
    """A branch fails while the function spawns, and has not heard of it."""

    async def step() -> str:
        TRIES.append("tried")
        if len(TRIES) == 1:
            raise ValueError("the first time")
        return "done"

    async def branch() -> str:
        return await ctx.step("once more", step)

    beside = asyncio.create_task(branch())
    await asyncio.wait([beside])
    ctx.spawn(doubled, {"n": 1})
    return await beside


@pytest.fixture(autouse=True)
def conn(qwf_configured: str) -> Iterator[psycopg.Connection]:
    """Nothing was enqueued or stored before."""
    with psycopg.connect(qwf_configured, autocommit=True) as connection:
        connection.execute("TRUNCATE ingest_jobs, durable_steps, durable_events, retention_marks")
        yield connection


def status_of(conn: psycopg.Connection, job_id: int) -> Any:
    row = IngestJobRepository(conn).fetch(job_id)
    assert row is not None
    return row.status


def test_a_result_is_kept_until_the_parent_is_over(conn: psycopg.Connection):
    """However long ago its job has ended; then it goes as any other."""
    parent = sleeps_then_reads.enqueue({}, conn=conn)
    drain(conn=conn)
    conn.execute(
        "UPDATE ingest_jobs SET finished_at = now() - interval '39 days' WHERE finished_at IS NOT NULL"
    )
    Pruning(Settings()).prune(conn)
    outcomes = drain(conn=conn, with_scheduled=True)
    assert outcomes[-1].result == [2, 4]
    Pruning(Settings()).prune(conn)
    assert conn.execute("SELECT array_agg(id) FROM ingest_jobs").fetchone() == ([parent.id],)


def test_a_cancel_leaves_the_jobs_of_others(conn: psycopg.Connection):
    """What was there by its key is waited for, and is not the function's to cancel."""
    others = doubled.enqueue({"n": 3}, dedupe_key="one", conn=conn)
    first, second = (reads_one_by_key.enqueue({}, conn=conn) for _ in range(2))
    drain(conn=conn, queues=["fetch"])
    IngestJobRepository(conn).cancel(first.id, actor="test", reason="enough")
    assert [status_of(conn, one.id) for one in (first, others)] == ["cancelled", "queued"]
    drain(conn=conn, queues=["load"])
    outcomes = drain(conn=conn, with_scheduled=True)
    assert (status_of(conn, second.id), outcomes[-1].result) == ("completed", 6)


@pytest.mark.parametrize("task", [reads_one, reads_one_async])
def test_an_operators_retry_of_a_child_heals_its_parent(conn: psycopg.Connection, task: IngestTask):
    """The failure of a child is stored only once the function has gone on without it."""
    parent = task.enqueue({"n": -1}, conn=conn, max_attempts=1)
    drain(conn=conn)
    assert status_of(conn, parent.id) == "failed"
    update = "UPDATE ingest_jobs SET args = '{\"n\": 5}' WHERE queue = 'load' RETURNING id"
    ((child,),) = conn.execute(update).fetchall()
    IngestJobRepository(conn).retry_many([child, parent.id], actor="test")
    outcomes = drain(conn=conn)
    assert (status_of(conn, parent.id), outcomes[-1].result) == ("completed", 10)


@pytest.mark.parametrize("by", sorted(LEAVES))
@pytest.mark.parametrize("task", [spawns_and_leaves, spawns_and_leaves_async])
def test_what_was_spawned_last_is_enqueued(conn: psycopg.Connection, task: IngestTask, by: str):
    """However the function is left after that."""
    job = task.enqueue({"by": by}, conn=conn)
    drain(conn=conn, queues=["fetch"])
    assert status_of(conn, job.id) == ("skipped" if by == "skip" else "failed")
    assert conn.execute("SELECT spawned_by FROM ingest_jobs WHERE queue = 'load'").fetchall() == [
        (f"ingest:{job.id}",)
    ]


def test_what_an_attempt_that_failed_has_spawned_is_the_next_ones(conn: psycopg.Connection):
    """Enqueued once, by the first of them."""
    spawns_and_fails_once.enqueue({}, conn=conn)
    outcomes = drain(conn=conn, with_scheduled=True)
    assert outcomes[-1].result == 8
    assert conn.execute("SELECT count(*) FROM ingest_jobs").fetchone() == (2,)


def test_results_that_are_too_large_together_are_refused_before_they_are_read(conn: psycopg.Connection):
    """It is said what to do, and done with what is there: nothing is spawned or run again."""
    job = gathers.enqueue({"size": 3}, conn=conn).id
    outcomes = drain(conn=conn, with_scheduled=True)
    assert (outcomes[-1].status, len(outcomes)) == ("failed", 5)
    said = str(outcomes[-1].exception)
    assert "the results of 3 children are 18,000,1" in said
    assert "more than the 16,777,216 that are read and stored together: gather them in parts" in said
    conn.execute("UPDATE ingest_jobs SET args = '{\"size\": 2}' WHERE id = %s", [job])
    IngestJobRepository(conn).retry_many([job], actor="test")
    assert [one.result for one in drain(conn=conn, with_scheduled=True)] == [18_000_000]


def test_what_one_child_may_return_its_parent_may_read(conn: psycopg.Connection):
    """There is no smaller part than one."""
    waits_for_one.enqueue({}, conn=conn)
    assert drain(conn=conn, with_scheduled=True)[-1].result == (1 << 24) - 2


def test_a_child_that_retention_had_emptied_is_told_as_gone(conn: psycopg.Connection):
    """Rather than as one that returned nothing; what returned nothing while it was waited for is that."""
    doubled.enqueue({"n": 3}, dedupe_key="one", conn=conn)
    drain(conn=conn)
    conn.execute("UPDATE ingest_jobs SET finished_at = now() - interval '33 days'")
    Pruning(Settings()).prune(conn)
    reads_one_by_key.enqueue({}, max_attempts=1, conn=conn)
    (outcome,) = drain(conn=conn)
    assert "its result, was pruned before it was waited for" in str(outcome.exception)
    conn.execute("TRUNCATE ingest_jobs, durable_steps")
    reads_one_by_key.enqueue({}, conn=conn)
    drain(conn=conn, queues=["fetch"])
    conn.execute(
        "UPDATE ingest_jobs SET args = '{}', status = 'completed', finished_at = now() WHERE queue = 'load'"
    )
    (outcome,) = drain(conn=conn, with_scheduled=True)
    assert (outcome.status, outcome.result) == ("completed", None)


def test_a_failure_that_the_function_has_not_heard_of_is_tried_again(conn: psycopg.Connection):
    """What a branch of it comes to is not stored where the function fails by that."""
    TRIES.clear()
    fails_beside.enqueue({}, conn=conn)
    outcomes = drain(conn=conn, with_scheduled=True)
    assert [one.result for one in outcomes if one.name == "fails_beside"][-1] == "done"
    assert len(TRIES) == 2
