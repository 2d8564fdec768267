"""What it costs each to enqueue: a job a transaction, and 10,000 at once; beside pgbench and COPY."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial

from bench.contest.contenders import OURS
from bench.contest.drains import beside
from bench.harness import pgbench
from bench.harness.figures import Figure, interleaved
from bench.harness.measuring import Bench
from bench.producing.enqueueing import COPY, copied
from bench.producing.producers import library, peer

PGBENCH = "pgbench, the same INSERT"


def enqueue(bench: Bench) -> Sequence[Figure]:
    """One producer, a commit each."""
    jobs = bench.much(2_000, 50)
    with bench.database() as (dsn, _), ExitStack() as stack:
        ours = stack.enter_context(library(dsn))
        variants: dict[str, Callable[[], float]] = {
            OURS: lambda: ours.rate("autocommit", jobs),
            PGBENCH: lambda: pgbench.tps(bench.server.bindir, dsn, pgbench.ENQUEUE, transactions=jobs),
        }
        for name in bench.peers:
            crew = stack.enter_context(peer(bench, name))
            variants[name] = partial(crew.rate, "single", jobs // 4 if name == "dbos" else jobs)
        seen = interleaved(bench.amounts["rounds"], variants, bench.say)
    return beside("enqueue", f"{jobs:,}, a commit each", "jobs/s", seen, {PGBENCH: 0.6})


def at_once(bench: Bench) -> Sequence[Figure]:
    """10,000 in one call."""
    jobs = bench.much(10_000, 300)
    with bench.database() as (dsn, connection), ExitStack() as stack:
        ours = stack.enter_context(library(dsn))

        def emptied(measured: Callable[[], float]) -> float:
            connection.execute("TRUNCATE ingest_jobs")
            return measured()

        variants: dict[str, Callable[[], float]] = {
            OURS: partial(emptied, lambda: ours.rate("bulk", jobs)),
            "COPY": partial(emptied, lambda: copied(connection, COPY, jobs)),
        }
        for name in bench.peers:
            # These take one job a call.
            if name not in ("dbos", "absurd"):
                variants[name] = partial(stack.enter_context(peer(bench, name)).rate, "bulk", jobs)
        seen = interleaved(bench.amounts["rounds"], variants, bench.say)
    return beside("at-once", f"{jobs:,} in one call", "jobs/s", seen, {"COPY": 0.5})
