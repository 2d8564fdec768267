"""What a host app's tests get from `queue_workflows.testing`, on a real database."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from sqlalchemy.orm import Session

from queue_workflows import (
    ConfigurationError,
    Discard,
    JobContext,
    NewIngestJob,
    PayloadError,
    RetryAfter,
    Skip,
    configure,
    enqueue_ingest_job,
    enqueue_many,
    ingest_task,
)
from queue_workflows.config import reset_config
from queue_workflows.repositories import IngestJobRepository, LimitRepository
from queue_workflows.states import JobStatus
from queue_workflows.testing import (
    all_enqueued,
    assert_enqueued,
    drain,
    inline,
    perform,
    refute_enqueued,
)

Conn = psycopg.Connection[Any]


@pytest.fixture(autouse=True)
def _wiring() -> Iterator[None]:
    configure(ingest_queues={"fetch"})
    yield
    reset_config()


@ingest_task("helpers double", queue="fetch")
def double(reason: str | None, args: dict[str, Any]) -> int:
    """Twice the number."""
    return 2 * int(args["n"])


@ingest_task("helpers async double", queue="fetch")
async def async_double(reason: str | None, args: dict[str, Any]) -> int:
    """Twice the number, on a loop."""
    await asyncio.sleep(0)
    return 2 * int(args["n"])


@ingest_task("helpers fail", queue="fetch", max_attempts=3, backoff=600)
def fail(reason: str | None, args: dict[str, Any]) -> None:
    """Fails."""
    raise ValueError("the shop is closed")


@ingest_task("helpers verdict", queue="fetch")
def verdict(reason: str | None, args: dict[str, Any]) -> None:
    """Raises what it is told to."""
    raise {"skip": Skip("nothing new"), "later": RetryAfter(60, "busy"), "discard": Discard("no use")}[
        args["what"]
    ]


@ingest_task("helpers about itself", queue="fetch", max_attempts=2)
async def about_itself(reason: str | None, args: dict[str, Any], ctx: JobContext) -> dict[str, Any]:
    """Says what it knows of itself."""
    ctx.progress(0.5, "half")
    return {"attempt": ctx.attempt, "last": ctx.is_last_attempt, "reason": reason, "args": args}


@ingest_task("helpers fan out", queue="fetch")
def fan_out(reason: str | None, args: dict[str, Any], ctx: JobContext) -> None:
    """Enqueues two more on a connection of its own."""
    with psycopg.connect(args["dsn"], autocommit=True) as conn:
        double.enqueue_many([{"n": 1}, {"n": 2}], conn=conn)


def enqueue(conn: Any, task: str, **args: Any) -> int:
    return enqueue_ingest_job(task, queue="fetch", args=args, conn=conn).id


class TestAsserting:
    """`assert_enqueued`, `refute_enqueued`, `all_enqueued`."""

    def test_by_task_and_args(self, qwf_jobs, qwf_session: Session) -> None:
        """What a Session has not committed is seen on it, and what waits for later is enqueued too."""
        double.enqueue({"n": 1, "to": {"name": "A", "at": "B"}}, conn=qwf_session)
        later = double.enqueue({"n": 2}, delay=3600, priority=7, conn=qwf_session)
        found = assert_enqueued(double, args__contains={"to": {"name": "A"}}, conn=qwf_session)
        assert (found.task_name, found.status) == ("helpers double", "queued")
        assert assert_enqueued("helpers double", args={"n": 2}, priority=7, conn=qwf_session).id == later.id
        assert [job.args["n"] for job in all_enqueued(conn=qwf_session)] == [1, 2]
        refute_enqueued(double, args={"n": 1}, conn=qwf_session)
        refute_enqueued(fail, conn=qwf_session)
        qwf_jobs.refute_enqueued()

    def test_a_failure_says_what_is_enqueued_instead(self, qwf_jobs) -> None:
        """The task's own jobs first, each with its args, queue, priority, state and id."""
        other = enqueue(qwf_jobs.conn, "helpers fail", n=0)
        near = enqueue(qwf_jobs.conn, "helpers double", n=1)
        with pytest.raises(AssertionError) as told:
            qwf_jobs.assert_enqueued(double, args__contains={"n": 2})
        assert str(told.value).splitlines() == [
            "no job is enqueued as 'helpers double' args__contains={'n': 2}",
            "enqueued are:",
            f"  'helpers double' args={{'n': 1}} queue='fetch' priority=5 (queued, job {near})",
            f"  'helpers fail' args={{'n': 0}} queue='fetch' priority=5 (queued, job {other})",
        ]
        with pytest.raises(AssertionError, match="a job is enqueued as 'helpers double'\n  'helpers double'"):
            qwf_jobs.refute_enqueued(double)
        qwf_jobs.clear()
        with pytest.raises(AssertionError, match="nothing is enqueued here; what another transaction"):
            qwf_jobs.assert_enqueued(double)

    def test_what_was_there_before_may_be_left_out(self, qwf_jobs) -> None:
        """`after` a job of the fixtures, only what the code under test enqueued counts."""
        before = enqueue(qwf_jobs.conn, "helpers double", n=1)
        qwf_jobs.refute_enqueued(double, after=before)
        after = enqueue(qwf_jobs.conn, "helpers double", n=1)
        assert qwf_jobs.assert_enqueued(double, after=before).id == after

    def test_what_another_thread_enqueues_is_waited_for(self, qwf_jobs, qwf_dsn: str) -> None:
        """`within` so many seconds, and no longer than it takes."""
        qwf_jobs.refute_enqueued(double, within=0.05)
        looked = threading.Event()

        def enqueue_later() -> None:
            looked.wait()
            with psycopg.connect(qwf_dsn) as conn:
                enqueue(conn, "helpers double", n=3)

        thread = threading.Thread(target=enqueue_later)
        thread.start()
        with pytest.raises(AssertionError, match=r"no job is enqueued within 0\.01 s as"):
            qwf_jobs.assert_enqueued(double, within=0.01)
        looked.set()
        assert qwf_jobs.assert_enqueued(double, within=60).args == {"n": 3}
        thread.join()


