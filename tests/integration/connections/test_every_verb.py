"""Every verb on every kind of connection: it rides the owner's transaction, whichever driver that is."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import psycopg
import pytest
from support.connections.kinds import KINDS, Brought, waiting_for_lock
from support.stages.wakes import Ear

import queue_workflows as qwf
from queue_workflows import (
    DispatchEventRepository,
    IngestJobRepository,
    InputSubmissionRepository,
    NewIngestJob,
    NodeJobRepository,
    RunRepository,
    ingest_task,
)
from queue_workflows.repositories import Enqueued

every_kind = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
DOCUMENT = {
    "name": "approval",
    "nodes": [{"id": "ask", "type": "input", "schema": {"ok": {"type": "boolean"}}}],
}


@ingest_task("connections.greet", queue="fetch", max_attempts=7)
def greet(reason: str | None, args: dict[str, Any]) -> None:
    """A task with a default of its own."""


@pytest.fixture(autouse=True)
def empty(qwf_dsn: str) -> None:
    """Each test begins without jobs and runs."""
    with psycopg.connect(qwf_dsn) as connection:
        connection.execute("TRUNCATE ingest_jobs, workflow_runs CASCADE")


def committed(dsn: str, sql: str) -> list[Any]:
    """The first column of what another connection sees."""
    with psycopg.connect(dsn) as connection:
        return [row[0] for row in connection.execute(sql)]


def job(task: str, args: dict[str, Any] | None = None, **options: Any) -> NewIngestJob:
    """One of many."""
    return NewIngestJob(task_name=task, queue="fetch", args=args, **options)


async def enqueue_one(on: Brought) -> list[str]:
    """A job without options."""
    await on.verb(qwf, "enqueue_ingest_job", "plain", queue="fetch", args={"a": 1})
    return ["plain"]


async def enqueue_with_options(on: Brought) -> list[str]:
    """A job with most that can be said of one."""
    await on.verb(
        qwf,
        "enqueue_ingest_job",
        "full",
        queue="fetch",
        args={"text": "100% %(sure)s $1 é", "n": [1.5, None]},
        reason="why",
        dedupe_key="k",
        priority=9,
        delay=3600,
        limit_key="host:x",
        max_attempts=2,
        backoff_s=1,
        timeout_s=2.5,
        stall_timeout_s=3,
        host_lock="lock",
        max_crashes=4,
    )
    return ["full"]


async def enqueue_keyed(on: Brought) -> list[str]:
    """A job that may have to wait in the lane of its key."""
    await on.verb(qwf, "enqueue_ingest_job", "keyed", queue="fetch", limit_key="host:y")
    return ["keyed"]


async def enqueue_bulk(on: Brought) -> list[str]:
    """Two jobs that differ in all."""
    jobs = [
        job("first", {"n": 1}, dedupe_key="a", limit_key="x", backoff_s=2),
        job("second", {"n": 2}, priority=7, delay=60, at_most_once=True),
    ]
    await on.verb(qwf, "enqueue_many", jobs)
    return ["first", "second"]


async def enqueue_by_task(on: Brought) -> list[str]:
    """By a task: one, and many."""
    await on.verb(greet, "enqueue", {"name": "x"})
    await on.verb(greet, "enqueue_many", [{"name": "y"}, {"name": "z"}])
    return ["connections.greet"] * 3


async def enqueue_unique(on: Brought) -> list[str]:
    """Unique jobs, one and many, of which the second changes the first."""
    soon = qwf.Unique(by=("args.n",), replace=("args", "priority", "run_at"))
    await on.verb(qwf, "enqueue_ingest_job", "one", queue="fetch", args={"n": 1}, unique=soon)
    other = job("two", {"n": 1}, unique=qwf.Unique())
    made = await on.verb(
        qwf, "enqueue_many", [job("one", {"n": 1, "é": "%"}, unique=soon, priority=7), other, other]
    )
    assert [each.created for each in made] == [False, True, False]
    return ["one", "two"]


enqueues = pytest.mark.parametrize(
    "enqueue",
    [enqueue_one, enqueue_with_options, enqueue_keyed, enqueue_bulk, enqueue_by_task, enqueue_unique],
)
TASKS = "SELECT task_name FROM ingest_jobs ORDER BY position"


def on(
    kind: type[Brought], dsn: str, scene: Callable[[Brought], Awaitable[None]], *, serializable: bool = False
) -> None:
    """The scene with an open connection of this kind."""

    async def played() -> None:
        async with kind(dsn, serializable=serializable) as brought:
            await scene(brought)

    asyncio.run(played())


@every_kind
@enqueues
def test_a_job_exists_exactly_if_the_transaction_commits(
    kind: type[Brought], enqueue: Callable[[Brought], Awaitable[list[str]]], qwf_dsn: str
) -> None:
    """Nobody sees it and nobody is woken before; what is rolled back never was."""

    async def scene(brought: Brought) -> None:
        with Ear(qwf_dsn) as ear:
            await enqueue(brought)
            assert committed(qwf_dsn, TASKS) == []
            await brought.run(brought.rollback)
            assert (committed(qwf_dsn, TASKS), ear.heard()) == ([], [])
            tasks = await enqueue(brought)
            assert ear.heard() == []
            await brought.run(brought.commit)
            assert committed(qwf_dsn, TASKS) == tasks
            queued = committed(qwf_dsn, "SELECT count(*) FROM ingest_jobs WHERE status = 'queued'")
            assert set(ear.heard()) == ({"fetch"} if queued != [0] else set())

    on(kind, qwf_dsn, scene)


@every_kind
def test_a_savepoint_takes_its_own_along(kind: type[Brought], qwf_dsn: str) -> None:
    """What is enqueued within it goes with it, what was before stays, and the transaction goes on."""

    async def scene(brought: Brought) -> None:
        await enqueue_one(brought)
        savepoint = await brought.run(brought.savepoint)
        await enqueue_bulk(brought)
        await brought.run(lambda: brought.back(savepoint))
        await enqueue_keyed(brought)
        await brought.run(brought.commit)
        assert committed(qwf_dsn, TASKS) == ["plain", "keyed"]

    on(kind, qwf_dsn, scene)


@every_kind
def test_all_that_was_said_is_stored(kind: type[Brought], qwf_dsn: str) -> None:
    """Each option as it was given, and read back by the same connection as by any other."""

    async def scene(brought: Brought) -> None:
        await enqueue_with_options(brought)
        (found,) = await brought.reading(IngestJobRepository, "list", dedupe_key="k", status="scheduled")
        said = (
            *(
                found.task_name,
                found.queue,
                found.args,
                found.reason,
                found.priority,
                found.limit_key,
                found.max_attempts,
            ),
            *(found.backoff_s, found.timeout_s, found.stall_timeout_s, found.host_lock, found.max_crashes),
        )
        assert said == (
            *("full", "fetch", {"text": "100% %(sure)s $1 é", "n": [1.5, None]}, "why", 9, "host:x", 2),
            *(1.0, 2.5, 3.0, "lock", 4),
        )
        assert found.run_at > found.created_at
        assert (await brought.reading(IngestJobRepository, "fetch", found.id)).args == found.args
        assert await brought.reading(IngestJobRepository, "counts") == {"fetch": {"scheduled": 1}}

    on(kind, qwf_dsn, scene)


@every_kind
def test_many_with_keys_in_several_statements(kind: type[Brought], qwf_dsn: str) -> None:
    """Answers come in the order given; what is there already, or twice, is pointed at."""
    jobs = [job("many", {"n": n}, dedupe_key=f"key-{n % 4_200}") for n in range(4_201)]

    async def scene(brought: Brought) -> None:
        there = await brought.verb(qwf, "enqueue_ingest_job", "many", queue="fetch", dedupe_key="key-7")
        answers = await brought.verb(qwf, "enqueue_many", jobs)
        assert [number for number, answer in enumerate(answers) if not answer.created] == [7, 4_200]
        assert (answers[7].id, answers[4_200].id) == (there.id, answers[0].id)
        await brought.run(brought.commit)
        numbers = committed(qwf_dsn, "SELECT (args ->> 'n')::int FROM ingest_jobs ORDER BY position")
        assert numbers[1:] == [n for n in range(4_200) if n != 7]

    on(kind, qwf_dsn, scene)


@every_kind
@pytest.mark.parametrize("ends", ["commit", "rollback"])
@pytest.mark.parametrize("bulk", [False, True], ids=["one", "bulk"])
def test_a_key_that_is_held_open_is_waited_for(
    kind: type[Brought], ends: str, bulk: bool, qwf_dsn: str
) -> None:
    """The row of the other transaction if that commits, a row of its own if it rolls back."""

    async def scene(brought: Brought) -> None:
        async with await psycopg.AsyncConnection.connect(qwf_dsn) as holder:
            held = await qwf.aenqueue_ingest_job("t", queue="fetch", dedupe_key="k", conn=holder)
            if bulk:
                asked = brought.verb(qwf, "enqueue_many", [job("t", dedupe_key="k")])
            else:
                asked = brought.verb(qwf, "enqueue_ingest_job", "t", queue="fetch", dedupe_key="k")
            async with waiting_for_lock(qwf_dsn, asked) as task:
                await getattr(holder, ends)()
            got = task.result()[0] if bulk else task.result()
            await brought.run(brought.commit)
        assert (got == Enqueued(held.id, False)) is (ends == "commit")
        assert got.created is (ends == "rollback")
        assert committed(qwf_dsn, "SELECT id FROM ingest_jobs") == [got.id]

    on(kind, qwf_dsn, scene)


@every_kind
def test_a_serializable_transaction_depends_on_its_key_alone(kind: type[Brought], qwf_dsn: str) -> None:
    """Jobs beside others' commit; a key that came after its snapshot is a serialization failure, as it is."""

    async def scene(brought: Brought) -> None:
        await brought.run(lambda: None)
        await enqueue_bulk(brought)
        with psycopg.connect(qwf_dsn) as other:
            other.isolation_level = psycopg.IsolationLevel.SERIALIZABLE
            qwf.enqueue_ingest_job("others", queue="fetch", limit_key="x", conn=other)
            other.commit()
            await enqueue_one(brought)
            await brought.run(brought.commit)
            assert sorted(committed(qwf_dsn, TASKS)) == ["first", "others", "plain", "second"]
            await enqueue_one(brought)
            qwf.enqueue_ingest_job("t", queue="fetch", dedupe_key="late", conn=other)
            other.commit()
        with pytest.raises(Exception) as failed:  # noqa: PT011 - each driver has its own
            await brought.verb(qwf, "enqueue_ingest_job", "t", queue="fetch", dedupe_key="late")
        assert sqlstate(failed.value) == "40001"
        assert not isinstance(failed.value, qwf.QwfError)

    on(kind, qwf_dsn, scene, serializable=True)


