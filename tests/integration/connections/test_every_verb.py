"""Every verb on every kind of connection: it rides the owner's transaction, whichever driver that is."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, TypeAlias

import psycopg
import pytest
from support.connections.kinds import (
    KINDS,
    Asyncpg,
    AsyncPsycopg,
    Brought,
    Django,
    Psycopg,
    Psycopg2,
    waiting_for_lock,
)
from support.connections.writing import (
    DOCUMENT,
    EVENTS,
    JOBS,
    LONGER,
    WRITING,
    Stage,
    Writing,
    clear,
    enqueue_bulk,
    enqueue_one,
    enqueue_with_options,
    everything,
    job,
    retry_run,
    stage,
)
from support.stages.wakes import Ear

import queue_workflows as qwf
from queue_workflows import (
    DispatchEventRepository,
    IngestJobRepository,
    InputSubmissionRepository,
    NodeJobRepository,
    RateRepository,
    RunRepository,
)

every_kind = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
# What the other kinds are made of: these alone where all verbs, or much, would be tried with each kind.
DRIVERS = (Psycopg, Psycopg2, Django, AsyncPsycopg, Asyncpg)
SHARE = 3


def marks(*, is_slow: bool) -> list[pytest.MarkDecorator]:
    return [pytest.mark.slow] if is_slow else []


every_driver = pytest.mark.parametrize(
    "kind",
    [pytest.param(kind, marks=marks(is_slow=kind not in DRIVERS)) for kind in KINDS],
    ids=lambda kind: kind.__name__,
)
every_verb = pytest.mark.parametrize(
    ("kind", "verb"),
    [
        pytest.param(kind, verb, marks=marks(is_slow=kind not in DRIVERS and (at + number) % SHARE > 0))
        for at, kind in enumerate(KINDS)
        for number, verb in enumerate(WRITING)
        if verb.is_awaitable or not kind.awaited
    ],
    ids=lambda one: getattr(one, "__name__", str(one)),
)
Eye: TypeAlias = psycopg.Connection[Any]
# Who idles, and on which channel it hears that there is something for it.
IDLE = {"fetch": "ingest_job_ready", "qwf:dispatch": "dispatch_ready", "qwf:ended": "something_ended"}


@pytest.fixture(scope="module")
def eye(qwf_dsn: str) -> Iterator[Eye]:
    """Another connection, which sees what is committed."""
    with psycopg.connect(qwf_dsn, autocommit=True) as conn:
        yield conn


@pytest.fixture(scope="module")
def ear(qwf_dsn: str) -> Iterator[Ear]:
    """What those hear that idle."""
    with Ear(qwf_dsn, *IDLE, channels=tuple(IDLE.values())) as ear:
        yield ear


@pytest.fixture(autouse=True)
def _empty(eye: Eye) -> None:
    """Each test begins without jobs and runs."""
    clear(eye)


@pytest.fixture
def there(eye: Eye) -> Stage:
    """Or with one of each."""
    return stage(eye)


def committed(conn: psycopg.Connection[Any], sql: str) -> list[Any]:
    """The first column of what another connection sees."""
    return [row[0] for row in conn.execute(sql)]


def on(
    kind: type[Brought], dsn: str, scene: Callable[[Brought], Awaitable[None]], *, serializable: bool = False
) -> None:
    """The scene with an open connection of this kind."""

    async def played() -> None:
        async with kind(dsn, serializable=serializable) as brought:
            await scene(brought)

    asyncio.run(played())


@every_verb
def test_it_is_the_owner_s_transaction_that_writes(
    kind: type[Brought], verb: Writing, qwf_dsn: str, *, eye: Eye, ear: Ear, there: Stage
) -> None:
    """Nobody sees or hears of it before the commit; what is rolled back, whole or in part, never was."""

    async def scene(brought: Brought) -> None:
        nothing = everything(eye), ear.heard()[:0]
        await verb.act(brought, there)
        assert everything(eye) == nothing[0]
        await brought.run(brought.rollback)
        assert (everything(eye), ear.heard()) == nothing

        savepoint = await brought.run(brought.savepoint)
        await verb.act(brought, there)
        await brought.run(lambda: brought.back(savepoint))
        await brought.run(brought.commit)
        assert (everything(eye), ear.heard()) == nothing

        savepoint = await brought.run(brought.savepoint)
        expected = await verb.act(brought, there)
        await brought.run(lambda: brought.release(savepoint))
        assert (everything(eye), ear.heard()) == nothing
        await brought.run(brought.commit)
        assert (committed(eye, verb.seen), set(ear.heard())) == (expected, verb.wakes)

    on(kind, qwf_dsn, scene)


@every_kind
def test_a_savepoint_takes_its_own_along(kind: type[Brought], qwf_dsn: str, eye: Eye) -> None:
    """What was enqueued before it stays, and what is enqueued after it comes."""

    async def scene(brought: Brought) -> None:
        await brought.verb(qwf, "enqueue_ingest_job", "before", queue="fetch")
        savepoint = await brought.run(brought.savepoint)
        await brought.verb(qwf, "enqueue_many", [job("within"), job("within")])
        await brought.run(lambda: brought.back(savepoint))
        await brought.verb(qwf, "enqueue_ingest_job", "after", queue="fetch")
        await brought.run(brought.commit)
        assert committed(eye, JOBS) == ["before", "after"]

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


@every_driver
def test_many_with_keys_in_several_statements(kind: type[Brought], qwf_dsn: str, eye: Eye) -> None:
    """Answers come in the order given; what is there already, or twice, is pointed at."""
    jobs = [job("many", {"n": n}, dedupe_key=f"key-{n % 4_200}") for n in range(4_201)]

    async def scene(brought: Brought) -> None:
        there = await brought.verb(qwf, "enqueue_ingest_job", "many", queue="fetch", dedupe_key="key-7")
        answers = await brought.verb(qwf, "enqueue_many", jobs)
        assert [number for number, answer in enumerate(answers) if not answer.created] == [7, 4_200]
        assert (answers[7].id, answers[4_200].id) == (there.id, answers[0].id)
        await brought.run(brought.commit)
        numbers = committed(eye, "SELECT (args ->> 'n')::int FROM ingest_jobs ORDER BY position")
        assert numbers[1:] == [n for n in range(4_200) if n != 7]

    on(kind, qwf_dsn, scene)


async def enqueue_held(on: Brought) -> Any:
    """A job with a key."""
    return await on.verb(qwf, "enqueue_ingest_job", "t", queue="fetch", dedupe_key="k")


async def enqueue_many_held(on: Brought) -> Any:
    """Many with a key, or one."""
    return (await on.verb(qwf, "enqueue_many", [job("t", dedupe_key="k")]))[0]


async def enqueue_unique_held(on: Brought) -> Any:
    """A unique job."""
    return await on.verb(qwf, "enqueue_ingest_job", "t", queue="fetch", unique=qwf.Unique(key="k"))


async def start_run_held(on: Brought) -> Any:
    """A run with a key."""
    return await on.verb(qwf, "start_run", DOCUMENT, dedupe_key="k")


@every_driver
@pytest.mark.parametrize("make", [enqueue_held, enqueue_many_held, enqueue_unique_held, start_run_held])
def test_a_key_that_is_held_open_is_waited_for(
    kind: type[Brought], make: Callable[[Brought], Awaitable[Any]], qwf_dsn: str, eye: Eye
) -> None:
    """One's own where the other transaction rolls back, and the other's where it commits."""
    found = "SELECT id::text FROM ingest_jobs UNION ALL SELECT id::text FROM workflow_runs"

    async def scene(brought: Brought) -> None:
        async with AsyncPsycopg(qwf_dsn) as holder:
            for ends in (holder.rollback, holder.commit):
                held = await make(holder)
                async with waiting_for_lock(qwf_dsn, make(brought)) as task:
                    await ends()
                got = task.result()
                is_theirs = ends == holder.commit
                assert (got.created, got.id == held.id) == (not is_theirs, is_theirs)
                await brought.run(brought.commit if is_theirs else brought.rollback)
        assert committed(eye, found) == [str(got.id)]

    on(kind, qwf_dsn, scene)


@every_driver
def test_a_run_that_is_held_is_waited_for_by_a_retry(
    kind: type[Brought], qwf_dsn: str, eye: Eye, there: Stage
) -> None:
    """It is retried where the other's retry is rolled back, and refused where that commits."""

    async def scene(brought: Brought) -> None:
        async with AsyncPsycopg(qwf_dsn) as holder:
            await retry_run(holder, there)
            async with waiting_for_lock(qwf_dsn, retry_run(brought, there)):
                await holder.rollback()
            await brought.run(brought.rollback)
            await retry_run(holder, there)
            with pytest.raises(qwf.RunRefused, match="is running"):
                async with waiting_for_lock(qwf_dsn, retry_run(brought, there)):
                    await holder.commit()
            await brought.run(brought.commit)
        assert committed(eye, EVENTS) == ["reopen"]

    on(kind, qwf_dsn, scene)


