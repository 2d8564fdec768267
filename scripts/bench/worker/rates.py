"""How many jobs a second one worker does, and what a large table and an old snapshot do to that."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Any, Final

import psycopg

from bench.harness import pgbench
from bench.harness.figures import Figure, interleaved, ratio
from bench.harness.measuring import Bench
from bench.harness.servers import said
from bench.harness.workers import ONE_AT_A_TIME, work_off

FILL: Final = """
INSERT INTO ingest_jobs (task_name, queue, args)
SELECT 'noop', %(queue)s, '{"n": 1}' FROM generate_series(1, %(count)s)
"""
CLAIM_ALL: Final = """
UPDATE ingest_jobs SET status = 'running', attempt = attempt + 1, claimed_by = 'past',
    started_at = statement_timestamp(), lease_expires_at = statement_timestamp() + interval '1 h'
WHERE status = 'queued'
"""
FINISH_ALL: Final = """
UPDATE ingest_jobs SET status = 'completed', finished_at = statement_timestamp(), lease_expires_at = NULL
WHERE status = 'running'
"""
# Between the end of the first counted job and that of the last one lies the work of all but the first.
RATE: Final = """
WITH counted AS (
    SELECT finished_at FROM ingest_jobs
    WHERE finished_at > %(since)s AND queue = 'fetch' ORDER BY finished_at OFFSET %(warm_up)s
)
SELECT (count(*) - 1) / EXTRACT(epoch FROM max(finished_at) - min(finished_at))::float8 FROM counted
"""
WARM_UP: Final = 50
_PAST_AT_ONCE: Final = 50_000


def fill(connection: psycopg.Connection[Any], count: int, queue: str = "fetch") -> None:
    """Put so many jobs on a queue."""
    connection.execute(FILL, {"queue": queue, "count": count})


def settle(connection: psycopg.Connection[Any]) -> None:
    """After a mass of rows: what autovacuum would do in the next minutes is done now."""
    connection.execute("VACUUM (ANALYZE) ingest_jobs")
    connection.execute("CHECKPOINT")


def worker_rate(connection: psycopg.Connection[Any], dsn: str, jobs: int) -> float:
    """Jobs a second of one worker that does so many and ends; its start is not counted."""
    since = said(connection, "SELECT clock_timestamp()")
    work_off(dsn, *ONE_AT_A_TIME, "--max-jobs", str(jobs))
    row = connection.execute(RATE, {"since": since, "warm_up": WARM_UP}).fetchone()
    assert row is not None
    return float(row[0])


def one_worker(bench: Bench) -> Sequence[Figure]:
    """A worker, one job at a time, beside a pgbench client that claims and finishes in two commits."""
    jobs, rounds = bench.much(1_000, 100), bench.much(15, 1)
    with bench.database() as (dsn, connection):

        def worker() -> float:
            fill(connection, jobs)
            return worker_rate(connection, dsn, jobs)

        def bare() -> float:
            fill(connection, jobs, "bare")
            script = pgbench.CLAIM_AND_FINISH
            return pgbench.tps(bench.server.bindir, dsn, script, transactions=jobs)

        seen = interleaved(rounds, {"worker": worker, "pgbench": bare}, bench.say)
    ours, base = seen["worker"], seen["pgbench"]
    return [
        Figure(
            *("worker", "one worker, one no-op at a time", median(ours), "jobs/s"),
            *("pgbench, claim and finish", median(base), ratio(ours, base), 1.0),
        )
    ]


def flat(bench: Bench) -> Sequence[Figure]:
    """One worker on a queue of 1,000, on one of a million, and after a million."""
    many, jobs, rounds = bench.much(1_000_000, 20_000), bench.much(900, 300), bench.much(15, 3)
    with bench.database() as short, bench.database() as long, bench.database() as after:
        bench.say(f"filling two tables with {many:,} rows")
        fill(short[1], 1_000)
        fill(long[1], many)
        for _ in range(0, many, _PAST_AT_ONCE):
            fill(after[1], min(many, _PAST_AT_ONCE))
            after[1].execute(CLAIM_ALL)
            after[1].execute(FINISH_ALL)
            # As autovacuum does between two such batches, so that the next one takes the room of the last.
            after[1].execute("VACUUM (ANALYZE) ingest_jobs")
        fill(after[1], 1_000)
        for _, connection in (short, long, after):
            settle(connection)

        def rate(dsn: str, connection: psycopg.Connection[Any]) -> float:
            found = worker_rate(connection, dsn, jobs)
            fill(connection, jobs)
            return found

        seen = interleaved(
            rounds,
            {"1,000": lambda: rate(*short), "queued": lambda: rate(*long), "finished": lambda: rate(*after)},
            bench.say,
        )
    base = seen["1,000"]
    return [
        Figure(
            *("flat", f"{many:,} {what}", median(seen[what]), "jobs/s", "1,000 queued", median(base)),
            *(ratio(seen[what], base), 0.95),
        )
        for what in ("queued", "finished")
    ]


def snapshot(bench: Bench) -> Sequence[Figure]:
    """Many jobs while another session keeps a snapshot from before the first of them."""
    jobs, rounds = bench.much(5_000, 500), bench.much(20, 3)
    with bench.database() as free, bench.database() as held:
        for _, connection in (free, held):
            fill(connection, jobs * rounds)
            settle(connection)
        with psycopg.connect(held[0]) as session:
            session.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            session.execute("SELECT count(*) FROM ingest_jobs")
            seen = interleaved(
                rounds,
                {
                    "free": lambda: worker_rate(free[1], free[0], jobs),
                    "snapshot": lambda: worker_rate(held[1], held[0], jobs),
                },
                bench.say,
            )
            session.rollback()
    rates = {name: 1 / (sum(1 / rate for rate in found) / rounds) for name, found in seen.items()}
    return [
        Figure(
            *("snapshot", f"{jobs * rounds:,} jobs, a snapshot held", rates["snapshot"], "jobs/s"),
            *("none held", rates["free"], rates["snapshot"] / rates["free"], 0.85),
        )
    ]
