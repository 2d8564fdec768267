"""A producer that prepares statements past a proxy which keeps no sessions is told how to stop that."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from support.servers.pgbouncer import PgBouncer, tracks_nothing

from queue_workflows import enqueue_ingest_job
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
