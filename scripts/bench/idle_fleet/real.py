"""Real workers below a supervisor for each host that is played here, at rest."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any, Final

import psutil
import psycopg

from bench.harness.figures import Figure
from bench.harness.measuring import Bench
from bench.harness.workers import supervising
from bench.idle_fleet.cost import cost
from bench.worker.idle import CONNECTIONS
from bench.worker.wakes import until, value

AMOUNTS: Final = {
    "workers": (300, 16, "real workers"),
    "hosts": (12, 2, "hosts that they are on"),
}
SERVER: Final = {"max_connections": "2500", "autovacuum": "off"}
IDLE: Final = "SELECT count(*) FROM worker_heartbeats WHERE state = 'idle'"
# How long connections must not have become fewer.
_SETTLED_S: Final = 15.0
# So many hosts begin at a time: each of their workers imports for a third of a second.
_STARTS: Final = 2


def together(bench: Bench) -> Sequence[Figure]:
    """With an agent on each host."""
    return _fleet(bench, "with agents", "--agent")


def apart(bench: Bench) -> Sequence[Figure]:
    """Without: each worker for itself; of many only as many as have room."""
    return _fleet(bench, "each for itself", "--no-agent")


def _fleet(bench: Bench, name: str, *options: str) -> Sequence[Figure]:
    hosts = bench.amounts["hosts"]
    each = bench.amounts["workers"] // hosts
    name = f"{each * hosts} idle workers on {hosts} hosts, {name}"
    with bench.database() as (dsn, connection), ExitStack() as stack:
        for number in range(hosts):
            settings = {"QWF_HOST_LABEL": f"host-{number}", "QWF_REST_S": "5"}
            worker = f"fetch:{each} --concurrency 1"
            stack.enter_context(
                supervising(dsn, "--no-spare", *options, "--worker", worker, settings=settings)
            )
            if number % _STARTS == _STARTS - 1:
                until(partial(_are_idle, connection, (number + 1) * each))
                bench.say(f"{(number + 1) * each} workers are there")
        until(partial(_are_idle, connection, hosts * each))
        _settle(connection)
        figures = list(cost(connection, name, bench.much(60, 15)))
        memory = _memory_mb()
    return [*figures, Figure("fleet", f"{name}: memory of each process of theirs", memory, "MB")]


def _are_idle(connection: psycopg.Connection[Any], count: int) -> bool:
    time.sleep(0.2)
    return int(value(connection, IDLE)) >= count


def _settle(connection: psycopg.Connection[Any]) -> None:
    least, since = int(value(connection, CONNECTIONS)), time.monotonic()
    while time.monotonic() - since < _SETTLED_S:
        time.sleep(1)
        now = int(value(connection, CONNECTIONS))
        if now < least:
            least, since = now, time.monotonic()


def _memory_mb() -> float:
    """The mean proportional share of memory of all processes below this one that are ours."""
    shares = []
    for process in psutil.Process().children(recursive=True):
        try:
            if "queue_workflows" in process.cmdline():
                shares.append(process.memory_full_info().pss / (1 << 20))
        except psutil.Error:
            continue
    return sum(shares) / max(1, len(shares))
