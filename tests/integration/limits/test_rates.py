"""ctx.rate: a job takes from a bucket that all share, waits for what it was granted, and slows everybody."""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import psycopg
import pytest
from support.processes.threads import together
from support.processes.workers import until
from support.rows.claimed_jobs import context, ingest_job
from support.rows.limited_jobs import LimitedJobs, limited_jobs

from queue_workflows import Cancelled, CostAboveBurst, RetryAfter, UnknownRate
from queue_workflows.engine.execution.callable import Work
from queue_workflows.engine.execution.executor import execute
from queue_workflows.engine.outcomes import RetryLater, Stop
from queue_workflows.errors import ConfigurationError, LeaseLost, PayloadError
from queue_workflows.repositories import RateRepository

SLOW = {"per_s": 0.001, "burst": 2.0}
FOR_EVER = {"max_wait_s": math.inf}


@pytest.fixture
def jobs(qwf_dsn: str) -> Iterator[LimitedJobs]:
    with limited_jobs(qwf_dsn) as made:
        yield made


def tokens(jobs: LimitedJobs, key: str = "k") -> float:
    """What a bucket has, in whole tokens: these refill slowly."""
    row = RateRepository(jobs.connection).fetch(key)
    assert row is not None
    return float(round(row.tokens, 1))


def test_a_rate_is_declared_where_it_is_used(jobs: LimitedJobs) -> None:
    """The first use makes the bucket; who names no rule goes by that one."""
    grant = jobs.ctx().rate("k", **SLOW)
    jobs.ctx().rate("k")
    assert (grant.key, grant.cost, tokens(jobs)) == ("k", 1, 0)


def test_a_key_that_nobody_ruled(jobs: LimitedJobs) -> None:
    """An error that says both ways to rule it."""
    with pytest.raises(UnknownRate, match=r"ctx\.rate\('k', per_s=5\).*qwf limits set k --rate 5/s"):
        jobs.ctx().rate("k")
    with pytest.raises(UnknownRate):
        jobs.ctx().penalize("k", 5)


def test_a_cost_above_the_burst(jobs: LimitedJobs) -> None:
    """Would be waited for for ever, and is refused."""
    with pytest.raises(CostAboveBurst, match="3 tokens of 'k' are more than its bucket ever holds, 2"):
        jobs.ctx().rate("k", 3, **SLOW)
    assert tokens(jobs) == 2


@pytest.mark.parametrize(
    "wrong",
    [
        {"cost": -1},
        {"cost": math.inf},
        {"cost": True},
        {"burst": 3},
        {"per_s": 0},
        {"max_wait_s": -1},
        {"max_wait_s": math.nan},
        {"key": "host:*"},
        {"key": ""},
    ],
)
def test_a_wish_is_checked(jobs: LimitedJobs, wrong: dict[str, Any]) -> None:
    """Before anything is asked."""
    with pytest.raises(PayloadError):
        jobs.ctx().rate(**{"key": "k", **wrong})
    assert jobs.asked == 0


def test_what_would_take_too_long_is_put_off(jobs: LimitedJobs) -> None:
    """Nothing is taken, and the job comes again when it may be worth it; its thread works on."""
    jobs.ctx().rate("k", 2, **SLOW)
    ctx = jobs.ctx()
    with pytest.raises(RetryAfter) as caught:
        ctx.rate("k")
    assert caught.value.delay_s == pytest.approx(1000, rel=0.1)
    assert (tokens(jobs), ctx.waits.rates) == (0, 0)


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_a_wait_is_cut_short_by_a_stop(jobs: LimitedJobs, is_async: bool) -> None:
    """What it was granted in advance is the next one's. The wait is recorded, and was no stall."""
    ctx = jobs.ctx()
    ctx.progress(0.5)
    jobs.ctx().rate("k", 2, **SLOW)

    def body() -> None:
        ctx.rate("k", **FOR_EVER)

    async def async_body() -> None:
        await ctx.rate_async("k", **FOR_EVER)

    def run() -> None:
        with pytest.raises((Cancelled, asyncio.CancelledError)):
            asyncio.run(cancelled_by(ctx, async_body())) if is_async else body()

    def stop() -> None:
        until(lambda: ctx.last_beat == math.inf and tokens(jobs) == -1)
        ctx.stop(Stop.CANCEL)

    together(run, stop)
    assert tokens(jobs) == 0
    assert (ctx.waits.rates, ctx.waits.rate_s > 0, ctx.waits.limits) == (1, True, 0)
    assert ctx.last_beat is not None
    assert ctx.last_beat < math.inf


