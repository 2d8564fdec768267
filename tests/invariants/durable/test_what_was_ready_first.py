"""What a function does may depend on which of its branches was ready first, as that is the same each time."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from random import Random
from typing import Any

import psycopg
import pytest

from queue_workflows.engine.registry.tasks import ingest_task
from queue_workflows.errors import StepFailed
from queue_workflows.testing import drain

DONE: list[tuple[str, int]] = []
BRANCHES = 7


def in_order(ways: str, tasks: list[asyncio.Task[Any]]) -> Any:
    """Branches as they are ready, by what the standard library has for it."""

    async def by_wait() -> Any:
        left = set(tasks)
        while left:
            done, left = await asyncio.wait(left, return_when=asyncio.FIRST_COMPLETED)
            for task in sorted(done, key=tasks.index):
                yield task

    async def by_as_completed() -> Any:
        for task in asyncio.as_completed(tasks):
            yield task

    return by_wait() if ways == "wait" else by_as_completed()


@ingest_task("first_come", queue="fetch", durable=True, max_attempts=30, backoff=0)
async def first_come(reason: str | None, args: dict[str, Any], *, ctx: Any) -> list[Any]:
    """Each branch takes its time, which is another one in each attempt; the steps behind have one name."""
    rng = Random(f"{args['seed']} {ctx.attempt}")

    async def work(n: int) -> int:
        await asyncio.sleep(rng.random() / 50)
        DONE.append(("work", n))
        if len(DONE) == args.get("breaks"):
            raise asyncio.CancelledError
        if n % 3 == 2:
            raise ValueError(f"{n} fails")
        return n

    async def branch(n: int) -> int:
        try:
            got = await ctx.step("work", work, n)
        except StepFailed:
            got = -n
        if n % 2:
            await ctx.sleep(0.001 * rng.random())
        return got

    async def use(n: int) -> int:
        DONE.append(("use", n))
        return n

    used: list[Any] = []
    tasks = [asyncio.create_task(branch(n)) for n in range(BRANCHES)]
    async for ready in in_order(args["ways"], tasks):
        n = await ready
        used.append((n, await ctx.step("use", use, n)))
        if len(used) == 4 and ctx.attempt < 3:
            raise OSError("another attempt")
    await ctx.sleep(60)
    return used


@ingest_task("first_come_of_any", queue="fetch", durable=True, max_attempts=1)
async def first_come_of_any(reason: str | None, args: dict[str, Any], *, ctx: Any) -> Any:
    """Coroutines as they are, or calls of `ctx`."""

    async def branch(n: int) -> int:
        return await ctx.step("work", lambda: n)

    many = [branch(n) if args["of"] == "branches" else ctx.step("work", lambda n=n: n) for n in range(3)]
    try:
        return sorted([await one for one in asyncio.as_completed(many)])
    finally:
        for one in many:
            one.close()


@ingest_task("naps_first", queue="fetch", durable=True, max_attempts=2, backoff=0)
async def naps_first(reason: str | None, args: dict[str, Any], *, ctx: Any) -> str:
    """A nap ends before a step beside it, a step behind it writes, and then it fails once."""
    napped = asyncio.Event()

    async def in_a_transaction(what: str, until: asyncio.Event | None = None) -> None:
        await (await ctx.connection()).execute("SELECT 1")
        if until is not None:
            await until.wait()
        DONE.append((what, ctx.attempt))

    nap = asyncio.create_task(ctx.sleep(0.01))
    work = asyncio.create_task(ctx.step("work", in_a_transaction, "work", napped))
    done, _ = await asyncio.wait([nap, work], return_when=asyncio.FIRST_COMPLETED)
    first = "nap" if nap in done else "work"
    await ctx.step(f"behind the {first}", in_a_transaction, first)
    napped.set()
    await asyncio.wait([nap, work])
    if ctx.attempt == 1:
        raise ValueError("another attempt")
    return first


@pytest.fixture(autouse=True)
def conn(qwf_configured: str) -> Iterator[psycopg.Connection]:
    """Nothing is stored or done."""
    DONE.clear()
    with psycopg.connect(qwf_configured, autocommit=True) as connection:
        connection.execute("TRUNCATE ingest_jobs, durable_steps, durable_events")
        yield connection


@pytest.mark.parametrize("ways", ["as_completed", "wait"])
@pytest.mark.parametrize("seed", range(3))
def test_each_step_is_about_what_it_was(conn: psycopg.Connection, ways: str, seed: int):
    """Over failures and parks, with branches that fail: each result is used once, by the step of its own."""
    first_come.enqueue({"seed": seed, "ways": ways}, conn=conn)
    outcomes = drain(conn=conn, with_scheduled=True)
    assert outcomes[-1].status == "completed", outcomes[-1].exception
    used = outcomes[-1].result
    assert [n for n, _ in used] == [by for _, by in used]
    assert sorted(n for n, _ in used) == sorted(-n if n % 3 == 2 else n for n in range(BRANCHES))
    by_steps = [n for what, n in DONE if what == "use"]
    assert sorted(by_steps) == sorted(n for n, _ in used)


def test_a_nap_is_stored_before_what_came_after_it(conn: psycopg.Connection):
    """Also where that is stored with what the step has written."""
    naps_first.enqueue({}, conn=conn)
    assert drain(conn=conn, with_scheduled=True)[-1].result == "nap"
    assert DONE == [("nap", 1), ("work", 1)]


def test_branches_that_are_begun_in_any_order_are_refused(conn: psycopg.Connection):
    """`as_completed` makes a set of its coroutines; calls of `ctx` are in their places by then."""
    first_come_of_any.enqueue({"of": "branches"}, conn=conn)
    first_come_of_any.enqueue({"of": "calls"}, conn=conn)
    refused, made = drain(conn=conn)
    assert "asyncio.as_completed begins its coroutines in any order" in str(refused.exception)
    assert made.result == [0, 1, 2]
