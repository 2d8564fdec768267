"""How quickly concurrent ingest workers drain a queue of no-ops: one, several, and on a long backlog."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from statistics import median
from typing import Any, Final

import psycopg

from bench import peers
from bench.harness import pgbench
from bench.harness.figures import Figure, interleaved, ratio, spread
from bench.harness.measuring import Bench
from bench.harness.servers import cpu_s, said
from bench.harness.workers import work_off, working
from bench.worker.rates import fill, settle
from bench.worker.wakes import LISTENERS, until

CONCURRENCY: Final = 8
BATCH: Final = 200
# From the first claim to the last end, by the rows' own times: nothing that waited in memory counts as done.
RATE: Final = """
SELECT count(*) / EXTRACT(epoch FROM max(finished_at) - min(started_at))::float8
FROM ingest_jobs WHERE status = 'completed' AND started_at > %(since)s
"""
LEFT: Final = "SELECT EXISTS (SELECT FROM ingest_jobs WHERE status IN ('queued', 'running'))"
CREW: Final = ("--concurrency", str(CONCURRENCY))


def drain(bench: Bench) -> Sequence[Figure]:
    """One process drains a long queue, beside one pgbench client that does it in batches by hand."""
    jobs, rounds = bench.much(200_000, 2_000), bench.much(5, 1)
    with bench.database() as ours, bench.database() as bare:

        def worker() -> float:
            return _drained(*ours, jobs)

        def by_hand() -> float:
            _refill(bare[1], jobs, "bare")
            return pgbench.batched(bench.server.bindir, bare[0], jobs, BATCH)

        variants = {"worker": worker, "pgbench": by_hand, **_peers_drain(bench, jobs)}
        seen = interleaved(rounds, variants, bench.say)
    against = {"pgbench": f"pgbench, batches of {BATCH} in one statement"}
    against |= {name: f"{name} {number}: {peers.settings(name)}" for name, number in bench.peers.items()}
    best = max(bench.peers, key=lambda name: median(seen[name]), default=None)
    return [
        Figure(
            *("drain", f"one process, {jobs:,} no-ops{spread(seen['worker'])}", median(seen["worker"])),
            *("jobs/s", words + spread(seen[name]), median(seen[name]), ratio(seen["worker"], seen[name])),
            2.0 if name == best else None,
        )
        for name, words in against.items()
    ]


def _peers_drain(bench: Bench, jobs: int) -> dict[str, Callable[[], float]]:
    """One worker process of each, for as long as the drain lasts, but no longer than a few seconds."""

    def rate(name: str, dsn: str) -> float:
        peers.fill(name, dsn, jobs)
        return peers.drain(name, dsn, jobs, bench.much(20, 4))

    variants: dict[str, Callable[[], float]] = {}
    for name in bench.peers:
        dsn = bench.server.database()
        peers.prepare(name, dsn)
        variants[name] = partial(rate, name, dsn)
    return variants


def head(bench: Bench) -> Sequence[Figure]:
    """The first jobs of a long queue, beside the same number that is all there is."""
    many, jobs, rounds = bench.much(200_000, 20_000), 2_000, bench.much(15, 1)
    with bench.database() as long, bench.database() as short:
        for (_, connection), count in ((long, many), (short, jobs)):
            fill(connection, count)
            settle(connection)

        def rate(dsn: str, connection: psycopg.Connection[Any]) -> float:
            since = said(connection, "SELECT clock_timestamp()")
            work_off(dsn, *CREW, "--max-jobs", str(jobs))
            found = _rate(connection, since)
            fill(connection, jobs)
            return found

        seen = interleaved(rounds, {"long": lambda: rate(*long), "short": lambda: rate(*short)}, bench.say)
    return [
        Figure(
            *("head", f"the first {jobs:,} of {many:,}{spread(seen['long'])}", median(seen["long"])),
            *("jobs/s", f"all of {jobs:,}", median(seen["short"]), ratio(seen["long"], seen["short"]), 0.95),
        )
    ]


def processes(bench: Bench) -> Sequence[Figure]:
    """Several worker processes that wait on an empty queue, which then is filled in one transaction."""
    jobs, rounds, most = bench.much(100_000, 2_000), bench.much(15, 1), bench.much(16, 4)
    counts = (1, 2, most)
    shares: dict[str, list[float]] = {str(count): [] for count in counts}
    with ExitStack() as stack:

        def burst(name: str, connection: psycopg.Connection[Any]) -> float:
            rate, share = _burst(connection, jobs)
            shares[name].append(share)
            return rate

        crews = {str(count): stack.enter_context(_crews(bench, count)) for count in counts}
        bursts = {name: partial(burst, name, connection) for name, connection in crews.items()}
        seen = interleaved(rounds, bursts, bench.say)
    said_of = {name: f"{name}{_said_share(shares[name])}" for name in seen}
    return [
        Figure(
            *("processes", said_of[count], median(seen[count]), "jobs/s"),
            *(said_of[base], median(seen[base]), ratio(seen[count], seen[base]), target),
        )
        for count, base, target in (("2", "1", 1.1), (str(most), "2", 1.0))
    ]


def _drained(dsn: str, connection: psycopg.Connection[Any], jobs: int) -> float:
    _refill(connection, jobs)
    since = said(connection, "SELECT clock_timestamp()")
    work_off(dsn, *CREW, "--drain")
    if said(connection, LEFT):
        raise SystemExit("the worker ended before the queue was empty")
    return _rate(connection, since)


def _refill(connection: psycopg.Connection[Any], jobs: int, queue: str = "fetch") -> None:
    """A table for each round, the same each time: no past, and such a queue."""
    connection.execute("TRUNCATE ingest_jobs")
    fill(connection, jobs, queue)
    settle(connection)


def _rate(connection: psycopg.Connection[Any], since: Any) -> float:
    row = connection.execute(RATE, {"since": since}).fetchone()
    assert row is not None
    return float(row[0])


@contextmanager
def _crews(bench: Bench, count: int) -> Iterator[psycopg.Connection[Any]]:
    """A database with so many workers, each of which has found the queue empty and waits."""
    with bench.database() as (dsn, connection), ExitStack() as stack:
        for _ in range(count):
            stack.enter_context(working(dsn, *CREW))
        until(lambda: said(connection, LISTENERS) >= count)
        yield connection


def _burst(connection: psycopg.Connection[Any], jobs: int) -> tuple[float, float]:
    """Jobs a second, and of all cores the share that the server used meanwhile (NaN on another machine)."""
    connection.execute("TRUNCATE ingest_jobs")
    since = said(connection, "SELECT clock_timestamp()")
    fill(connection, jobs)
    began, spent = time.monotonic(), cpu_s(connection)
    until(lambda: not said(connection, LEFT))
    used, took = cpu_s(connection), time.monotonic() - began
    share = math.nan if used is None or spent is None else (used - spent) / took
    return _rate(connection, since), share


def _said_share(shares: Sequence[float]) -> str:
    share = median(shares)
    return "" if math.isnan(share) else f", the server on {share:.1f} cores"