class TestDraining:
    """`drain`."""

    def test_jobs_run_as_in_a_worker(self, qwf_jobs, qwf_dsn: str) -> None:
        """In the order of the claim, sync and async, with what they enqueue; rows end as ever."""
        first = enqueue(qwf_jobs.conn, "helpers fan out", dsn=qwf_dsn)
        second = enqueue(qwf_jobs.conn, "helpers async double", n=21)
        outcomes = qwf_jobs.drain()
        assert [(one.name, one.status, one.result) for one in outcomes] == [
            ("helpers fan out", "completed", None),
            ("helpers async double", "completed", 42),
            ("helpers double", "completed", 2),
            ("helpers double", "completed", 4),
        ]
        rows = IngestJobRepository(qwf_jobs.conn)
        assert [rows.fetch(job).status for job in (first, second)] == ["completed", "completed"]
        assert rows.fetch(second).result == 42
        assert qwf_jobs.drain() == []

    def test_in_the_transaction_of_the_caller(self, qwf_jobs, qwf_session: Session) -> None:
        """A Session's uncommitted jobs run, and a rollback takes it all back."""
        job = double.enqueue({"n": 4}, conn=qwf_session)
        (outcome,) = drain(conn=qwf_session)
        assert (outcome.id, outcome.status, outcome.result) == (job.id, "completed", 8)
        assert IngestJobRepository(qwf_session).fetch(job.id).status == "completed"
        assert IngestJobRepository(qwf_jobs.conn).fetch(job.id) is None
        qwf_session.rollback()
        assert IngestJobRepository(qwf_jobs.conn).counts() == {}

    def test_retries_are_run_when_the_clock_is_moved(self, qwf_jobs) -> None:
        """By hand to just the next try, or over all of them; the errors are those of each attempt."""
        enqueue_ingest_job("helpers fail", queue="fetch", max_attempts=3, backoff_s=600, conn=qwf_jobs.conn)
        (first,) = qwf_jobs.drain()
        assert (first.status, first.attempt, first.is_failure) == ("scheduled", 1, True)
        assert first.delay_s >= 600
        assert first.error["message"] == "the shop is closed"
        qwf_jobs.advance(300)
        assert qwf_jobs.drain() == []
        qwf_jobs.advance(first.delay_s)
        assert [one.attempt for one in qwf_jobs.drain()] == [2]
        (last,) = qwf_jobs.drain(with_scheduled=True)
        assert (last.status, last.attempt) == ("failed", 3)
        with pytest.raises(ValueError, match="the shop is closed"):
            last.raise_failure()

    def test_a_failure_may_be_raised(self, qwf_jobs) -> None:
        """The exception itself, after the row has ended as it should."""
        job = enqueue(qwf_jobs.conn, "helpers fail")
        with pytest.raises(ValueError, match="the shop is closed"):
            qwf_jobs.drain(raises=True)
        assert IngestJobRepository(qwf_jobs.conn).fetch(job).status == "scheduled"

    def test_verdicts_are_no_failures(self, qwf_jobs) -> None:
        """A job that skips, or wants to run later, fails no test; one that is discarded does."""
        jobs = [enqueue(qwf_jobs.conn, "helpers verdict", what=what) for what in ("skip", "later", "discard")]
        outcomes = {one.id: one for one in qwf_jobs.drain()}
        assert [(outcomes[job].status, outcomes[job].is_failure) for job in jobs] == [
            ("skipped", False),
            ("scheduled", False),
            ("failed", True),
        ]
        assert outcomes[jobs[1]].delay_s == 60

    def test_a_task_that_nobody_knows_is_on_hold(self, qwf_jobs) -> None:
        """As in production, and the outcome says so."""
        enqueue(qwf_jobs.conn, "helpers nobody knows")
        (outcome,) = qwf_jobs.drain(with_scheduled=True)
        assert (outcome.status, outcome.hold) == ("scheduled", "unknown_task: helpers nobody knows")

    def test_limits_hold(self, qwf_jobs) -> None:
        """Slots are taken and given back by each job, so those of one key run one after the other."""
        LimitRepository(qwf_jobs.conn).set("account:1", 1, actor="test")
        for n in range(3):
            double.enqueue({"n": n}, limit_key="account:1", conn=qwf_jobs.conn)
        assert [one.result for one in qwf_jobs.drain()] == [0, 2, 4]

    def test_what_never_ends_is_given_up(self, qwf_jobs) -> None:
        """A job that always wants to be run again is named."""
        enqueue(qwf_jobs.conn, "helpers verdict", what="later")
        with pytest.raises(ConfigurationError, match="5 attempts were run and there is no end, the last of"):
            qwf_jobs.drain(with_scheduled=True, most=5)