def sqlstate(error: BaseException) -> str | None:
    """As the driver says it, below what SQLAlchemy and Django put around."""
    own = getattr(error, "orig", None) or error
    found = getattr(own, "sqlstate", None) or getattr(own, "pgcode", None)
    return found or (sqlstate(error.__cause__) if error.__cause__ else None)


@every_kind
def test_the_verbs_of_runs(kind: type[Brought], qwf_dsn: str) -> None:
    """A run is started, answered and cancelled, once, and read back, all in one transaction."""

    async def scene(brought: Brought) -> None:
        started = await brought.verb(
            qwf, "start_run", DOCUMENT, dedupe_key="r", labels={"a": "b"}, priority=7
        )
        again = await brought.verb(qwf, "start_run", DOCUMENT, dedupe_key="r")
        assert (again.id, started.created, again.created) == (started.id, True, False)
        submission = await brought.verb(qwf, "submit_input", started, "ask", {"ok": True}, submitted_by="me")
        with pytest.raises(qwf.PayloadError):
            await brought.verb(qwf, "submit_input", started, "ask", {"ok": "perhaps"})
        assert await brought.verb(qwf, "cancel_run", started, reason="enough", actor="me") is True
        run = await brought.reading(RunRepository, "fetch", started.id)
        assert (run.id, run.workflow_name, run.labels, run.priority, run.status) == (
            *(started.id, "approval", {"a": "b"}, 7),
            "queued",
        )
        assert [one.id for one in await brought.reading(RunRepository, "list")] == [started.id]
        (pending,) = await brought.reading(InputSubmissionRepository, "pending")
        assert (pending.id, pending.run_id, pending.payload, pending.submitted_by) == (
            *(submission, started.id, {"ok": True}),
            "me",
        )
        events = await brought.reading(DispatchEventRepository, "list", run_id=started.id)
        asked = [event.payload for event in events if event.kind == "cancel"]
        assert asked == [{"reason": "enough", "actor": "me"}]
        assert await brought.reading(NodeJobRepository, "list", run_id=started.id) == []
        assert committed(qwf_dsn, "SELECT id FROM workflow_runs") == []
        await brought.run(brought.commit)
        assert committed(qwf_dsn, "SELECT id FROM workflow_runs") == [started.id]
        with pytest.raises(qwf.UnknownRun):
            await brought.verb(qwf, "cancel_run", "01a219cf-e879-7d26-bcc5-33a08ddbc279")

    on(kind, qwf_dsn, scene)


