"""What idle workers cost the server, and how many of them a job wakes: counted, not timed.

Where autovacuum is off no transactions but theirs are counted. Statements are told apart on a server that has
`pg_stat_statements` in its `shared_preload_libraries`.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any, Final

import psycopg

from bench.harness.figures import Figure
from bench.harness.measuring import Bench
from bench.harness.workers import ONE_AT_A_TIME, working
from bench.worker.wakes import LISTENERS, RESULT, sample, until, value

WAITING: Final = 16
TRANSACTIONS: Final = """
SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = current_database()
"""
CONNECTIONS: Final = """
SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()
"""
LIBRARIES: Final = "SHOW shared_preload_libraries"
CALLS: Final = """
SELECT query, calls FROM pg_stat_statements
WHERE dbid = (SELECT oid FROM pg_database WHERE datname = current_database())
"""
# What of a statement's text tells its kind: the first that is found counts.
KINDS: Final = {
    "a heartbeat": "INSERT INTO worker_heartbeats",
    "a look for silent workers": "last_seen <",
    "a poll": "hold_reason = given.reason",
    "a look for what to sweep": "ORDER BY hold_key LIMIT",
    "a look at wishes": "FROM worker_control",
    "the claim of a job": "FOR NO KEY UPDATE SKIP LOCKED",
}
# A server writes its statistics down a second after it goes idle, at the latest.
_STATISTICS_S: Final = 1.5
_LOOK_EVERY_S: Final = 0.1
# A new database is looked through by the server itself at first.
_SETTLES_S: Final = 20.0


def idle(bench: Bench) -> Sequence[Figure]:
    """One idle worker, then sixteen: transactions a second of each, and connections; then claims a job."""
    seconds, jobs = bench.much(40, 10), bench.much(100, 10)
    figures = []
    for count in (1, WAITING):
        with bench.database() as (dsn, connection), ExitStack() as stack:
            if _tells_apart(connection):
                connection.execute("CREATE EXTENSION IF NOT EXISTS pg_stat_statements")
            for _ in range(count):
                stack.enter_context(working(dsn, *ONE_AT_A_TIME))
            until(partial(_are_listening, connection, count))
            sample(connection, partial(_result, connection))
            time.sleep(_SETTLES_S)
            bench.say(f"{count} idle for {seconds} s")
            figures += _at_rest(connection, count, seconds)
            if count > 1:
                figures += _woken(connection, jobs)
    return figures


def _at_rest(connection: psycopg.Connection[Any], count: int, seconds: float) -> list[Figure]:
    name = "1 idle worker" if count == 1 else f"{count} idle workers"
    before, began = _counted(connection), time.monotonic()
    time.sleep(seconds)
    seen = _difference(_counted(connection), before)
    worker_s = (time.monotonic() - began) * count
    connections = value(connection, CONNECTIONS) / count
    return [
        Figure("idle", f"{name}: connections of each", connections, ""),
        *(Figure("idle", f"{name}: {kind} of each", much / worker_s, "/s") for kind, much in seen.items()),
    ]


def _woken(connection: psycopg.Connection[Any], jobs: int) -> list[Figure]:
    """Jobs one by one; what the workers would ask without them is left in, as it is little beside it."""
    before = _counted(connection)
    for _ in range(jobs):
        sample(connection, partial(_result, connection))
    seen = _difference(_counted(connection), before)
    return [
        Figure("idle", f"{WAITING} idle workers: {kind} for each job", much / jobs, "")
        for kind, much in seen.items()
        if kind in ("transactions", "the claim of a job")
    ]


def _are_listening(connection: psycopg.Connection[Any], count: int) -> bool:
    return int(value(connection, LISTENERS)) >= count


def _result(connection: psycopg.Connection[Any], job: int) -> int:
    # Seldom, as each look is a transaction too.
    time.sleep(_LOOK_EVERY_S)
    while not (found := value(connection, RESULT, [job])):
        time.sleep(_LOOK_EVERY_S)
    return int(found)


def _tells_apart(connection: psycopg.Connection[Any]) -> bool:
    return "pg_stat_statements" in value(connection, LIBRARIES)


def _counted(connection: psycopg.Connection[Any]) -> Mapping[str, int]:
    time.sleep(_STATISTICS_S)
    counted = {"transactions": int(value(connection, TRANSACTIONS))}
    if _tells_apart(connection):
        for query, calls in connection.execute(CALLS).fetchall():
            kind = next((name for name, part in KINDS.items() if part in query), "another statement")
            counted[kind] = counted.get(kind, 0) + calls
    return counted


def _difference(after: Mapping[str, int], before: Mapping[str, int]) -> dict[str, int]:
    return {kind: much - before.get(kind, 0) for kind, much in after.items()}