class TestPerforming:
    """`perform`, which needs no database."""

    def test_a_function_is_run_as_by_a_worker(self) -> None:
        """Args and result go through JSON; `ctx` knows which attempt it is."""
        outcome = perform(about_itself, {"n": (1, 2)}, reason="because", attempt=2)
        assert outcome.status is JobStatus.COMPLETED
        assert outcome.result == {"attempt": 2, "last": True, "reason": "because", "args": {"n": [1, 2]}}
        assert perform("helpers double", {"n": 2}).result == 4

    def test_what_it_raises_is_raised(self) -> None:
        """Unless the test wants to look at the outcome; verdicts are outcomes in any case."""
        with pytest.raises(ValueError, match="the shop is closed"):
            perform(fail)
        outcome = perform(fail, attempt=3, raises=False)
        assert (outcome.status, outcome.error["type"]) == (JobStatus.FAILED, "ValueError")
        assert perform(fail, raises=False).status is JobStatus.SCHEDULED
        assert perform(verdict, {"what": "skip"}).status is JobStatus.SKIPPED

    def test_a_task_that_is_not_imported(self) -> None:
        """It is named."""
        with pytest.raises(ConfigurationError, match="there is no ingest task 'helpers nobody knows'"):
            perform("helpers nobody knows")


class TestInline:
    """`inline`."""

    def test_a_job_runs_as_it_is_enqueued(self, qwf_jobs, qwf_session: Session) -> None:
        """On a Session, in its transaction; what is due later waits; after the block nothing runs."""
        with inline() as outcomes:
            job = double.enqueue({"n": 5}, conn=qwf_session)
            assert IngestJobRepository(qwf_session).fetch(job.id).result == 10
            enqueue_many([double.job({"n": 6}), double.job({"n": 7}, delay=60)], conn=qwf_session)
        assert [one.result for one in outcomes] == [10, 12]
        double.enqueue({"n": 8}, conn=qwf_session)
        assert sorted(job.args["n"] for job in all_enqueued(conn=qwf_session)) == [7, 8]

    def test_a_failure_is_raised_where_it_was_enqueued(self, qwf_jobs) -> None:
        """Or kept in the outcome, and in the row."""
        with inline(), pytest.raises(ValueError, match="the shop is closed"):
            fail.enqueue(conn=qwf_jobs.conn)
        with qwf_jobs.inline(raises=False) as outcomes:
            fail.enqueue(max_attempts=1, conn=qwf_jobs.conn)
        assert [one.status for one in outcomes] == ["failed"]


