"""The server that a benchmark runs on: the embedded one as it is shipped, or the one that a DSN names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import psycopg

from queue_workflows.db.connections.dsn import as_url, parse_dsn
from queue_workflows.db.embedded.binaries import wheel_bindir
from queue_workflows.db.embedded.server import EmbeddedServer
from queue_workflows.testing.databases import Databases
from queue_workflows.testing.runs import new_run

DEBIAN = Path("/usr/lib/postgresql/15/bin")


@dataclass(frozen=True)
class Server:
    """Makes databases, each migrated, empty and dropped at the end of the benchmark."""

    version: str
    fsync: bool
    bindir: Path
    _databases: Databases
    _open: ExitStack

    def database(self) -> str:
        """The DSN of a new one."""
        return self._open.enter_context(self._databases.database())

    def empty_database(self) -> str:
        """The DSN of a new one that nobody has migrated."""
        return self._open.enter_context(self._databases.database(template=False))


@contextmanager
def open_server(dsn: str | None, settings: Mapping[str, str] | None = None) -> Iterator[Server]:
    """Use the server of the DSN, which must let us create databases, else an embedded one with fsync on.

    `settings` are parameters of the embedded one's start.
    """
    with new_run() as run, ExitStack() as stack:
        if dsn is None:
            # The settings are the shipped ones: what a benchmark wins by giving up durability is no figure.
            server = EmbeddedServer.acquire(run.directory / "pg", server_settings=settings)
            dsn = stack.enter_context(server).dsn()
        params = parse_dsn(dsn)

        def dsn_of(name: str) -> str:
            return as_url({**params, "dbname": name})

        admin = stack.enter_context(psycopg.connect(dsn_of("postgres"), autocommit=True))
        databases = Databases(admin, dsn_of, stem="bench", run_id=run.id, worker=run.worker)
        try:
            with ExitStack() as made:
                version, fsync = said(admin, "SHOW server_version"), said(admin, "SHOW fsync") == "on"
                yield Server(version.split()[0], fsync, _bindir(), databases, made)
        finally:
            databases.drop_run(run.id)


def said(connection: psycopg.Connection[Any], query: str) -> Any:
    """The one value that a query gives."""
    row = connection.execute(query).fetchone()
    return row[0] if row else None


def cpu_s(connection: psycopg.Connection[Any]) -> float | None:
    """Seconds of CPU that the server's processes have used so far; None where they are on another machine."""
    try:
        postmaster = psutil.Process(said(connection, "SELECT pg_backend_pid()")).parent()
        if postmaster is None or "postgres" not in postmaster.name():
            return None
        ended = postmaster.cpu_times()
        spent = ended.user + ended.system + ended.children_user + ended.children_system
        for process in postmaster.children():
            with suppress(psutil.NoSuchProcess):
                times = process.cpu_times()
                spent += times.user + times.system
    except psutil.Error:
        return None
    return float(spent)


def _bindir() -> Path:
    """Where `pgbench` is."""
    for bindir in filter(None, (wheel_bindir(), DEBIAN)):
        if (bindir / "pgbench").is_file():
            return bindir
    raise SystemExit("there is no pgbench: pip install 'queue-workflows[embedded]' brings one")
