"""A test's own connection, on a session of the server that the test before it has had.

A new session reads from the catalogs what it needs, which costs the server more than most tests do.
One that is handed on has nothing left of the test before: no settings, locks, temporary tables, prepared
statements or channels that it listens to, and what it has counted is in the server's statistics.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
from psycopg.pq import ConnStatus, ExecStatus, PGconn, PipelineStatus, TransactionStatus

# By DSN.
_kept: dict[str, list[PGconn]] = {}
_AS_NEW = (b"DISCARD ALL", b"SELECT pg_stat_force_next_flush()")
_DONE = (ExecStatus.COMMAND_OK, ExecStatus.TUPLES_OK, ExecStatus.EMPTY_QUERY)
_CLOSED = PGconn.connect_start(b"host=/nowhere")
_CLOSED.finish()


@contextmanager
def own_connection(dsn: str, *, autocommit: bool = True) -> Iterator[psycopg.Connection[Any]]:
    """What `with psycopg.connect(…)` gives, and it commits and rolls back as that does."""
    kept = _taken(dsn)
    connection = psycopg.Connection[Any](kept) if kept else psycopg.connect(dsn)
    connection.autocommit = autocommit
    session = connection.pgconn
    try:
        yield connection
    except BaseException:
        if not connection.closed:
            connection.rollback()
        raise
    else:
        if not connection.closed:
            connection.commit()
    finally:
        # It is closed for whoever still has it.
        connection.pgconn = _CLOSED
        if _is_as_new(session):
            _kept.setdefault(dsn, []).append(session)
        else:
            session.finish()


def close_kept() -> None:
    """End the sessions, so that nothing is in the way of a database that is dropped."""
    for session in [session for sessions in _kept.values() for session in sessions]:
        session.finish()
    _kept.clear()


def _taken(dsn: str) -> PGconn | None:
    """A session that is kept, and has not been ended meanwhile."""
    kept = _kept.get(dsn, [])
    while kept:
        if _does(session := kept.pop(), b""):
            return session
        session.finish()
    return None


def _is_as_new(session: PGconn) -> bool:
    """Whether it has forgotten the test, as far as it could be asked to."""
    return (
        session.status == ConnStatus.OK
        and session.transaction_status == TransactionStatus.IDLE
        and session.pipeline_status == PipelineStatus.OFF
        and all(_does(session, statement) for statement in _AS_NEW)
        and _has_heard_all(session)
    )


def _has_heard_all(session: PGconn) -> bool:
    """Take what came to the test by NOTIFY; the next one would hear it."""
    while session.notifies():
        pass
    return True


def _does(session: PGconn, statement: bytes) -> bool:
    try:
        return session.exec_(statement).status in _DONE
    except psycopg.Error:
        return False
