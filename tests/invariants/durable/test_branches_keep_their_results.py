"""Branches with the same steps, in trees and with times at random: each attempt has the results of each."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from random import Random
from typing import Any

import psycopg
import pytest
from support.processes.workers import running_worker, until

from queue_workflows.engine.registry.tasks import ingest_task
from queue_workflows.repositories import IngestJobRepository, NewIngestJob, enqueue_many
from queue_workflows.testing import drain

PAID: Counter[str] = Counter()
FAILS_AT: list[int] = []


def tree_of(rng: Random, name: str, depth: int) -> tuple[str, list[Any]]:
    """A branch by its name, with the branches that it begins."""
    return name, [tree_of(rng, f"{name}.{n}", depth - 1) for n in range(rng.randint(0, 3) if depth else 0)]


def expected_of(tree: tuple[str, list[Any]]) -> list[Any]:
    """What a branch comes to."""
    name, branches = tree
    return [f"paid {name}", name, [expected_of(one) for one in branches], f"paid {name}"]


@ingest_task("pays_in_branches", queue="fetch", durable=True, max_attempts=3, backoff=0)
async def pays_in_branches(reason: str | None, args: dict[str, Any], *, ctx: Any) -> Any:
    """Each branch pays, sleeps, begins others, and pays again; all of them call their steps alike."""
    rng = Random(f"{args['seed']} {ctx.attempt}")

    async def pay(name: str) -> str:
        await asyncio.sleep(rng.random() / 500)
        PAID[name] += 1
        if FAILS_AT and sum(PAID.values()) == FAILS_AT[0]:
            FAILS_AT.pop()
            PAID[name] -= 1
            raise OSError("the process dies")
        return f"paid {name}"

    async def branch(tree: Any) -> list[Any]:
        name, branches = tree
        await asyncio.sleep(rng.random() / 500)
        first = await ctx.step("pay", pay, name)
        ctx.now()
        drawn = ctx.random().random()
        assert await ctx.step("draw", lambda: drawn) == drawn
        own = await ctx.step("name", lambda: name)
        below = await asyncio.gather(*[branch(one) for one in branches])
        return [first, own, below, await ctx.step("pay", pay, name)]

    found = await branch(args["tree"])
    await ctx.sleep(60)
    return found


@ingest_task("sleeps_in_branches", queue="fetch", durable=True, max_attempts=1)
async def sleeps_in_branches(reason: str | None, args: dict[str, Any], *, ctx: Any) -> Any:
    """The first branch is the last to have its step."""

    async def fetch(n: int) -> int:
        await asyncio.sleep(0.01 * (3 - n))
        return n

    async def branch(n: int) -> str:
        await ctx.step("fetch", fetch, n)
        await ctx.sleep(60 * (n + 1))
        return await ctx.step("pay", lambda: f"paid {n}")

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(branch(n)) for n in range(3)]
    return [task.result() for task in tasks]


@ingest_task("calls_in_a_thread", queue="fetch", durable=True, max_attempts=1)
async def calls_in_a_thread(reason: str | None, args: dict[str, Any], *, ctx: Any) -> Any:
    """Nothing tells the calls of threads apart."""
    await asyncio.to_thread(ctx.now)


@ingest_task("calls_beside", queue="fetch", durable=True, max_attempts=1)
def calls_beside(reason: str | None, args: dict[str, Any], *, ctx: Any) -> Any:
    """`calls_in_a_thread` in sync code."""
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor() as threads:
        return threads.submit(ctx.step, "a", int).result()


@pytest.fixture
def conn(qwf_configured: str) -> Iterator[psycopg.Connection]:
    """An empty queue."""
    with psycopg.connect(qwf_configured, autocommit=True) as connection:
        connection.execute("TRUNCATE ingest_jobs, durable_steps, durable_events")
        yield connection


def result_of(conn: psycopg.Connection, job_id: int) -> Any:
    """What a job came to."""
    row = IngestJobRepository(conn).fetch(job_id)
    assert row is not None
    assert row.status == "completed", [one["message"] for one in row.errors]
    return row.result


@pytest.mark.parametrize("seed", range(4))
def test_a_branch_has_its_own_results_whenever_it_dies(conn: psycopg.Connection, seed: int):
    """Whichever step an attempt dies at, everything is paid once, and each branch has its own receipts."""
    tree = tree_of(Random(seed), "root", 2)
    steps, dies_at = 1, 1
    while dies_at <= steps:
        PAID.clear()
        FAILS_AT[:] = [dies_at]
        job = pays_in_branches.enqueue({"tree": tree, "seed": f"{seed} {dies_at}"}, conn=conn)
        drain(conn=conn, with_scheduled=True)
        assert result_of(conn, job.id) == expected_of(tree)
        steps = sum(PAID.values())
        # Steps that ran beside the one that died, and were not stored any more, may run again.
        assert set(PAID) == {name for name in PAID if PAID[name] >= 2}
        dies_at += 5


def test_branches_that_park_go_on_with_their_own_results(conn: psycopg.Connection):
    """All are called alike, and come back in another order."""
    job = sleeps_in_branches.enqueue({}, conn=conn)
    drain(conn=conn, with_scheduled=True)
    assert result_of(conn, job.id) == ["paid 0", "paid 1", "paid 2"]


@pytest.mark.parametrize("task", [calls_in_a_thread, calls_beside], ids=["async", "sync"])
def test_a_call_that_cannot_be_told_apart_is_refused(conn: psycopg.Connection, task: Any):
    """A thread has no place in the function that another attempt would find again."""
    task.enqueue({}, conn=conn)
    (outcome,) = drain(conn=conn)
    assert outcome.status == "failed"
    assert "so that another attempt could not tell which call it is" in str(outcome.exception)


@pytest.mark.slow
def test_branches_of_many_jobs_in_one_worker(conn: psycopg.Connection, qwf_configured: str):
    """They share its event loop, and each job has its own."""
    jobs = [NewIngestJob(task_name="branching", queue="fetch", args={}) for _ in range(10)]
    ids = [made.id for made in enqueue_many(jobs, conn=conn)]
    app = {"QWF_APP": "support.stages.durable_tasks"}
    open_jobs = "SELECT count(*) FROM ingest_jobs WHERE finished_at IS NULL"
    with running_worker(qwf_configured, "--concurrency", "10", **app):
        until(lambda: conn.execute(open_jobs).fetchone() == (0,), within_s=120)
    assert [result_of(conn, one) for one in ids] == [["paid 0", "paid 1", "paid 2"]] * len(ids)
