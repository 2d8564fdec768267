"""Enqueueing is an INSERT: the job and its wake exist exactly if the caller's transaction commits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from psycopg.rows import dict_row
from sqlalchemy.orm import Session, scoped_session, sessionmaker
from support.stages.wakes import Ear

from queue_workflows.models import Base, IngestJob
from queue_workflows.repositories import IngestJobRepository, NewIngestJob, enqueue_ingest_job, enqueue_many


def enqueue_one(conn: Any) -> None:
    """The single verb."""
    IngestJobRepository(conn).enqueue("task", queue="fetch")


def enqueue_two_in_bulk(conn: Any) -> None:
    """The bulk verb."""
    job = NewIngestJob(task_name="task", queue="fetch")
    IngestJobRepository(conn).enqueue_many([job, job])


def enqueue_by_the_public_face(conn: Any) -> None:
    """The module-level functions."""
    enqueue_ingest_job("task", queue="fetch", conn=conn)
    enqueue_many([NewIngestJob(task_name="task", queue="fetch")], conn=conn)


verbs = pytest.mark.parametrize("enqueue", [enqueue_one, enqueue_two_in_bulk, enqueue_by_the_public_face])


@pytest.fixture(autouse=True)
def empty(qwf_dsn: str) -> None:
    """Each test begins without jobs."""
    with psycopg.connect(qwf_dsn) as connection:
        connection.execute("TRUNCATE ingest_jobs")


def tasks(dsn: str) -> list[str]:
    """The names of all committed jobs, in their order."""
    with psycopg.connect(dsn) as connection:
        return [name for (name,) in connection.execute("SELECT task_name FROM ingest_jobs ORDER BY position")]


@verbs
def test_rollback_leaves_no_row_and_no_wake(
    qwf_dsn: str, qwf_session: Session, enqueue: Callable[[Any], None]
) -> None:
    """What a Session rolls back never was, and nobody is woken for it."""
    with Ear(qwf_dsn) as ear:
        enqueue(qwf_session)
        assert tasks(qwf_dsn) == []
        qwf_session.rollback()
        assert ear.heard() == []
    assert tasks(qwf_dsn) == []


@verbs
def test_commit_brings_row_and_wake(
    qwf_dsn: str, qwf_session: Session, enqueue: Callable[[Any], None]
) -> None:
    """What a Session commits is there, and wakes the queue once: not before the commit."""
    with Ear(qwf_dsn) as ear:
        enqueue(qwf_session)
        assert ear.heard() == []
        qwf_session.commit()
        assert ear.heard() == ["fetch"]
    assert set(tasks(qwf_dsn)) == {"task"}


def test_savepoints_are_the_callers(qwf_dsn: str, qwf_session: Session) -> None:
    """What is enqueued in a savepoint goes with it when it is rolled back, and the rest is committed."""
    jobs = IngestJobRepository(qwf_session)
    jobs.enqueue("outer", queue="fetch")
    with qwf_session.begin_nested() as inner:
        jobs.enqueue("inner", queue="fetch")
        jobs.enqueue_many([NewIngestJob(task_name="inner", queue="fetch")])
        inner.rollback()
    with qwf_session.begin_nested():
        jobs.enqueue("kept", queue="fetch")
    qwf_session.commit()
    assert tasks(qwf_dsn) == ["outer", "kept"]


def test_no_transaction_control_of_ours(qwf_engine: sa.Engine) -> None:
    """Enqueueing begins, commits, rolls back and savepoints nothing that the caller did not."""
    seen: list[str] = []
    for name in ("begin", "commit", "rollback", "savepoint"):
        sa.event.listen(qwf_engine, name, lambda *_, name=name: seen.append(name))
    statements: list[str] = []
    sa.event.listen(qwf_engine, "before_cursor_execute", lambda *given: statements.append(given[2]))
    with Session(qwf_engine) as session:
        session.execute(sa.text("SELECT 1"))
        assert seen == ["begin"]
        enqueue_one(session)
        enqueue_two_in_bulk(session)
        assert seen == ["begin"]
    assert len(statements) == 3


def test_a_failed_statement_leaves_the_callers_savepoint_usable(qwf_dsn: str, qwf_session: Session) -> None:
    """A driver's error reaches the caller, whose savepoint gets the transaction back."""
    jobs = IngestJobRepository(qwf_session)
    jobs.enqueue("before", queue="fetch")
    with psycopg.connect(qwf_dsn) as holder:
        IngestJobRepository(holder).enqueue("t", queue="fetch", dedupe_key="k")
        savepoint = qwf_session.begin_nested()
        qwf_session.execute(sa.text("SET LOCAL lock_timeout = '1ms'"))
        with pytest.raises(sa.exc.OperationalError) as refused:
            jobs.enqueue("t", queue="fetch", dedupe_key="k")
        savepoint.rollback()
    assert isinstance(refused.value.orig, psycopg.errors.LockNotAvailable)
    qwf_session.commit()
    assert set(tasks(qwf_dsn)) == {"before", "t"}


