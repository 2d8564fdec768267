"""Keeps the server on some cores and everybody else on others."""

from __future__ import annotations

import os

import psutil
import psycopg

from bench.harness.servers import said
from queue_workflows.db.connections.dsn import parse_dsn


def of(text: str) -> set[int]:
    """The cores of a list such as `0-3,6`."""
    cores: set[int] = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        try:
            cores.update(range(int(first), int(last or first) + 1))
        except ValueError:
            raise SystemExit(f"--cores: {text!r} is no list of cores, such as 0-3,6") from None
    if not cores or not cores <= os.sched_getaffinity(0):
        here = ",".join(map(str, sorted(os.sched_getaffinity(0))))
        raise SystemExit(f"--cores: {text} is not all among the cores that there are: {here}")
    return cores


def keep_apart(dsn: str, server: set[int], clients: set[int]) -> None:
    """From now on; what either starts stays where it is."""
    with psycopg.connect(**parse_dsn(dsn)) as connection:  # type: ignore[arg-type]
        backend = said(connection, "SELECT pg_backend_pid()")
        try:
            postmaster = psutil.Process(backend).parent()
            if postmaster is None or "postgres" not in postmaster.name():
                raise SystemExit("--cores: the server is on another machine, where its cores are chosen")
            for process in (postmaster, *postmaster.children()):
                process.cpu_affinity(sorted(server))
        except psutil.NoSuchProcess:
            raise SystemExit(
                "--cores: the server is on another machine, where its cores are chosen"
            ) from None
        except psutil.AccessDenied:
            raise SystemExit("--cores: the server is another user's: start it with taskset") from None
    os.sched_setaffinity(0, clients)