@every_kind
def test_the_verbs_of_runs_that_are_over_and_of_many(kind: type[Brought], qwf_dsn: str) -> None:
    """A run is retried with another document, a node of it cancelled, many runs at once, queues are seen."""
    more = {**DOCUMENT, "nodes": [*DOCUMENT["nodes"], {"id": "more", "module": "work"}]}

    async def scene(brought: Brought) -> None:
        run, other = [await brought.verb(qwf, "start_run", DOCUMENT) for _ in range(2)]
        await brought.run(brought.commit)
        with psycopg.connect(qwf_dsn) as connection:
            failed = "UPDATE workflow_runs SET status = 'failed', finished_at = now() WHERE id = %s"
            connection.execute(failed, (run.id,))
        told = await brought.verb(qwf, "retry_run", run, document=more, dry_run=True)
        assert (told.again, told.changed) == (("ask", "more"), ("more",))
        assert await brought.verb(qwf, "retry_run", run, document=more, actor="me", reason="why") == told
        assert await brought.verb(qwf, "cancel_node", run, "more", actor="me") is True
        was = await brought.verb(qwf, "cancel_runs", [run, other], reason="enough")
        assert was == {run.id: "running", other.id: "queued"}
        await brought.verb(qwf, "enqueue_ingest_job", "t", queue="fetch")
        seen = await brought.verb(qwf, "ingest_snapshot")
        assert (seen["fetch"].queued, seen["fetch"].running) == (1, 0)
        await brought.run(brought.commit)
        kinds = sorted(committed(qwf_dsn, "SELECT kind FROM workflow_dispatch_events"))
        assert kinds == [*["cancel"] * 3, "reopen"]

    on(kind, qwf_dsn, scene)