def test_an_async_test_awaits_its_helpers(qwf_async_jobs, qwf_dsn: str) -> None:
    """The loop of the test goes on while jobs run, sync ones and async ones."""
    jobs = qwf_async_jobs

    async def test() -> None:
        async with await psycopg.AsyncConnection.connect(qwf_dsn, autocommit=True):
            enqueue(jobs.conn, "helpers double", n=1)
            enqueue(jobs.conn, "helpers async double", n=2)
            assert (await jobs.assert_enqueued(async_double)).args == {"n": 2}
            ticks = 0

            async def tick() -> None:
                nonlocal ticks
                while True:
                    await asyncio.sleep(0)
                    ticks += 1

            ticking = asyncio.create_task(tick())
            assert [one.result for one in await jobs.drain()] == [2, 4]
            ticking.cancel()
            assert ticks > 0
            await jobs.refute_enqueued()
            assert (await jobs.perform(async_double, {"n": 4})).result == 8
            assert perform(async_double, {"n": 5}).result == 10

    asyncio.run(test())


@ingest_task("helpers dawdle", queue="fetch", max_attempts=2, backoff=60)
async def dawdle(reason: str | None, args: dict[str, Any]) -> None:
    """Takes longer than anybody waits."""
    await asyncio.sleep(3600)


@ingest_task("helpers plod", queue="fetch", max_attempts=1)
def plod(reason: str | None, args: dict[str, Any]) -> str:
    """Takes a while, and cannot be interrupted."""
    time.sleep(0.3)
    return "done"


def test_limits_of_time_hold(qwf_jobs) -> None:
    """An async function is cancelled, another one is waited for; both have failed, as in a worker."""
    dawdle.enqueue(conn=qwf_jobs.conn, timeout_s=0.05)
    plod.enqueue(conn=qwf_jobs.conn, timeout_s=0.05)
    plod.enqueue(conn=qwf_jobs.conn, timeout_s=3600)
    first, second, third = qwf_jobs.drain()
    assert (first.status, first.error["kind"], first.is_failure) == ("scheduled", "wall_clock", True)
    assert (second.status, second.error["kind"], second.result) == ("failed", "wall_clock", None)
    assert "its limit is 0.05 s" in second.error["message"]
    assert (third.status, third.result) == ("completed", "done")


@ingest_task("helpers square", queue="fetch")
def square(n: int, times: list[int] | None = None) -> int:
    """With types."""
    return n * n


def test_args_are_checked_wherever_their_types_are_known(qwf_jobs) -> None:
    """By the task's name too, one or many; elsewhere when the job runs, which then is not tried again."""
    conn = qwf_jobs.conn
    made = enqueue_ingest_job("helpers square", queue="fetch", args={"n": "3"}, conn=conn)
    assert qwf_jobs.assert_enqueued(square).args == {"n": 3}
    with pytest.raises(PayloadError) as refused:
        enqueue_ingest_job("helpers square", queue="fetch", args={"n": 1, "times": ["two"]}, conn=conn)
    assert refused.value.path == "args.times[0]"
    good, bad = ({"n": 1}, {"m": 1})
    jobs = [NewIngestJob(task_name="helpers square", queue="fetch", args=args) for args in (good, bad)]
    with pytest.raises(PayloadError) as refused:
        enqueue_many(jobs, conn=conn)
    assert refused.value.path.startswith("jobs[1].args.")
    conn.execute(
        "SELECT qwf_enqueue('helpers square', 'fetch', '{\"n\": \"three\"}', '{\"max_attempts\": 5}')"
    )
    done, failed = qwf_jobs.drain()
    assert (done.id, done.result) == (made.id, 9)
    assert (failed.status, failed.attempt) == ("failed", 1)
    assert "n: Input should be a valid integer" in failed.error["message"]
