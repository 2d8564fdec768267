"""Pipelines of psycopg in autocommit: two transactions in one round trip, and one that ends at its sync."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

import psycopg
from psycopg.pq import TransactionStatus

_IDLE: Final = TransactionStatus.IDLE
# Of psycopg's own; another version may do without.
_PARTS: Final = ("_exit_gen", "_enqueue_sync", "_communicate_gen", "_fetch_gen")


@contextmanager
def in_one_round_trip(connection: psycopg.Connection[Any]) -> Iterator[Callable[[], None]]:
    """A pipeline with one sync, at its end; what it gives commits what was sent so far.

    What follows that is a transaction of its own with a later snapshot, and is not run if the first one is
    refused. `Pipeline.sync` would wait, and so would an answer that is read within the block.
    """
    cursor = psycopg.Cursor(connection)

    def commit() -> None:
        cursor.execute("COMMIT", prepare=False)

    try:
        with connection.pipeline():
            cursor.execute("BEGIN", prepare=False)
            yield commit
    finally:
        # What stops in the first transaction leaves it open; a connection that is gone has none.
        if not connection.closed and connection.pgconn.transaction_status != _IDLE:
            connection.rollback()


@contextmanager
def pipeline_ends_at_its_sync(connection: psycopg.Connection[Any]) -> Iterator[psycopg.Pipeline]:
    """A pipeline after which the server reckons how long a transaction idles.

    psycopg sends a flush behind the last sync, which has flushed already. Once it has read that, the server
    waits for the next statement without a limit, and a process that is stopped there keeps its locks.
    """
    with connection.pipeline() as pipeline:
        if all(hasattr(pipeline, part) for part in _PARTS):
            without_flush: Any = pipeline
            without_flush._exit_gen = partial(_exit_gen, pipeline)
        yield pipeline


def _exit_gen(pipeline: Any) -> Iterator[Any]:
    """As psycopg's, but for the flush."""
    try:
        pipeline._enqueue_sync()
        yield from pipeline._communicate_gen()
    finally:
        yield from pipeline._fetch_gen(flush=False)
