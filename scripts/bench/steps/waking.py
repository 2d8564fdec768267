"""How late sleepers wake, and what the looks for their events cost a queue that has none.

Sleepers are durable functions that are due within one minute, beside as many plain jobs for later that are
due in that minute: what a queue of jobs without steps drains anyway is what there is to compare with. The
second measure drains plain jobs with the trigger on ends of children and the look for news, and without.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Final, NamedTuple

import psycopg

from bench.harness.servers import Server
from queue_workflows import ingest_task
from queue_workflows.db import bootstrap

SCRIPTS: Final = Path(__file__).resolve().parents[2]
_PATIENCE_S: Final = 1800.0
_LEAD_S: Final = 8.0
MINUTE_S: Final = 60.0
SLEEPERS: Final = """
WITH due AS (
    SELECT n, now() + make_interval(secs => %(lead)s + %(over)s * n / %(count)s::float8) AS at
    FROM generate_series(1, %(count)s) AS n
), made AS (
    INSERT INTO ingest_jobs (task_name, queue, status, hold_reason, hold_key, attempt, run_at, args)
    SELECT 'nap', 'fetch', 'scheduled', 'asleep', 'sleep', 1, at,
        jsonb_build_object('due', extract(epoch FROM at)) FROM due
    RETURNING id, run_at
)
INSERT INTO durable_steps (job_family, job_id, name, call, position, kind, status, attempt, wake_at)
SELECT 'ingest', id, 'sleep', 1, 1, 'sleep', 'waiting', 1, run_at FROM made
"""
PLAIN: Final = """
INSERT INTO ingest_jobs (task_name, queue, status, run_at, args)
SELECT 'plain', 'fetch', 'scheduled', at, jsonb_build_object('due', extract(epoch FROM at)) FROM (
    SELECT now() + make_interval(secs => %(lead)s + %(over)s * n / %(count)s::float8) AS at
    FROM generate_series(1, %(count)s) AS n
) AS due
"""
LATE: Final = """
SELECT percentile_cont(ARRAY[0.5, 0.99]) WITHIN GROUP (
    ORDER BY extract(epoch FROM started_at) - (args ->> 'due')::float8
) FROM ingest_jobs
"""
NOW: Final = (
    "INSERT INTO ingest_jobs (task_name, queue) SELECT 'plain', 'fetch' FROM generate_series(1, %(count)s)"
)
RATE: Final = "SELECT count(*) / extract(epoch FROM max(finished_at) - min(started_at)) FROM ingest_jobs"
OPEN: Final = "SELECT count(*) FROM ingest_jobs WHERE finished_at IS NULL"
WITHOUT: Final = (
    "DROP TRIGGER qwf_child_ended ON ingest_jobs",
    "CREATE OR REPLACE FUNCTION qwf_has_news() RETURNS boolean LANGUAGE sql STABLE AS 'SELECT false'",
)


@ingest_task("nap", queue="fetch", durable=True)
async def nap(_reason: str | None, _args: dict[str, Any], *, ctx: Any) -> None:
    """It sleeps, and is done."""
    await ctx.sleep(MINUTE_S)


@ingest_task("plain", queue="fetch")
async def plain(_reason: str | None, _args: dict[str, Any]) -> None:
    """It does nothing."""


class Late(NamedTuple):
    """How late jobs begin, in seconds: half of them, and all but one in a hundred."""

    median_s: float
    p99_s: float


def late(server: Server, sql: str, *, count: int, over_s: float) -> Late:
    """How late jobs begin that are due one after the other, by one worker of a hundred at once."""
    dsn = _prepared(server)
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(sql.encode(), {"count": count, "over": over_s, "lead": _LEAD_S + count / 10_000})
        connection.execute("VACUUM ANALYZE ingest_jobs, durable_steps")
        _work_off(dsn, connection)
        row = connection.execute(LATE.encode()).fetchone()
    assert row is not None
    return Late(*map(float, row[0]))


def rate(server: Server, *, count: int, without: bool) -> float:
    """Plain jobs a second, with what durable functions brought to the schema or without."""
    dsn = _prepared(server)
    with psycopg.connect(dsn, autocommit=True) as connection:
        for sql in WITHOUT if without else ():
            connection.execute(sql.encode())
        connection.execute(NOW.encode(), {"count": count})
        connection.execute("VACUUM ANALYZE ingest_jobs")
        _work_off(dsn, connection)
        row = connection.execute(RATE.encode()).fetchone()
    assert row is not None
    return float(row[0])


def _prepared(server: Server) -> str:
    dsn = server.database()
    bootstrap(dsn)
    return dsn


def _work_off(dsn: str, connection: psycopg.Connection[Any]) -> None:
    paths = os.pathsep.join((str(SCRIPTS), str(SCRIPTS.parent / "src")))
    env = os.environ | {"PYTHONPATH": paths, "QWF_DB_URL": dsn, "QWF_APP": "bench.steps.waking"}
    command = [sys.executable, "-m", "queue_workflows", "worker", "--queue", "fetch", "--concurrency", "100"]
    worker = subprocess.Popen(command, env=env, stderr=subprocess.DEVNULL)
    try:
        give_up = time.monotonic() + _PATIENCE_S
        while (row := connection.execute(OPEN.encode()).fetchone()) is not None and row[0]:
            if time.monotonic() > give_up:
                raise SystemExit(f"{row[0]:,} jobs are left after {_PATIENCE_S:g} s")
            time.sleep(0.5)
    finally:
        worker.terminate()
        worker.wait()


def measure(server: Server, *, sleepers: int, jobs: int, rounds: int) -> None:
    """Measure both in turns, and print medians and ratios."""
    over_s = MINUTE_S * sleepers / 100_000
    found: dict[str, list[Late]] = {"sleepers": [], "plain jobs": []}
    rates: dict[str, list[float]] = {"with": [], "without": []}
    for number in range(rounds):
        for name, sql in (("sleepers", SLEEPERS), ("plain jobs", PLAIN)):
            found[name].append(late(server, sql, count=sleepers, over_s=over_s))
            said = "median {:.2f} s, 99 % {:.2f} s".format(*found[name][-1])
            print(
                f"round {number + 1}: {sleepers:,} {name} due within {over_s:g} s, late: {said}", flush=True
            )
        for name in rates if number % 2 else reversed(rates):
            rates[name].append(rate(server, count=jobs, without=name == "without"))
            print(
                f"round {number + 1}: {name} looks for news {rates[name][-1]:,.0f} jobs a second", flush=True
            )
    p99 = {name: statistics.median(one.p99_s for one in each) for name, each in found.items()}
    ratio = statistics.median(w / o for w, o in zip(rates["with"], rates["without"], strict=True))
    print(f"99 % of the sleepers begin {p99['sleepers']:.2f} s late, of plain jobs {p99['plain jobs']:.2f} s")
    print(f"a plain drain with the looks for news: {ratio:.3f} of one without")
