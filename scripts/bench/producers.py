"""What the wake costs those who enqueue, and what a producer in Python reaches."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from statistics import median
from typing import Any, Final

import psycopg

from bench import pgbench
from bench.figures import Figure, interleaved, ratio
from bench.measuring import Bench
from bench.servers import said
from bench.workers import environment, working
from queue_workflows import enqueue_ingest_job

PRODUCERS: Final = 10
BUSY: Final = 2
HOLD: Final = """
INSERT INTO ingest_jobs (task_name, queue, priority) SELECT 'hold', 'fetch', 9 FROM generate_series(1, %s)
"""
HELD: Final = "SELECT count(*) FROM ingest_jobs WHERE status = 'running'"
RATE: Final = """
SELECT (count(*) - 1) / EXTRACT(epoch FROM max(created_at) - min(created_at))::float8
FROM ingest_jobs WHERE created_at > %(since)s
"""
_PATIENCE_S: Final = 60.0


def producers(bench: Bench) -> Sequence[Figure]:
    """Ten producers while all workers are busy: with the trigger, without any, and through the library."""
    each, rounds = bench.much(300, 60), bench.much(11, 3)
    with bench.database() as with_trigger, bench.database() as without:
        without[1].execute("ALTER TABLE ingest_jobs DISABLE TRIGGER USER")

        def bare(dsn: str) -> float:
            script = pgbench.ENQUEUE
            return pgbench.tps(bench.server.bindir, dsn, script, transactions=each, clients=PRODUCERS)

        with _busy_workers(*with_trigger), _busy_workers(*without):
            seen = interleaved(
                rounds,
                {
                    "with trigger": lambda: bare(with_trigger[0]),
                    "without": lambda: bare(without[0]),
                    "in Python": lambda: _in_python(*with_trigger, each),
                },
                bench.say,
            )
    ours, base, library = seen["with trigger"], seen["without"], seen["in Python"]
    what = f"{PRODUCERS} producers, busy workers"
    return [
        Figure(
            *("producers", f"{what}: pgbench", median(ours), "jobs/s"),
            *("no trigger", median(base), ratio(ours, base), 0.75),
        ),
        Figure(
            *("producers", f"{what}: Python", median(library), "jobs/s"),
            *("pgbench, with trigger", median(ours), ratio(library, ours)),
        ),
    ]


@contextmanager
def _busy_workers(dsn: str, connection: psycopg.Connection[Any]) -> Iterator[None]:
    """Workers that hold a job each, and so advertise nothing."""
    connection.execute(HOLD, [BUSY])
    with working(dsn), working(dsn):
        until = time.monotonic() + _PATIENCE_S
        while said(connection, HELD) < BUSY:
            if time.monotonic() > until:
                raise SystemExit("the workers did not begin")
            time.sleep(0.05)
        yield


def _in_python(dsn: str, connection: psycopg.Connection[Any], each: int) -> float:
    """Jobs a second of processes that begin together."""
    command = [sys.executable, "-m", "bench.producers", dsn, str(each)]
    started = [
        subprocess.Popen(
            command, env=environment(dsn), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for _ in range(PRODUCERS)
    ]
    for process in started:
        assert process.stdout is not None
        process.stdout.readline()
    since = said(connection, "SELECT clock_timestamp()")
    for process in started:
        assert process.stdin is not None
        process.stdin.close()
    ended = [process.wait() for process in started]
    if any(ended):
        raise SystemExit("a producer failed")
    row = connection.execute(RATE, {"since": since}).fetchone()
    assert row is not None
    return float(row[0])


def produce(dsn: str, jobs: int) -> None:
    """Enqueue as a host app would: each job in a transaction of its own."""
    with psycopg.connect(dsn) as connection:
        print("ready", flush=True)
        sys.stdin.read()
        for number in range(jobs):
            enqueue_ingest_job("noop", queue="fetch", args={"n": number}, conn=connection)
            connection.commit()


if __name__ == "__main__":
    produce(sys.argv[1], int(sys.argv[2]))
