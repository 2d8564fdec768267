"""What a hook costs from its claim to its accepted end, in runs on the shipped worker."""

from __future__ import annotations

import tempfile
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any, Final

import psycopg

from bench.harness.figures import Figure, percentile, ratio
from bench.harness.measuring import Bench
from bench.harness.workers import orchestrating, working
from bench.hook_scripts.commands import SCRIPTS, bare, executable
from bench.hook_scripts.processor_time import Spent, spent
from queue_workflows import start_run
from queue_workflows.db import bootstrap
from queue_workflows.hooks.plugins.compile import compile_hooks

EVENT: Final = "Bench"
AT_ONCE: Final = (1, 8)
# From the first claim to the last accepted end, by the rows' own times.
SECONDS: Final = """
SELECT EXTRACT(epoch FROM max(finished_at) - min(started_at))::float8
FROM workflow_node_jobs WHERE run_id = %s AND kind = 'task'
"""
STATUS: Final = "SELECT status FROM workflow_runs WHERE id = %s"
_PATIENCE_S: Final = 300.0


def shipped(bench: Bench) -> Sequence[Figure]:
    """Runs of one step of many hooks, each a shell script that does nothing, beside the same scripts bare.

    And how much processor time a hook took, of which process: waiting is no part of that.
    """
    hooks = bench.much(200, 8)
    figures = []
    with tempfile.TemporaryDirectory(prefix="qwf-bench-") as directory:
        plugins = Path(directory, "plugins")
        Path(plugins, "nothing").mkdir(parents=True)
        for number in range(hooks):
            name = f"on_{EVENT}__1{number % 10}_{number:03}.sh"
            script = executable(plugins / "nothing" / name, SCRIPTS["a shell script"])
        document = compile_hooks(EVENT, [plugins])
        for at_once in AT_ONCE:
            ours, base, took = [], [], list[Spent]()
            settings = {"QWF_HOOK_DIRS": str(plugins), "QWF_DATA_DIR": str(Path(directory, "data"))}
            with bench.database() as (dsn, connection):
                bootstrap(dsn)
                options = ("--concurrency", str(at_once))
                with (
                    orchestrating(dsn) as orchestrator,
                    working(dsn, *options, queue="hooks", settings=settings) as worker,
                ):
                    _run(connection, document)
                    for number in range(bench.much(5, 1)):
                        before = spent(worker.pid, orchestrator.pid, connection)
                        ours.append(_run(connection, document) / hooks * 1000)
                        took.append(spent(worker.pid, orchestrator.pid, connection).since(before))
                        base.append(_bare_ms(script, hooks))
                        bench.say(
                            f"{at_once} at once, round {number + 1}: {ours[-1]:.2f}, bare {base[-1]:.2f}"
                        )
            figures.append(
                Figure(
                    *("shipped", f"a hook, {at_once} at once, from claim to end", median(ours), "ms"),
                    *("posix_spawn and wait", median(base), ratio(ours, base), 3.0, True),
                )
            )
            # So few hooks take less than the hundredth of a second by which the kernel counts.
            parts = () if bench.quick else zip(Spent._fields, zip(*took, strict=True), strict=True)
            for part, seconds in parts:
                what = f"processor time of it, {at_once} at once: {part}"
                figures.append(Figure("shipped", what, median(seconds) / hooks * 1000, "ms"))
    return figures


def _run(connection: psycopg.Connection[Any], document: dict[str, Any]) -> float:
    run: uuid.UUID = start_run(document, {"url": "https://example.org/"}, conn=connection).id
    until = time.monotonic() + _PATIENCE_S
    while (status := _of(connection, STATUS, run)) != "completed":
        if status in ("failed", "cancelled") or time.monotonic() > until:
            raise SystemExit(f"run {run} is {status}")
        time.sleep(0.02)
    return float(_of(connection, SECONDS, run))


def _of(connection: psycopg.Connection[Any], query: str, run: uuid.UUID) -> Any:
    row = connection.execute(query, [run]).fetchone()
    return row[0] if row else None


def _bare_ms(script: Path, times: int) -> float:
    taken = []
    for _ in range(times):
        began = time.perf_counter()
        bare(script)
        taken.append((time.perf_counter() - began) * 1000)
    return percentile(taken, 0.5)
