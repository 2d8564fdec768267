"""Whole runs with two shipped workers and one shipped orchestrator, beside the plain queue's no-op rate."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from statistics import median
from typing import Any, Final

import psycopg

from bench.harness.figures import Figure, percentile, ratio
from bench.harness.measuring import Bench
from bench.harness.servers import said
from bench.harness.workers import ONE_AT_A_TIME, orchestrating, working
from bench.worker.rates import fill, worker_rate
from bench.worker.wakes import LISTENERS, wakes
from queue_workflows import start_run
from queue_workflows.workflow.document.load import load_document

QUEUE: Final = "cpu"
# From the commit that started the first run to the end of the last one, by the rows' own times.
SECONDS: Final = """
SELECT EXTRACT(epoch FROM max(finished_at) - min(created_at))::float8 FROM workflow_runs WHERE id = ANY (%s)
"""
NOT_COMPLETED: Final = "SELECT count(*) FROM workflow_runs WHERE id = ANY (%s) AND status <> 'completed'"
OPEN: Final = "SELECT count(*) FROM workflow_runs WHERE id = ANY (%s) AND finished_at IS NULL"
BEGAN: Final = """
SELECT (context_delta->>'at')::bigint FROM workflow_node_jobs WHERE run_id = ANY (%s) ORDER BY id
"""
_PATIENCE_S: Final = 900.0
_Spec = Mapping[str, Any]


def chain(bench: Bench) -> Sequence[Figure]:
    """Each node needs the one before: from the first line of a body to that of the next."""
    length = bench.much(1_000, 10)
    nodes = [_node("n0", module="clock")]
    nodes += [_node(f"n{i}", depends_on=[f"n{i - 1}"], module="clock") for i in range(1, length)]
    with _engine(bench) as (connection, dsn):
        rate, runs = _timed(connection, {"name": "chain", "nodes": nodes}, runs=1, size=length)
        began = [row[0] for row in connection.execute(BEGAN, [runs])]
        plain = _plain(connection, dsn, bench.much(1_000, 80))
    hops = [(after - before) / 1e6 for before, after in pairwise(began)]
    wake = wakes(bench)[0].value
    return [
        Figure(
            *("chain", f"{length:,} nodes, a hop's median", median(hops), "ms", "a wake of the plain queue"),
            *(wake, median(hops) / wake, 3.0, True),
        ),
        Figure(*("chain", "99 % of the hops", percentile(hops, 0.99), "ms")),
        Figure(*("chain", "nodes a second", rate, "/s", "plain queue, one worker", plain, rate / plain)),
    ]


def fan_out(bench: Bench) -> Sequence[Figure]:
    """One node above many, and one below them."""
    width = bench.much(10_000, 30)
    nodes = [_node("first"), *(_node(f"n{i}", depends_on=["first"]) for i in range(width))]
    nodes.append(_node("last", depends_on=[f"n{i}" for i in range(width)]))
    return _beside_the_queue(bench, "fan-out", f"1 → {width:,} → 1", nodes, target=0.5)


def for_each(bench: Bench) -> Sequence[Figure]:
    """One node above a list, and one below it."""
    width = bench.much(10_000, 30)
    nodes = [
        _node("first"),
        _node("each", depends_on=["first"], for_each={"$value": list(range(width))}),
        _node("last", depends_on=["each"]),
    ]
    return _beside_the_queue(
        bench, "for-each", f"1 → for_each {width:,} → 1", nodes, size=width + 2, target=0.5
    )


def diamonds(bench: Bench) -> Sequence[Figure]:
    """Many small runs at once."""
    runs = bench.much(1_000, 4)
    nodes = [_node("first"), *(_node(f"n{i}", depends_on=["first"]) for i in range(8))]
    nodes.append(_node("last", depends_on=[f"n{i}" for i in range(8)]))
    return _beside_the_queue(bench, "diamonds", f"{runs:,} runs of 1 → 8 → 1", nodes, runs=runs)


def _beside_the_queue(
    bench: Bench,
    measure: str,
    what: str,
    nodes: Sequence[_Spec],
    *,
    runs: int = 1,
    size: int | None = None,
    target: float | None = None,
) -> Sequence[Figure]:
    """In turns with the plain queue; it does no-ops with one worker, as `queue.py` has it, and with two."""
    rounds, jobs = bench.much(5, 1), bench.much(1_000, 80)
    size = runs * (size or len(nodes))
    seen: dict[str, list[float]] = {"nodes": [], "one": [], "two": []}
    with _engine(bench) as (connection, dsn):
        for number in range(rounds):
            rate, _ = _timed(connection, {"name": measure, "nodes": nodes}, runs=runs, size=size)
            seen["nodes"].append(rate)
            seen["one"].append(_plain(connection, dsn, jobs))
            seen["two"].append(_plain(connection, dsn, jobs, beside=True))
            bench.say(
                f"round {number + 1} of {rounds}: " + ", ".join(f"{k} {v[-1]:,.0f}" for k, v in seen.items())
            )
    ours, one, two = seen.values()
    return [
        Figure(
            *(measure, what, median(ours), "nodes/s", "plain queue, one worker", median(one)),
            *(ratio(ours, one), target),
        ),
        Figure(*(measure, what, median(ours), "nodes/s", "two workers", median(two), ratio(ours, two))),
    ]


def _node(node_id: str, *, module: str = "noop", **more: Any) -> _Spec:
    return {"id": node_id, "module": module, **more}


@contextmanager
def _engine(bench: Bench) -> Iterator[tuple[psycopg.Connection[Any], str]]:
    """A new database with an idle orchestrator and two idle workers."""
    with (
        bench.database() as (dsn, connection),
        orchestrating(dsn),
        working(dsn, queue=QUEUE),
        working(dsn, queue=QUEUE),
    ):
        _until(lambda: said(connection, LISTENERS) >= 3, "the workers and the orchestrator to be idle")
        yield connection, dsn


def _timed(
    connection: psycopg.Connection[Any], spec: _Spec, *, runs: int, size: int
) -> tuple[float, list[Any]]:
    """Nodes a second of so many runs, all started in one transaction."""
    document = load_document(spec)
    with connection.transaction():
        started = [start_run(document, conn=connection).id for _ in range(runs)]
    _until(lambda: not _value(connection, OPEN, started), "the runs to end")
    if _value(connection, NOT_COMPLETED, started):
        raise SystemExit("a run did not complete")
    return size / float(_value(connection, SECONDS, started)), started


def _plain(connection: psycopg.Connection[Any], dsn: str, jobs: int, *, beside: bool = False) -> float:
    """The no-op rate of the plain queue, while the workers of the runs are idle; `beside` a second worker."""
    fill(connection, 2 * jobs if beside else jobs)
    if not beside:
        return worker_rate(connection, dsn, jobs)
    with working(dsn, *ONE_AT_A_TIME, "--max-jobs", str(jobs)):
        return worker_rate(connection, dsn, jobs)


def _value(connection: psycopg.Connection[Any], query: str, runs: Sequence[Any]) -> Any:
    row = connection.execute(query, [list(runs)]).fetchone()
    return row[0] if row else None


def _until(is_so: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    while not is_so():
        if time.monotonic() > deadline:
            raise SystemExit(f"waited {_PATIENCE_S:.0f} s for {what}")
        time.sleep(0.1)
