"""What the dispatcher alone spends on a node, in runs of any size; bare statements stand in for workers."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Final

import psycopg

from bench.harness.figures import Figure
from bench.harness.measuring import Bench
from queue_workflows import start_run
from queue_workflows.engine.runs.dispatcher import Dispatcher
from queue_workflows.repositories import Ending, NodeJobRepository
from queue_workflows.settings import load_settings
from queue_workflows.states import JobStatus
from queue_workflows.workflow.document.load import load_document
from queue_workflows.workflow.providing import find_document

WIDTH: Final = 10
STATUS: Final = "SELECT status FROM workflow_runs WHERE id = %s"


def dispatching(bench: Bench) -> Sequence[Figure]:
    """Ten chains side by side, so that every batch acts on ten ends and opens ten nodes."""
    sizes = (100, 1_000, 10_000, 100_000) if not bench.quick else (20, 40, 60, 80)
    costs: dict[int, float] = {}
    with bench.database() as (dsn, connection):
        for size in sizes:
            runs = max(1, sizes[2] // size)
            costs[size] = sum(_cost_ms(dsn, connection, size) for _ in range(runs)) / runs
            bench.say(f"{runs} runs of {size:,} nodes: {costs[size]:.3f} ms a node")
    small = sizes[1]
    base = costs[small]
    return [
        Figure(
            *(
                "dispatch",
                f"a node of a run of {size:,}",
                cost,
                "ms",
                f"of a run of {small:,}",
                base,
                cost / base,
            ),
            *(1.2 if size > small else None, True),
        )
        for size, cost in costs.items()
    ]


def _cost_ms(dsn: str, connection: psycopg.Connection[Any], size: int) -> float:
    """Milliseconds a node that the dispatcher takes for a whole run, its beginning and its end included."""
    nodes: list[dict[str, Any]] = [{"id": f"n{number}", "module": "noop"} for number in range(size)]
    for number in range(WIDTH, size):
        nodes[number]["depends_on"] = [f"n{number - WIDTH}"]
    run_id = start_run(load_document({"name": "chains", "nodes": nodes}), conn=connection).id
    spent = 0.0
    with psycopg.connect(dsn, autocommit=True) as own:
        dispatcher = Dispatcher(own, load_settings(environ={}), find_document=find_document)
        while True:
            before = time.perf_counter()
            moved = dispatcher.dispatch(run_id)
            spent += time.perf_counter() - before
            if not moved or not _work(connection):
                break
    row = connection.execute(STATUS, [run_id]).fetchone()
    if row != ("completed",):
        raise SystemExit(f"the run is {row}")
    return spent * 1000 / size


def _work(connection: psycopg.Connection[Any]) -> int:
    """Do what is queued, as a worker does; how many jobs that was."""
    jobs = NodeJobRepository(connection)
    claimed = jobs.claim("cpu", worker_id="bench", lease_s=3600, limit=WIDTH)
    jobs.end_many([Ending(job.fence, JobStatus.COMPLETED) for job in claimed])
    return len(claimed)