def test_rides_a_connection(qwf_dsn: str, qwf_engine: sa.Engine) -> None:
    """A SQLAlchemy Connection's transaction decides too, also where its statements are streamed."""
    with qwf_engine.connect().execution_options(stream_results=True, yield_per=10) as connection:
        enqueue_two_in_bulk(connection)
        connection.rollback()
        enqueue_one(connection)
        connection.commit()
    assert tasks(qwf_dsn) == ["task"]


def test_rides_a_scoped_session(qwf_dsn: str, qwf_engine: sa.Engine) -> None:
    """The registry that web frameworks hand out stands for its Session."""
    scoped = scoped_session(sessionmaker(qwf_engine))
    try:
        enqueue_one(scoped)
        assert tasks(qwf_dsn) == []
        scoped.commit()
    finally:
        scoped.remove()
    assert tasks(qwf_dsn) == ["task"]


def test_rides_a_session_with_several_databases(qwf_dsn: str, qwf_engine: sa.Engine) -> None:
    """A Session that finds its database by model finds the engine's, and commits it with the rest."""
    with Session(binds={Base: qwf_engine}) as session:
        enqueue_one(session)
        session.rollback()
        enqueue_two_in_bulk(session)
        session.commit()
    with Session(binds={IngestJob: qwf_engine}) as session:
        enqueue_one(session)
        session.commit()
    assert tasks(qwf_dsn) == ["task"] * 3


def test_rides_a_psycopg_connection(qwf_dsn: str) -> None:
    """A psycopg connection's transaction decides, whatever rows and cursors its owner likes."""
    with psycopg.connect(qwf_dsn, row_factory=dict_row, cursor_factory=psycopg.ClientCursor) as connection:
        enqueue_one(connection)
        enqueue_two_in_bulk(connection)
        connection.rollback()
        with connection.transaction():
            enqueue_one(connection)
    assert tasks(qwf_dsn) == ["task"]


def test_autocommit_commits_at_once(qwf_dsn: str) -> None:
    """On an autocommit connection the job is there and the wake is sent when the call returns."""
    with Ear(qwf_dsn) as ear, psycopg.connect(qwf_dsn, autocommit=True) as connection:
        enqueue_one(connection)
        assert tasks(qwf_dsn) == ["task"]
        assert ear.heard() == ["fetch"]


def test_pipeline_mode(qwf_dsn: str) -> None:
    """In a psycopg pipeline the verbs answer as ever, between statements of the caller's own."""
    with psycopg.connect(qwf_dsn) as connection:
        with connection.pipeline():
            mine = connection.execute("SELECT 41 + 1")
            first = IngestJobRepository(connection).enqueue("task", queue="fetch", dedupe_key="k")
            again = IngestJobRepository(connection).enqueue("task", queue="fetch", dedupe_key="k")
            many = IngestJobRepository(connection).enqueue_many(
                [NewIngestJob(task_name="task", queue="fetch", dedupe_key=key) for key in ("k", "l")]
            )
            assert mine.fetchone() == (42,)
        connection.commit()
    assert first.created
    assert again == (first.id, False)
    assert many[0] == (first.id, False)
    assert many[1].created
    assert tasks(qwf_dsn) == ["task", "task"]


@verbs
def test_serializable_callers_gain_no_dependency(
    qwf_dsn: str, qwf_engine: sa.Engine, enqueue: Callable[[Any], None]
) -> None:
    """Two serializable transactions that overlap and enqueue different jobs both commit, wakes and all."""
    engine = qwf_engine.execution_options(isolation_level="SERIALIZABLE")
    with Ear(qwf_dsn) as ear, Session(engine) as one, Session(engine) as two:
        enqueue(one)
        enqueue(two)
        enqueue(one)
        one.commit()
        two.commit()
        assert set(ear.heard()) == {"fetch"}
    assert len(tasks(qwf_dsn)) >= 3


def test_async_callers_use_run_sync(qwf_dsn: str) -> None:
    """Below an AsyncSession's `run_sync` the same repository rides that session's transaction."""
    pytest.importorskip("greenlet", reason="SQLAlchemy's asyncio support needs greenlet")
    import asyncio

    from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

    async def scenario() -> None:
        engine = create_async_engine(
            "postgresql+psycopg_async://",
            async_creator=lambda: psycopg.AsyncConnection.connect(qwf_dsn),
        )
        async with AsyncSession(engine) as session:
            await session.run_sync(enqueue_two_in_bulk)
            await session.rollback()
            await session.run_sync(enqueue_one)
            await session.commit()
        await engine.dispose()

    asyncio.run(scenario())
    assert tasks(qwf_dsn) == ["task"]
