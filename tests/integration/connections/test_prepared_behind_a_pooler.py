"""A producer that prepares statements past a proxy which keeps no sessions is told how to stop that."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, ExitStack
from typing import Any

import asyncpg
import psycopg
import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import create_async_engine
from support.connections.kinds import asyncpg_options
from support.servers.pgbouncer import PgBouncer, tracks_nothing

from queue_workflows import aenqueue_ingest_job, enqueue_ingest_job
from queue_workflows.errors import ExitCode, SessionsNotKept

OFTEN = 12
Producer = Callable[[], Any]


@pytest.fixture
def pooled(qwf_dsn: str) -> Iterator[str]:
    """A DSN past transaction pooling with a single backend, which all clients share."""
    settings = {"default_pool_size": "1", **tracks_nothing()}
    with PgBouncer(qwf_dsn, "transaction", **settings) as pooler:
        yield pooler.dsn()


def producers(dsn: str, kind: str, stack: ExitStack, threshold: int | None) -> list[Producer]:
    """Two connections of a host app, each of which enqueues a job in a transaction of its own."""
    if kind == "psycopg":
        mine = [stack.enter_context(psycopg.connect(dsn, prepare_threshold=threshold)) for _ in range(2)]
        return [lambda one=one: _in_a_transaction(one) for one in mine]
    engine = sa.create_engine(
        "postgresql+psycopg://",
        creator=lambda: psycopg.connect(dsn, prepare_threshold=threshold),
    )
    stack.callback(engine.dispose)
    sessions = [stack.enter_context(engine.connect()) for _ in range(2)]
    return [lambda one=one: _in_a_transaction(one) for one in sessions]


def _in_a_transaction(connection: Any) -> None:
    enqueue_ingest_job("note", queue="fetch", conn=connection)
    connection.commit()


def enqueue_all(both: list[Producer]) -> None:
    """In turns, as often as makes a driver prepare."""
    for enqueue in both * OFTEN:
        enqueue()


@pytest.mark.parametrize("kind", ["psycopg", "sqlalchemy"])
def test_it_is_told_what_to_set(pooled: str, kind: str) -> None:
    """As one line with the fix, for the driver's own word on a name says neither."""
    with ExitStack() as stack:
        both = producers(pooled, kind, stack, threshold=5)
        with pytest.raises(
            SessionsNotKept, match="a pooling proxy gave this connection another session"
        ) as told:
            enqueue_all(both)
    assert "prepare_threshold=None" in str(told.value)
    assert told.value.exit_code == ExitCode.CONFIGURATION
    assert isinstance(told.value.__cause__, psycopg.Error | sa.exc.DBAPIError)


@pytest.mark.parametrize("kind", ["psycopg", "sqlalchemy"])
def test_what_it_is_told_helps(pooled: str, qwf_dsn: str, kind: str) -> None:
    """With what the error says each job is enqueued."""
    with ExitStack() as stack:
        eyes = stack.enter_context(psycopg.connect(qwf_dsn, autocommit=True))
        eyes.execute("DELETE FROM ingest_jobs")
        enqueue_all(producers(pooled, kind, stack, threshold=None))
        assert eyes.execute("SELECT count(*) FROM ingest_jobs").fetchone() == (2 * OFTEN,)


# What the error says to each; SQLAlchemy on asyncpg takes it in `connect_args`.
NOTHING = {
    "asyncpg": {"statement_cache_size": 0},
    "sqlalchemy": {
        "statement_cache_size": 0,
        "prepared_statement_cache_size": 0,
        "prepared_statement_name_func": str,
    },
}


@pytest.fixture
def in_turns(qwf_dsn: str) -> Iterator[str]:
    """A DSN past transaction pooling with two backends, which a client is given in turns."""
    settings = {"default_pool_size": "2", "server_round_robin": "1", **tracks_nothing()}
    with PgBouncer(qwf_dsn, "transaction", **settings) as pooler:
        yield pooler.dsn()


async def await_all(dsn: str, kind: str, more: dict[str, Any]) -> None:
    """Enqueue on two connections of asyncpg, each of which goes from one of the backends to the other."""
    options = asyncpg_options(dsn) | more
    async with AsyncExitStack() as stack:
        if kind == "asyncpg":
            both = [await asyncpg.connect(**options) for _ in range(2)]
            for one in both:
                stack.push_async_callback(one.close)
            async with both[0].transaction(), both[1].transaction():
                for one in both:
                    await one.execute("SELECT 1")
            for one in [both[0], *both] * OFTEN:
                async with one.transaction():
                    await aenqueue_ingest_job("note", queue="fetch", conn=one)
            return
        engine = create_async_engine("postgresql+asyncpg://", connect_args=options)
        stack.push_async_callback(engine.dispose)
        sessions = [await stack.enter_async_context(engine.connect()) for _ in range(2)]
        for session in sessions:
            await session.execute(sa.text("SELECT 1"))
        for session in sessions:
            await session.commit()
        for session in [sessions[0], *sessions] * OFTEN:
            await aenqueue_ingest_job("note", queue="fetch", conn=session)
            await session.commit()


@pytest.mark.parametrize("kind", list(NOTHING))
def test_on_asyncpg_it_is_told_what_to_set_there(in_turns: str, kind: str) -> None:
    """Each by the names of its own settings, and not by those of psycopg."""
    with pytest.raises(SessionsNotKept) as told:
        asyncio.run(await_all(in_turns, kind, {}))
    said = str(told.value)
    assert "prepare_threshold" not in said
    assert [name for name in NOTHING["sqlalchemy"] if name in said] == list(NOTHING[kind])


@pytest.mark.parametrize("kind", list(NOTHING))
def test_on_asyncpg_what_it_is_told_helps(in_turns: str, qwf_dsn: str, kind: str) -> None:
    """Every job is enqueued, whichever backend a transaction is given."""
    with psycopg.connect(qwf_dsn, autocommit=True) as eyes:
        eyes.execute("DELETE FROM ingest_jobs")
        asyncio.run(await_all(in_turns, kind, NOTHING[kind]))
        ((jobs,),) = eyes.execute("SELECT count(*) FROM ingest_jobs").fetchall()
    assert jobs == 3 * OFTEN
