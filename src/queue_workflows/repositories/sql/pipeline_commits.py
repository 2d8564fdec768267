"""Two transactions in one round trip, on a psycopg connection in autocommit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import psycopg
from psycopg.pq import TransactionStatus

_IDLE: Final = TransactionStatus.IDLE


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