async def cancelled_by(ctx: Any, body: Any) -> None:
    """As the executor runs async work: a stop cancels its task."""
    task, loop = asyncio.ensure_future(body), asyncio.get_running_loop()
    with ctx.interrupted_by(lambda: loop.call_soon_threadsafe(task.cancel)):
        await task


def test_async_code_waits_without_blocking_its_loop(jobs: LimitedJobs) -> None:
    """Other tasks of the loop go on; the sync calls are refused there, each with what to write instead."""
    jobs.ctx().rate("k", 1, per_s=5, burst=1)
    order: list[str] = []

    async def waits() -> None:
        await jobs.ctx().rate_async("k")
        order.append("granted")

    async def both() -> None:
        waiting = asyncio.create_task(waits())
        order.append("others go on")
        await waiting
        ctx = jobs.ctx()
        grant = await ctx.rate_async("k")
        for call, instead in (
            (lambda: ctx.rate("k"), r"await ctx\.rate_async"),
            (lambda: ctx.penalize("k", 1), r"await ctx\.penalize_async"),
            (grant.refund, r"await grant\.refund_async"),
        ):
            with pytest.raises(RuntimeError, match=instead):
                call()
        await grant.refund_async()
        await ctx.penalize_async("k", 1000)
        with pytest.raises(RetryAfter):
            await ctx.rate_async("k")

    asyncio.run(both())
    assert order == ["others go on", "granted"]


def test_a_task_that_is_cancelled_while_it_asks_leaves_nothing_taken(jobs: LimitedJobs) -> None:
    """The answer comes all the same, and is given back."""
    RateRepository(jobs.connection).set("k", 0.001, 2, actor="ann")
    asking, go_on = threading.Event(), threading.Event()

    def hold_up() -> None:
        asking.set()
        go_on.wait(150)

    async def cancelled() -> None:
        task = asyncio.create_task(jobs.ctx().rate_async("k"))
        await asyncio.to_thread(asking.wait, 60)
        task.cancel()
        await asyncio.sleep(0)
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await task

    jobs.held_up = hold_up
    asyncio.run(cancelled())
    assert tokens(jobs) == 2


def test_a_refund_gives_back_once(jobs: LimitedJobs) -> None:
    """In parts or as a whole, never more than was taken."""
    jobs.ctx().rate("k", **SLOW)
    grant = jobs.ctx().rate("k", 1)
    assert tokens(jobs) == 0
    grant.refund(0.25)
    with pytest.raises(PayloadError):
        grant.refund(1)
    grant.refund()
    grant.refund()
    assert (tokens(jobs), grant.cost) == (1, 0)


def test_a_penalty_slows_those_who_wait_already(jobs: LimitedJobs) -> None:
    """What they were granted is void: they wait for the end of the block, and take anew."""
    jobs.ctx().rate("k", 1, per_s=50, burst=25)
    penalized, asked = threading.Event(), []

    def hold_up_the_second() -> None:
        if threading.current_thread() is waiting:
            asked.append(1)
            if len(asked) == 1:
                RateRepository(jobs.connection).take("k", 25)
            elif len(asked) == 2:
                penalized.wait(150)

    jobs.held_up = hold_up_the_second
    ctx = jobs.ctx()
    waiting = threading.Thread(target=lambda: ctx.rate("k", 25), daemon=True)
    waiting.start()
    until(lambda: len(asked) == 2)
    jobs.ctx().penalize("k", 0.3)
    penalized.set()
    waiting.join(150)
    after, end_of_block = jobs.connection.execute(
        "SELECT clock_timestamp(), blocked_until FROM rate_limits"
    ).fetchone() or (None, None)
    assert after > end_of_block
    assert ctx.waits.rates == 1


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_retry_after_slows_a_key_for_everybody(jobs: LimitedJobs, is_async: bool) -> None:
    """The job is put back, uncounted, and nobody takes from the key until then."""

    def body(job: Any, ctx: Any) -> None:
        raise RetryAfter(1000, "429", penalize="k")

    async def async_body(job: Any, ctx: Any) -> None:
        body(job, ctx)

    jobs.ctx().rate("k", per_s=100)
    ctx = jobs.ctx()
    work = Work("the task", async_body if is_async else body, is_async)
    assert execute(ctx.job, work, ctx) == RetryLater(1000, "429")
    with pytest.raises(RetryAfter) as caught:
        jobs.ctx().rate("k")
    assert caught.value.delay_s == pytest.approx(1000, rel=0.1)


