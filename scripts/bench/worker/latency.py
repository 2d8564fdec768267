"""How many jobs a second a worker does that is far from its server, and how often it waits for that."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from statistics import median
from typing import Any, Final, NamedTuple

import psycopg

from bench.harness.distance import Distance
from bench.harness.figures import Figure, interleaved, ratio
from bench.harness.measuring import Bench
from bench.harness.servers import said
from bench.harness.workers import work_off
from bench.worker.rates import fill, settle

# Beside none, which is the server on this machine, asked without anything in between.
ROUND_TRIPS_MS: Final = (20, 50)
RUN: Final = """
INSERT INTO workflow_runs (id, workflow_name, mode, spec, spec_hash, status, started_at)
VALUES (%(run)s, 'far', 'node', '{}', 'h', 'running', now())
"""
NODES: Final = """
INSERT INTO workflow_node_jobs (run_id, node_id, map_index, node_module, queue)
SELECT %(run)s, 'n', n, 'noop', 'cpu' FROM generate_series(1, %(count)s) AS n
"""
_RUN: Final = {"run": "00000000-0000-7000-8000-000000000001"}
# Between the ends at one moment and those at the last one lies the work of all but the first.
RATE: Final = """
WITH ended AS (
    SELECT finished_at AS at FROM {table} WHERE finished_at > %(since)s
    ORDER BY finished_at OFFSET %(warm_up)s
), first AS (SELECT min(at) AS at FROM ended)
SELECT count(*) / EXTRACT(epoch FROM max(ended.at) - min(first.at))::float8
FROM ended, first WHERE ended.at > first.at
"""


class _Far(NamedTuple):
    """A distance, and the round trips for each job that were counted there."""

    milliseconds: int
    round_trips: list[float]

    @property
    def words(self) -> str:
        return f"{self.milliseconds} ms"


class _Kind(NamedTuple):
    """Jobs of one family and a worker with so many at once, and how many are done beside it and far away."""

    words: str
    table: str
    queue: str
    slots: int
    near: int
    far: int
    # Of its rate beside the server, at 20 ms.
    target: float | None = None


KINDS: Final = (
    _Kind("ingest, one slot", "ingest_jobs", "fetch", 1, 1_000, 300),
    _Kind("node, one slot", "workflow_node_jobs", "cpu", 1, 1_000, 300),
    _Kind("ingest, eight slots", "ingest_jobs", "fetch", 8, 40_000, 20_000, 0.6),
    _Kind("ingest, fifty slots", "ingest_jobs", "fetch", 50, 40_000, 20_000),
)


def latency(bench: Bench) -> Sequence[Figure]:
    """Each kind of worker beside the server and far from it, in turns; and round trips for each job."""
    figures: list[Figure] = []
    for kind in KINDS:
        fars = [_Far(milliseconds, []) for milliseconds in ROUND_TRIPS_MS]
        jobs = bench.much(kind.far, kind.far // 5)
        with bench.database() as (dsn, connection):
            variants: dict[str, Callable[[], float]] = {
                "here": partial(_rate, connection, dsn, kind, bench.much(kind.near, kind.near // 10))
            }
            variants |= {far.words: partial(_far, connection, dsn, kind, jobs, far) for far in fars}
            seen = interleaved(bench.much(5, 1), variants, bench.say)
        for far in fars:
            found, here, each = seen[far.words], seen["here"], median(far.round_trips)
            target = kind.target if far is fars[0] else None
            words = f"{kind.words}, {far.words} away"
            figures += [
                Figure(
                    *("latency", words, median(found), "jobs/s"),
                    *("here", median(here), ratio(found, here), target),
                ),
                Figure(
                    *("latency", f"{words}, waits", each, "round trips a job"),
                    *(("one", 1.0, each, 1.1, True) if kind.slots == 1 else ()),
                ),
            ]
    return figures


def _far(connection: psycopg.Connection[Any], dsn: str, kind: _Kind, jobs: int, far: _Far) -> float:
    with Distance(dsn, far.milliseconds / 1000) as link:
        rate = _rate(connection, link.dsn, kind, jobs)
        far.round_trips.append(link.most_round_trips / jobs)
    return rate


def _rate(connection: psycopg.Connection[Any], dsn: str, kind: _Kind, jobs: int) -> float:
    """Jobs a second of a worker with this DSN, which drains so many."""
    connection.execute("TRUNCATE workflow_runs, ingest_jobs CASCADE")
    if kind.table == "ingest_jobs":
        fill(connection, jobs)
        settle(connection)
    else:
        connection.execute(RUN, _RUN)
        connection.execute(NODES, _RUN | {"count": jobs})
    since = said(connection, "SELECT clock_timestamp()")
    work_off(dsn, "--queue", kind.queue, *_slots_of(kind), "--max-jobs", str(jobs))
    query = RATE.replace("{table}", kind.table)
    row = connection.execute(query, {"since": since, "warm_up": jobs // 10}).fetchone()
    assert row is not None
    return float(row[0])


def _slots_of(kind: _Kind) -> Sequence[str]:
    return ("--concurrency", str(kind.slots)) if kind.table == "ingest_jobs" else ()