@every_kind
def test_an_error_of_the_servers_is_the_drivers_own(kind: type[Brought], qwf_dsn: str) -> None:
    """A foreign key that points nowhere is what the owner's code catches it as."""

    async def scene(brought: Brought) -> None:
        with pytest.raises(Exception) as failed:  # noqa: PT011 - each driver has its own
            await brought.reading(
                *(InputSubmissionRepository, "insert", "01a219cf-e879-7d26-bcc5-33a08ddbc279", "n", {})
            )
        assert sqlstate(failed.value) == "23503"
        assert not isinstance(failed.value, qwf.QwfError)

    on(kind, qwf_dsn, scene)


def test_a_cancelled_caller_leaves_no_job(qwf_dsn: str) -> None:
    """A task that is cancelled while its verb waits for a lock is over, and nothing of it stays."""

    async def scene(brought: Brought) -> None:
        async with await psycopg.AsyncConnection.connect(qwf_dsn) as holder:
            await qwf.aenqueue_ingest_job("t", queue="fetch", dedupe_key="k", conn=holder)
            asked = brought.verb(qwf, "enqueue_ingest_job", "t", queue="fetch", dedupe_key="k")
            with pytest.raises(asyncio.CancelledError):
                async with waiting_for_lock(qwf_dsn, asked) as task:
                    task.cancel()
            await holder.rollback()
        await brought.run(brought.rollback)
        assert committed(qwf_dsn, TASKS) == []

    for kind in KINDS:
        if kind.awaited:
            on(kind, qwf_dsn, scene)