def test_a_penalty_that_fails_changes_no_outcome(jobs: LimitedJobs, caplog: pytest.LogCaptureFixture) -> None:
    """The job is put back all the same; a log line says that nobody is slowed down."""

    def body(job: Any, ctx: Any) -> None:
        raise RetryAfter(5, penalize="nobody ruled it")

    for ctx in (jobs.ctx(), context(ingest_job())):
        assert execute(ctx.job, Work("the task", body, False), ctx) == RetryLater(5, "")
    assert "'nobody ruled it'" in caplog.text
    assert "outside a worker" in caplog.text


def test_threads_of_one_job_share_its_context(jobs: LimitedJobs) -> None:
    """Each takes its own, none twice."""
    ctx = jobs.ctx()
    ctx.rate("k", 0, per_s=20, burst=1)
    began = jobs.connection.execute("SELECT clock_timestamp()").fetchone()
    assert began is not None

    together(*[lambda: ctx.rate("k", **FOR_EVER)] * 12)
    (took_s,) = jobs.connection.execute(
        "SELECT extract(epoch FROM clock_timestamp() - %s)::float8", began
    ).fetchone() or (0.0,)
    assert took_s >= 11 / 20


def test_a_lost_lease_ends_the_wish(jobs: LimitedJobs) -> None:
    """Who holds his job no more takes nothing in its name."""

    def lost() -> None:
        raise LeaseLost("ingest job", 1, 2)

    jobs.held_up = lost
    with pytest.raises(LeaseLost):
        jobs.ctx().rate("k", **SLOW)
    with suppress(LeaseLost):
        jobs.ctx().penalize("k", 1)


def test_outside_a_worker() -> None:
    """There is nobody to share with, which is said."""
    with pytest.raises(ConfigurationError, match="outside a worker"):
        context(ingest_job()).rate("k", per_s=1)


def test_processes_never_get_more_than_the_rate(qwf_dsn: str, jobs: LimitedJobs) -> None:
    """By the server's clock: at no time more than the burst and what came since."""
    per_s, burst = 60.0, 4.0
    jobs.connection.execute("DROP TABLE IF EXISTS taken_at; CREATE TABLE taken_at (at timestamptz)")
    (start,) = jobs.connection.execute("SELECT clock_timestamp()").fetchone() or (None,)

    def of_another_process() -> None:
        with psycopg.connect(qwf_dsn, autocommit=True) as connection:
            ctx = LimitedJobs(connection).ctx()

            def take() -> None:
                with psycopg.connect(qwf_dsn, autocommit=True) as own:
                    for _ in range(6):
                        ctx.rate("k", per_s=per_s, burst=burst, **FOR_EVER)
                        own.execute("INSERT INTO taken_at VALUES (clock_timestamp())")

            together(*[take] * 4)

    together(*[of_another_process] * 3)
    since = "SELECT extract(epoch FROM at - %s)::float8 FROM taken_at ORDER BY at"
    at = [seconds for (seconds,) in jobs.connection.execute(since, [start]).fetchall()]
    assert len(at) == 72
    assert all(count <= burst + per_s * (at[count - 1] + 0.001) for count in range(1, 73))