@every_kind
def test_jobs_of_serializable_transactions_are_independent(
    kind: type[Brought], qwf_dsn: str, eye: Eye
) -> None:
    """Those of one commit beside those of another that came in between."""

    async def scene(brought: Brought) -> None:
        await enqueue_bulk(brought)
        with psycopg.connect(qwf_dsn) as other:
            other.isolation_level = psycopg.IsolationLevel.SERIALIZABLE
            qwf.enqueue_ingest_job("others", queue="fetch", limit_key="x", conn=other)
            other.commit()
        await enqueue_one(brought)
        await brought.run(brought.commit)
        assert sorted(committed(eye, JOBS)) == ["first", "others", "plain", "second"]

    on(kind, qwf_dsn, scene, serializable=True)


@every_driver
def test_a_serializable_transaction_takes_every_verb(kind: type[Brought], qwf_dsn: str, eye: Eye) -> None:
    """One that nobody else is in the way of commits; what came after its snapshot is a failure, as it is."""

    async def scene(brought: Brought) -> None:
        with psycopg.connect(qwf_dsn) as other:
            other.isolation_level = psycopg.IsolationLevel.SERIALIZABLE
            for verb in WRITING:
                if kind.awaited and not verb.is_awaitable:
                    continue
                clear(other)
                there = stage(other)
                if verb.late is not None:
                    # The first statement takes the snapshot.
                    await brought.reading(RateRepository, "now")
                    verb.late(other, there)
                    other.commit()
                    before = everything(eye)
                    with pytest.raises(Exception) as failed:  # noqa: PT011 - each driver has its own
                        await verb.act(brought, there)
                    assert sqlstate(failed.value) == "40001", verb
                    assert not isinstance(failed.value, qwf.QwfError), verb
                    await brought.run(brought.rollback)
                    assert everything(eye) == before, verb
                    clear(other)
                    there = stage(other)
                expected = await verb.act(brought, there)
                await brought.run(brought.commit)
                assert committed(eye, verb.seen) == expected, verb

    on(kind, qwf_dsn, scene, serializable=True)


