"""SQLAlchemy's engine on connections of ours; its pool hands out none that is dead, or another process's."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Final

import psycopg
from psycopg import pq
from sqlalchemy import Engine, create_engine, event
from sqlalchemy.exc import DisconnectionError, InvalidatePoolError
from sqlalchemy.pool import ConnectionPoolEntry

from queue_workflows import clock as time
from queue_workflows.db.connections.bounded_wire import absorb

PROBE_AFTER_S: Final = 30.0


def new_engine(connect: Callable[[], psycopg.Connection[Any]], pool_size: int) -> Engine:
    """An engine on connections that `connect` makes, so it never sees the DSN: nothing to re-quote or log."""
    engine = create_engine(
        "postgresql+psycopg://",
        creator=connect,
        isolation_level="READ COMMITTED",
        pool_size=pool_size,
        max_overflow=pool_size,
        use_native_hstore=False,
        hide_parameters=True,
    )
    event.listen(engine, "connect", _remember_owner)
    event.listen(engine, "checkout", _refuse_dead)
    event.listen(engine, "checkin", _remember_use)
    return engine


def _remember_owner(_connection: psycopg.Connection[Any], entry: ConnectionPoolEntry) -> None:
    entry.info["pid"] = os.getpid()
    entry.info["used_at"] = time.monotonic()


def _remember_use(_connection: psycopg.Connection[Any] | None, entry: ConnectionPoolEntry) -> None:
    entry.info["used_at"] = time.monotonic()


def _refuse_dead(connection: psycopg.Connection[Any], entry: Any, fairy: Any) -> None:
    """Hand out no connection of a parent process, and none that died in the pool.

    Better than a ping each time: a server that ended the session has already said so on the socket, which
    costs no round trip to see. Only after a long rest, when a firewall may have forgotten us, is the server
    asked.
    """
    if entry.info.get("pid") != os.getpid():
        # Dropped, not closed: closing would say good-bye on the parent's socket.
        entry.dbapi_connection = fairy.dbapi_connection = None
        raise DisconnectionError("the connection belongs to the process that forked this one")
    if connection.closed or _has_ended(connection.pgconn):
        raise InvalidatePoolError("the server ended the connection")
    if time.monotonic() - entry.info["used_at"] > PROBE_AFTER_S:
        _ask(connection)


def _has_ended(pgconn: pq.abc.PGconn) -> bool:
    try:
        absorb(pgconn)
    except psycopg.OperationalError:
        return True
    return False


def _ask(connection: psycopg.Connection[Any]) -> None:
    try:
        connection.execute("SELECT 1")
        if not connection.autocommit:
            connection.rollback()
    except psycopg.Error:
        raise InvalidatePoolError("the server did not answer") from None
