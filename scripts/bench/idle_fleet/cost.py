"""What a server is at, counted from outside of it: processor time of all its processes, and transactions."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import psutil
import psycopg

from bench.harness.figures import Figure
from bench.worker.idle import CONNECTIONS, TRANSACTIONS
from bench.worker.wakes import value

# A server writes its statistics down a second after it goes idle, at the latest.
_STATISTICS_S = 1.5


def cost(connection: psycopg.Connection[Any], name: str, seconds: float) -> Sequence[Figure]:
    """Connections, transactions a second and per cent of a core, over some seconds."""
    postmaster = psutil.Process(connection.info.backend_pid).parent()
    if postmaster is None:
        raise SystemExit("the processor time of a server elsewhere cannot be read: leave out --dsn")
    before, began, used = _transactions(connection), time.monotonic(), _processor_s(postmaster)
    time.sleep(seconds)
    took, spent = time.monotonic() - began, _processor_s(postmaster) - used
    transactions = _transactions(connection) - before
    return [
        Figure("fleet", f"{name}: connections", value(connection, CONNECTIONS), ""),
        Figure("fleet", f"{name}: transactions", transactions / took, "/s"),
        Figure("fleet", f"{name}: processor of the server", 100 * spent / took, "% of a core"),
    ]


def _transactions(connection: psycopg.Connection[Any]) -> int:
    time.sleep(_STATISTICS_S)
    return int(value(connection, TRANSACTIONS))


def _processor_s(postmaster: psutil.Process) -> float:
    total = 0.0
    for process in (postmaster, *postmaster.children()):
        with suppress(psutil.Error):
            times = process.cpu_times()
            total += times.user + times.system
    return total
