"""Calls of `ctx` where another attempt would not make them are refused; a round begins only where one may."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

from queue_workflows.engine.registry.tasks import current_tasks, ingest_task
from queue_workflows.repositories import IngestJobRepository
from queue_workflows.testing import drain

CALLS: Counter[str] = Counter()


@ingest_task("calls_within_a_step", queue="fetch", durable=True, max_attempts=1)
def calls_within_a_step(reason: str | None, args: dict[str, Any], *, ctx: Any) -> Any:
    """The function of a step calls what only the function itself may."""
    WITHIN[args["call"]](ctx)
    ctx.step("never", CALLS.update, ["never"])


@ingest_task("calls_within_an_async_step", queue="fetch", durable=True, max_attempts=1)
async def calls_within_an_async_step(reason: str | None, args: dict[str, Any], *, ctx: Any) -> Any:
    """`calls_within_a_step`, in a task that the step has begun."""

    async def within() -> Any:
        return await asyncio.create_task(ctx.step("inner", int))

    await ctx.step("outer", within)


WITHIN: dict[str, Callable[[Any], Any]] = {
    "step": lambda ctx: ctx.step("outer", ctx.step, "inner", int),
    "now": lambda ctx: ctx.step("outer", lambda: ctx.now().isoformat()),
    "random": lambda ctx: ctx.step("outer", lambda: ctx.random().random()),
    "spawn": lambda ctx: ctx.step("outer", lambda: ctx.spawn("other").id),
    "sleep": lambda ctx: ctx.step("outer", ctx.sleep, 60),
    "wait_event": lambda ctx: ctx.step("outer", ctx.wait_event, "any"),
    "gather": lambda ctx: ctx.step("outer", ctx.gather),
    "continue_as_new": lambda ctx: ctx.step("outer", ctx.continue_as_new),
}


@ingest_task("begins_anew_on_its_way_out", queue="fetch", durable=True, max_attempts=1)
def begins_anew_on_its_way_out(reason: str | None, args: dict[str, Any], *, ctx: Any) -> Any:
    """A `finally` runs whenever the function parks."""
    if args:
        return CALLS["charge"]
    ctx.step("charge", CALLS.update, ["charge"])
    try:
        ctx.sleep(60)
    finally:
        ctx.continue_as_new({"round": 1})


@ingest_task("begins_anew_beside_a_step", queue="fetch", durable=True, max_attempts=1)
async def begins_anew_beside_a_step(reason: str | None, args: dict[str, Any], *, ctx: Any) -> Any:
    """A step of the round still runs."""

    async def slow() -> str:
        await asyncio.sleep(0.05)
        return f"made in round {len(args)}"

    if not args:
        task = asyncio.ensure_future(ctx.step("made", slow))
        await asyncio.sleep(0)
        try:
            await ctx.continue_as_new({"round": 1})
        finally:
            await asyncio.wait([task])
    return await ctx.step("made", slow)


@ingest_task("begins_anew_with_a_list", queue="fetch", durable=True, max_attempts=1)
def begins_anew_with_a_list(reason: str | None, args: dict[str, Any], *, ctx: Any) -> Any:
    """Arguments are a dict."""
    ctx.continue_as_new([1, 2])


@pytest.fixture
def conn(qwf_configured: str) -> Iterator[psycopg.Connection]:
    """An empty queue."""
    CALLS.clear()
    with psycopg.connect(qwf_configured, autocommit=True) as connection:
        connection.execute("TRUNCATE ingest_jobs, durable_steps, durable_events")
        yield connection


def refusal_of(conn: psycopg.Connection, name: str, args: dict[str, Any]) -> str:
    """Why a job fails in its first and only attempt, having stored nothing."""
    current_tasks().task_named(name).enqueue(args, conn=conn)
    (outcome,) = drain(conn=conn)
    assert outcome.status == "failed"
    assert conn.execute("SELECT count(*) FROM durable_steps").fetchone() == (0,)
    return str(outcome.exception)


@pytest.mark.parametrize("call", sorted(WITHIN))
def test_what_a_step_calls_is_refused_at_once(conn: psycopg.Connection, call: str):
    """And not when all the work is done: the next attempt would not come to it, as the step is stored."""
    assert "called by the function of a step" in refusal_of(conn, "calls_within_a_step", {"call": call})
    assert not CALLS


def test_what_a_task_of_a_step_calls_is_refused(conn: psycopg.Connection):
    """It is no branch of the function."""
    assert "called by the function of a step" in refusal_of(conn, "calls_within_an_async_step", {})


def test_no_round_begins_on_the_way_out(conn: psycopg.Connection):
    """The function parks, is charged once, and begins its round when it comes there."""
    job = begins_anew_on_its_way_out.enqueue({}, conn=conn)
    drain(conn=conn, with_scheduled=True)
    row = IngestJobRepository(conn).fetch(job.id)
    assert row is not None
    assert (row.status, row.result, CALLS) == ("completed", 1, {"charge": 1})


def test_no_round_begins_beside_a_step(conn: psycopg.Connection):
    """What that has made would be taken for a step of the new round."""
    job = begins_anew_beside_a_step.enqueue({}, conn=conn)
    (outcome,) = drain(conn=conn)
    assert "still run: await them" in str(outcome.exception)
    row = conn.execute("SELECT name, result FROM durable_steps WHERE job_id = %s", [job.id]).fetchone()
    assert row == ("made", "made in round 0")


def test_the_arguments_of_a_round_are_a_dict(conn: psycopg.Connection):
    """As those of every job."""
    assert "args must be a dict, not list" in refusal_of(conn, "begins_anew_with_a_list", {})
