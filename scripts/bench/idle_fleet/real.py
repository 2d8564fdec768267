"""Real workers at rest on hosts that are played here: of a supervisor with an agent, and beside these."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from typing import IO, Any, Final

import psutil
import psycopg

from bench.harness.figures import Figure
from bench.harness.measuring import Bench
from bench.harness.workers import environment, supervising
from bench.idle_fleet.cost import cost
from bench.worker.idle import CONNECTIONS
from bench.worker.wakes import until, value
from queue_workflows.roles.identity import AGENT

AMOUNTS: Final = {
    "workers": (300, 16, "real workers"),
    "hosts": (12, 2, "hosts that they are on"),
}
SERVER: Final = {"max_connections": "2500", "autovacuum": "off"}
IDLE: Final = "SELECT count(*) FROM worker_heartbeats WHERE state = 'idle'"
# How long connections must not have become fewer.
_SETTLED_S: Final = 15.0
_ALONE: Final = "--concurrency 1"


def together(bench: Bench) -> Sequence[Figure]:
    """With an agent on each host."""
    return _fleet(bench, "with agents", "--agent")


def apart(bench: Bench) -> Sequence[Figure]:
    """Without: each worker for itself; of many only as many as have room."""
    return _fleet(bench, "each for itself")


def _fleet(bench: Bench, name: str, *options: str) -> Sequence[Figure]:
    hosts = bench.amounts["hosts"]
    each = bench.amounts["workers"] // hosts
    name = f"{each * hosts} idle workers on {hosts} hosts, {name}"
    with bench.database() as (dsn, connection), ExitStack() as stack:
        nursery = stack.enter_context(_nursery(environment(dsn)))
        for number in range(hosts):
            settings = {"QWF_HOST_LABEL": f"host-{number}", "QWF_REST_S": "5"}
            supervisor = stack.enter_context(
                supervising(dsn, "--no-spare", *options, "--worker", f"fetch {_ALONE}", settings=settings)
            )
            settings |= _secret_of(supervisor.pid) if options else {}
            for _ in range(each - 1):
                worker = {
                    "options": ["worker", "--queue", "fetch", *_ALONE.split()],
                    "environment": environment(dsn, settings),
                }
                nursery.write(json.dumps(worker) + "\n")
            nursery.flush()
            until(partial(_are_idle, connection, (number + 1) * each))
            bench.say(f"{(number + 1) * each} workers are there")
        _settle(connection)
        figures = list(cost(connection, name, bench.much(60, 15)))
        memory = _memory_mb()
    return [
        *figures,
        Figure("fleet", f"{name}: memory of each process, of which much is shared", memory, "MB"),
    ]


@contextmanager
def _nursery(around: Mapping[str, str]) -> Iterator[IO[str]]:
    """Where workers are born: what is written there is a line each."""
    command = [sys.executable, "-m", "bench.idle_fleet.nursery"]
    with subprocess.Popen(
        command, env=around, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as own:
        assert own.stdin
        yield own.stdin
        own.stdin.close()


def _secret_of(supervisor: int) -> dict[str, str]:
    """What the supervisor has told its agent, as the workers of its host are told too."""
    told: dict[str, str] = {}

    def found() -> bool:
        for child in psutil.Process(supervisor).children():
            with suppress(psutil.Error):
                if "agent" in child.cmdline():
                    told.update({name: value for name, value in child.environ().items() if name == AGENT})
        return bool(told)

    until(found)
    return told


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
            if {"queue_workflows", "bench.idle_fleet.nursery"}.intersection(process.cmdline()):
                shares.append(process.memory_full_info().pss / (1 << 20))
        except psutil.Error:
            continue
    return sum(shares) / max(1, len(shares))
