"""How much processor time hooks have taken so far, by the process that took it."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, NamedTuple

import psutil
import psycopg

from bench.harness.servers import cpu_s


class Spent(NamedTuple):
    """Seconds; of `scripts`, their spawner and keepers are a part, which have waited for them."""

    worker: float
    scripts: float
    orchestrator: float
    server: float

    def since(self, before: Spent) -> Spent:
        """What has been spent since then."""
        return Spent(*(now - then for now, then in zip(self, before, strict=True)))


def spent(worker: int, orchestrator: int, connection: psycopg.Connection[Any]) -> Spent:
    """What these processes have spent, and the server of the connection if it is on this machine."""
    return Spent(
        worker=_own(psutil.Process(worker)),
        scripts=sum(map(_with_all_below, psutil.Process(worker).children())),
        orchestrator=_own(psutil.Process(orchestrator)),
        server=cpu_s(connection) or 0.0,
    )


def _own(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def _with_all_below(process: psutil.Process) -> float:
    """What it spent, and what those spent that it has waited for, or that are still below it."""
    seconds = 0.0
    with suppress(psutil.NoSuchProcess):
        times = process.cpu_times()
        seconds = times.user + times.system + times.children_user + times.children_system
        seconds += sum(map(_with_all_below, process.children()))
    return float(seconds)
