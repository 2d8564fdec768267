"""A throwaway Postgres of a test's own, for what a shared server cannot be: a standby, or stopped."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Self

import psycopg
from support.servers.places import held_directory, remove

from queue_workflows.db.embedded.binaries import find_binaries
from queue_workflows.db.embedded.home import FALLBACK, run_as, settle

# Read before any test plays with the environment.
BINDIR = os.environ.get("QWF_PG_BINDIR")
PASSWORD = "tr!cky p@ss/wörd"


def free_port() -> int:
    """A loopback port that nobody listens on at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextmanager
def closing_if_it_fails(cluster: Cluster) -> Iterator[None]:
    """Leave no server and no directory behind by a half-made cluster."""
    try:
        yield
    except BaseException:
        cluster.close()
        raise


class Cluster:
    """A server on loopback and on a socket of its own; TCP asks for the password, the socket trusts."""

    def __init__(self) -> None:
        self.base = held_directory()
        self.base.chmod(0o755)
        place, self.account = settle(self.base / "own", None, FALLBACK)
        self.home = Path(place.home)
        self.home.mkdir(parents=True, exist_ok=True)
        if self.account is not None:
            for directory in (self.base, self.home):
                shutil.chown(directory, self.account.uid, self.account.gid)
        self.bindir = find_binaries(Path(BINDIR) if BINDIR else None, self.account, FALLBACK).bindir
        self.port = free_port()
        self.data = self.home / "data"

    @classmethod
    def primary(cls, settings: Mapping[str, str] | None = None) -> Self:
        """A fresh server with a database and a role `app`."""
        cluster = cls()
        with closing_if_it_fails(cluster):
            words = cluster.home / "pw"
            words.write_text(PASSWORD + "\n", encoding="utf-8")
            words.chmod(0o644)
            cluster._run(
                *("initdb", "-D", cluster.data, "-U", "postgres", "-E", "UTF8", "--locale=C", "-N"),
                *("--auth-local=trust", "--auth-host=scram-sha-256", f"--pwfile={words}"),
            )
            cluster.start(settings)
            with cluster.connect("postgres") as admin:
                admin.execute(psycopg.sql.SQL("CREATE ROLE app LOGIN PASSWORD {}").format(PASSWORD))
                admin.execute("CREATE DATABASE app OWNER app")
        return cluster

    @classmethod
    def standby_of(cls, primary: Cluster) -> Self:
        """A streaming standby, made by pg_basebackup."""
        cluster = cls()
        with closing_if_it_fails(cluster):
            cluster._run(
                *("pg_basebackup", "-D", cluster.data, "-R", "-c", "fast", "-X", "stream", "-N"),
                *("-h", primary.home, "-p", str(primary.port), "-U", "postgres"),
            )
            cluster.start()
        return cluster

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self, settings: Mapping[str, str] | None = None) -> None:
        """Start it and wait until it takes connections."""
        options = {
            "port": str(self.port),
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": str(self.home),
            "fsync": "off",
            "max_prepared_transactions": "5",
            **(settings or {}),
        }
        words = " ".join(f"-c {name}='{value}'" for name, value in options.items())
        self._run("pg_ctl", "-w", "-D", self.data, "-l", self.home / "log", "-o", words, "start")

    def stop(self, mode: str = "fast") -> None:
        """Stop it and wait."""
        self._run("pg_ctl", "-w", "-D", self.data, "-m", mode, "stop")

    def crash(self) -> None:
        """Kill a backend, so that the postmaster ends all the others and recovers; wait until it has."""
        with self.connect() as victim, suppress(psycopg.OperationalError):
            os.kill(victim.info.backend_pid, signal.SIGKILL)
            with self.connect() as witness:
                for _ in witness.notifies(timeout=150):
                    pass
                raise AssertionError("the postmaster did not mind")
        deadline = time.monotonic() + 150
        while True:
            try:
                self.connect().close()
                return
            except psycopg.OperationalError:
                assert time.monotonic() < deadline, "the server did not recover"
                time.sleep(0.05)

    def dsn(
        self, *, user: str = "app", password: str | None = PASSWORD, dbname: str = "app", **more: str
    ) -> str:
        """Over TCP, as keywords; `host` and `port` can be overridden."""
        words = {"host": "127.0.0.1", "port": str(self.port), **more}
        return psycopg.conninfo.make_conninfo("", user=user, password=password, dbname=dbname, **words)

    def connect(self, dbname: str = "app", user: str = "postgres") -> psycopg.Connection:
        """An administrator's connection over the socket."""
        return psycopg.connect(host=str(self.home), port=self.port, user=user, dbname=dbname, autocommit=True)

    def close(self) -> None:
        """Stop it at once and remove everything."""
        if (self.data / "postmaster.pid").exists():
            self.stop("immediate")
        shutil.rmtree(self.home, ignore_errors=True)
        remove(self.base)

    def _run(self, program: str, *arguments: object) -> None:
        command = [str(self.bindir / program), *map(str, arguments)]
        ran = run_as(self.account, command)
        assert ran.returncode == 0, ran.stdout[-2000:]
