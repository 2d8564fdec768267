"""A session that its client has lost, found and ended from another one.

A server goes on with what it was asked when nobody waits for the answer any more, and what is on its way to
it may arrive at any time later. So a session that must not act behind its client's back holds an advisory
lock, its mark. Unlike the number of its process the mark cannot become another's: it goes with the session.

Only what is provably its client's own is ended. A pooling proxy hands a process of the server on to
strangers, marks and all. So the mark's key is made of its owner and of the process that the client was told
of at start-up, and a mark counts only on that very process: a proxy tells its clients of a process that it
invents, and a session behind one is never ended. What it was asked is then told apart by the lease and the
fence alone.
"""

from __future__ import annotations

from typing import Any, Final

import psycopg

# Nothing is locked where the process is not the announced one: by then it may be at a stranger's transaction.
# The number in the key keeps it apart from other keys that are made of words.
MARK: Final = """
SELECT pg_try_advisory_lock(hashtextextended(%(owner)s::text || ' ' || pg_backend_pid()::text, 7716003))
WHERE pg_backend_pid() = %(announced)s::int
"""
# A lock on one bigint shows as its two halves, with an objsubid of 1.
END: Final = """
SELECT pg_terminate_backend(pid, %(within_ms)s::bigint) FROM pg_locks
WHERE locktype = 'advisory' AND objsubid = 1 AND granted
    AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
    AND (classid::bigint << 32) | objid::bigint
        = hashtextextended(%(owner)s::text || ' ' || pid::text, 7716003)
    AND pid = %(pid)s::int AND pid <> pg_backend_pid()
"""
END_ALL: Final = """
SELECT pg_terminate_backend(pid, %(within_ms)s::bigint) FROM pg_locks
WHERE locktype = 'advisory' AND objsubid = 1 AND granted
    AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
    AND (classid::bigint << 32) | objid::bigint
        = hashtextextended(%(owner)s::text || ' ' || pid::text, 7716003)
    AND pid <> pg_backend_pid()
"""


def mark(connection: psycopg.Connection[Any], owner: str) -> int | None:
    """Make this session one that `end` finds by what is returned; None where it may be another's later."""
    announced = connection.info.backend_pid
    marked = connection.execute(MARK, {"owner": owner, "announced": announced}).fetchall()
    return announced if marked == [(True,)] else None


def end(connection: psycopg.Connection[Any], owner: str, pid: int, *, within_s: float) -> bool:
    """Whether the owner's session that was marked on this process is gone, which is seen to if it lives.

    It is one of our own role; where even that right was taken away it is left alone, and counts as gone.
    """
    return _ended(connection, END, owner, within_s, pid=pid)


def end_all(connection: psycopg.Connection[Any], owner: str, *, within_s: float) -> bool:
    """Whether all sessions of an owner are gone, each of which is seen to as by `end`."""
    return _ended(connection, END_ALL, owner, within_s)


def _ended(
    connection: psycopg.Connection[Any], sql: str, owner: str, within_s: float, **more: object
) -> bool:
    params = {"owner": owner, "within_ms": round(within_s * 1000), **more}
    try:
        rows = connection.execute(sql, params).fetchall()
    except psycopg.errors.InsufficientPrivilege:
        return True
    return all(gone for (gone,) in rows)
