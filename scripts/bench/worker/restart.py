"""What workers do after their server was killed under load and started again, with nobody to help them."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from statistics import median
from typing import Any, Final

import psycopg

from bench.harness.figures import Figure, ratio
from bench.harness.measuring import Bench
from bench.harness.servers import said
from bench.harness.workers import ONE_AT_A_TIME, working
from bench.worker.rates import fill, settle
from queue_workflows.db import bootstrap
from queue_workflows.db.embedded.server import EmbeddedServer
from queue_workflows.testing.runs import new_run

WORKERS: Final = 2
# A second in which nothing was done counts too.
RATE: Final = """
SELECT percentile_cont(0.5) WITHIN GROUP (ORDER BY done) FROM (
    SELECT count(job.id) AS done
    FROM generate_series(1, %(seconds)s) AS second
    LEFT JOIN ingest_jobs AS job
        ON job.finished_at >= %(until)s::timestamptz - make_interval(secs => second)
        AND job.finished_at < %(until)s::timestamptz - make_interval(secs => second - 1)
    GROUP BY second
) AS seconds
"""
LEFT: Final = "SELECT count(*) FROM ingest_jobs WHERE status = 'queued'"
DONE: Final = "SELECT count(*) FROM ingest_jobs WHERE status = 'completed'"
NOW: Final = "SELECT clock_timestamp()"
# More than two workers do from the first second to the last.
_JOBS_A_SECOND: Final = 5_000
_PATIENCE_S: Final = 300.0


@dataclass(frozen=True)
class _Round:
    """Both windows are so many seconds long; the second one ends so long after the server is back."""

    window_s: int
    back_s: int

    @property
    def jobs(self) -> int:
        return _JOBS_A_SECOND * (2 * self.window_s + self.back_s)


def restart(bench: Bench) -> Sequence[Figure]:
    """Jobs a second just before an immediate stop, and half a minute after connections are taken again.

    The server is one of the measure's own, as nobody else's may be killed.
    """
    each = _Round(bench.much(10, 2), bench.much(30, 4))
    before: list[float] = []
    after: list[float] = []
    with _own_server() as server:
        for number in range(bench.much(3, 1)):
            rates = _killed_and_started(server, each)
            before.append(rates[0])
            after.append(rates[1])
            bench.say(f"round {number + 1}: {before[-1]:,.0f}, then {after[-1]:,.0f}")
    return [
        Figure(
            *("restart", f"{WORKERS} workers, {each.back_s} s after a killed server is back", median(after)),
            *("jobs/s", "before", median(before), ratio(after, before), 0.95),
        )
    ]


def _killed_and_started(server: EmbeddedServer, each: _Round) -> tuple[float, float]:
    with psycopg.connect(server.dsn(), autocommit=True) as connection:
        connection.execute("TRUNCATE ingest_jobs")
        fill(connection, each.jobs)
        settle(connection)
    with working(server.dsn(), *ONE_AT_A_TIME), working(server.dsn(), *ONE_AT_A_TIME):
        with psycopg.connect(server.dsn(), autocommit=True) as connection:
            _until_some_are_done(connection)
            time.sleep(each.window_s + 1)
            before = _rate(connection, said(connection, NOW), each.window_s)
        _kill(server)
        server.ensure_running()
        with psycopg.connect(server.dsn(), autocommit=True) as connection:
            time.sleep(each.back_s)
            after = _rate(connection, said(connection, NOW), each.window_s)
            if not said(connection, LEFT):
                raise SystemExit("the workers ran out of jobs")
    return before, after


def _until_some_are_done(connection: psycopg.Connection[Any]) -> None:
    until = time.monotonic() + _PATIENCE_S
    while said(connection, DONE) < 100 * WORKERS:
        if time.monotonic() > until:
            raise SystemExit("the workers did not begin")
        time.sleep(0.1)


def _rate(connection: psycopg.Connection[Any], until: datetime, seconds: int) -> float:
    row = connection.execute(RATE, {"until": until, "seconds": seconds}).fetchone()
    assert row is not None
    return float(row[0])


def _kill(server: EmbeddedServer) -> None:
    """What `pg_ctl -m immediate stop` does: no checkpoint, and a recovery at the start."""
    pid = server.pid
    assert pid is not None
    os.kill(pid, signal.SIGQUIT)
    until = time.monotonic() + _PATIENCE_S
    while server.pid is not None:
        if time.monotonic() > until:
            raise SystemExit("the server did not stop")
        time.sleep(0.02)


@contextmanager
def _own_server() -> Iterator[EmbeddedServer]:
    with new_run() as run, EmbeddedServer.acquire(run.directory / "killed") as server:
        bootstrap(server.dsn())
        yield server
