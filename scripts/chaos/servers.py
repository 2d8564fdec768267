"""A server of a runner's own, which may be killed, and a database for each history."""

from __future__ import annotations

import os
import signal
import time
from contextlib import ExitStack, suppress
from typing import Any, Final

import psycopg
from psycopg import sql

from queue_workflows.db.connections.dsn import as_url, parse_dsn
from queue_workflows.db.embedded.server import EmbeddedServer
from queue_workflows.testing.databases import Databases
from queue_workflows.testing.runs import Run

SETTINGS: Final = {
    "fsync": "off",
    "full_page_writes": "off",
    "max_connections": "60",
    "autovacuum": "off",
    "shared_buffers": "32MB",
    "jit": "off",
}
_PATIENCE_S: Final = 60.0


class ChaosServer:
    """An embedded server without durability against the machine's death: only its own is tried."""

    def __init__(self, run: Run, stack: ExitStack, name: str) -> None:
        self._server = stack.enter_context(
            EmbeddedServer.acquire(run.directory / name, server_settings=SETTINGS)
        )
        self._params = parse_dsn(self._server.dsn())
        self._run, self._name = run, name
        self._count = 0
        self._template = self._databases(self.admin()).template()

    @property
    def socket(self) -> str:
        """Where it listens."""
        return str(self._server.socket_dir / f".s.PGSQL.{self._params['port']}")

    def admin(self) -> psycopg.Connection[Any]:
        """An administrator's connection to no database of a history."""
        return psycopg.connect(self.dsn_of("postgres"), autocommit=True, application_name="chaos")

    def dsn_of(self, name: str) -> str:
        """Of a database of this server."""
        return as_url({**self._params, "dbname": name})

    def _databases(self, admin: psycopg.Connection[Any]) -> Databases:
        return Databases(admin, self.dsn_of, stem="chaos", run_id=self._run.id, worker=self._name)

    def database(self) -> str:
        """A new one, migrated and empty."""
        self._count += 1
        name = f"chaos_{self._name}_{self._count}_test"
        with self.admin() as admin:
            # The copy of files is cheaper than the WAL of each page, where nothing is ever synced.
            create = sql.SQL("CREATE DATABASE {} TEMPLATE {} STRATEGY FILE_COPY")
            admin.execute(create.format(*map(sql.Identifier, (name, self._template))))
        return self.dsn_of(name)

    def drop(self, dsn: str) -> None:
        """Drop it with whoever is still connected to it."""
        name = sql.Identifier(parse_dsn(dsn)["dbname"])
        with self.admin() as admin:
            admin.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(name))

    def kill(self) -> None:
        """What `pg_ctl -m immediate stop` does, and start again: commits that were not flushed are gone."""
        pid = self._server.pid
        if pid is not None:
            os.kill(pid, signal.SIGQUIT)
            until = time.monotonic() + _PATIENCE_S
            while self._server.pid is not None and time.monotonic() < until:
                time.sleep(0.02)
        self._server.ensure_running()

    def crash(self, dsn: str) -> None:
        """Kill a backend, so that the server ends all others and recovers."""
        with suppress(psycopg.OperationalError), psycopg.connect(dsn, autocommit=True) as victim:
            os.kill(victim.info.backend_pid, signal.SIGKILL)
            victim.execute("SELECT pg_sleep(5)")

    def heal(self, dsn: str) -> None:
        """As it was: running, and with no setting of a history."""
        self._server.ensure_running()
        until = time.monotonic() + _PATIENCE_S
        while time.monotonic() < until:
            with suppress(psycopg.OperationalError), self.admin() as admin:
                name = sql.Identifier(parse_dsn(dsn)["dbname"])
                admin.execute("SET statement_timeout = 0")
                admin.execute(sql.SQL("ALTER DATABASE {} RESET ALL").format(name))
                return
            time.sleep(0.05)
