"""A session that its client has lost, found and ended from another one.

A server goes on with what it was asked when nobody waits for the answer any more, and what is on its way to
it may arrive at any time later. So a session that must not act behind its client's back holds an advisory
lock with a key of its own. Unlike the number of its process the lock cannot become another's: it goes with
the session, also where a proxy hands the server's process on to somebody else.

The upper half of a key is its owner's, so that who knows the owner alone can end what it left behind.
"""

from __future__ import annotations

from hashlib import blake2s
from random import Random
from typing import Any, Final

import psycopg

MARK: Final = "SELECT pg_try_advisory_lock(%(key)s::bigint)"
# A lock on one bigint shows as its two halves, with an objsubid of 1.
END: Final = """
SELECT pg_terminate_backend(pid, %(within_ms)s::bigint) FROM pg_locks
WHERE locktype = 'advisory' AND objsubid = 1 AND granted
    AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
    AND (classid::bigint << 32) | objid::bigint = %(key)s::bigint
"""
END_ALL: Final = """
SELECT pg_terminate_backend(pid, %(within_ms)s::bigint) FROM pg_locks
WHERE locktype = 'advisory' AND objsubid = 1 AND granted
    AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
    AND classid::bigint = %(half)s::bigint
"""
_HALF_BITS: Final = 32


def key_of(owner: str, rng: Random) -> int:
    """A key for a session of this owner."""
    return _half_of(owner) << _HALF_BITS | rng.getrandbits(_HALF_BITS)


def mark(connection: psycopg.Connection[Any], key: int) -> None:
    """Make this session one that `end` finds by its key; not through a pooling proxy."""
    connection.execute(MARK, {"key": key})


def end(connection: psycopg.Connection[Any], key: int, *, within_s: float) -> bool:
    """Whether the session with this key is gone, which is seen to if it still lives.

    It is one of our own role; where even that right was taken away it is left alone, and counts as gone.
    """
    return _ended(connection, END, {"key": key, "within_ms": round(within_s * 1000)})


def end_all(connection: psycopg.Connection[Any], owner: str, *, within_s: float) -> bool:
    """Whether all sessions of an owner are gone, each of which is seen to as by `end`."""
    return _ended(connection, END_ALL, {"half": _half_of(owner), "within_ms": round(within_s * 1000)})


def _ended(connection: psycopg.Connection[Any], sql: str, params: dict[str, int]) -> bool:
    try:
        rows = connection.execute(sql, params).fetchall()
    except psycopg.errors.InsufficientPrivilege:
        return True
    return all(gone for (gone,) in rows)


def _half_of(owner: str) -> int:
    """Positive as the upper half of a bigint, and none of the small numbers that people use for locks."""
    return int.from_bytes(blake2s(owner.encode(), digest_size=4).digest()) >> 2 | 1 << 30