def sqlstate(error: BaseException) -> str | None:
    """As the driver says it, below what SQLAlchemy and Django put around."""
    own = getattr(error, "orig", None) or error
    found = getattr(own, "sqlstate", None) or getattr(own, "pgcode", None)
    return found or (sqlstate(error.__cause__) if error.__cause__ else None)


@every_kind
def test_the_verbs_of_runs(kind: type[Brought], qwf_dsn: str, eye: Eye) -> None:
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
        assert committed(eye, "SELECT id FROM workflow_runs") == []
        await brought.run(brought.commit)
        assert committed(eye, "SELECT id FROM workflow_runs") == [started.id]
        with pytest.raises(qwf.UnknownRun):
            await brought.verb(qwf, "cancel_run", "01a219cf-e879-7d26-bcc5-33a08ddbc279")

    on(kind, qwf_dsn, scene)


@every_kind
def test_the_verbs_of_runs_that_are_over_and_of_many(kind: type[Brought], qwf_dsn: str, eye: Eye) -> None:
    """A run is retried with another document, a node of it cancelled, many runs at once, queues are seen."""

    async def scene(brought: Brought) -> None:
        run, other = [await brought.verb(qwf, "start_run", DOCUMENT) for _ in range(2)]
        await brought.run(brought.commit)
        with psycopg.connect(qwf_dsn) as connection:
            failed = "UPDATE workflow_runs SET status = 'failed', finished_at = now() WHERE id = %s"
            connection.execute(failed, (run.id,))
        told = await brought.verb(qwf, "retry_run", run, document=LONGER, dry_run=True)
        assert (told.again, told.changed) == (("ask", "more"), ("more",))
        assert await brought.verb(qwf, "retry_run", run, document=LONGER, actor="me", reason="why") == told
        assert await brought.verb(qwf, "cancel_node", run, "more", actor="me") is True
        was = await brought.verb(qwf, "cancel_runs", [run, other], reason="enough")
        assert was == {run.id: "running", other.id: "queued"}
        await brought.verb(qwf, "enqueue_ingest_job", "t", queue="fetch")
        seen = await brought.verb(qwf, "ingest_snapshot")
        assert (seen["fetch"].queued, seen["fetch"].running) == (1, 0)
        await brought.run(brought.commit)
        kinds = sorted(committed(eye, "SELECT kind FROM workflow_dispatch_events"))
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


def test_a_cancelled_caller_leaves_no_job(qwf_dsn: str, eye: Eye) -> None:
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
        assert committed(eye, JOBS) == []

    for kind in KINDS:
        if kind.awaited:
            on(kind, qwf_dsn, scene)


def test_no_verb_is_left_out() -> None:
    """Each public verb that takes a connection, in two forms, stands in the table."""
    called = {name for verb in WRITING for name in verb.act.__code__.co_consts if isinstance(name, str)}
    taking = {
        name
        for name in qwf.__all__
        if f"a{name}" in qwf.__all__ and "conn" in inspect.signature(getattr(qwf, name)).parameters
    }
    assert taking - called == {"ingest_snapshot"}
