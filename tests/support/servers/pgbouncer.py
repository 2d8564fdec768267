"""A real PgBouncer before a test's server; without the program a test is skipped, and in CI it fails."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping
from configparser import ConfigParser
from pathlib import Path
from typing import Any, Self

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.rows import dict_row
from support.servers.cluster import Cluster, free_port
from support.suite.missing import missing

PROGRAM = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")
NOBODY = 65_534
EXAMPLES = Path(__file__).resolve().parents[3] / "docs" / "deploy" / "pgbouncer"
# Where a test's proxy listens and whom it lets in is not what an example is about.
_OF_A_PLACE = ("listen_addr", "listen_port", "auth_type", "auth_file", "admin_users")


def example(pooling: str) -> dict[str, str]:
    """What the docs set for this kind of pooling, but for places and passwords."""
    config = ConfigParser(comment_prefixes=(";",), interpolation=None)
    config.read_string((EXAMPLES / f"{pooling}.ini").read_text(encoding="utf-8"))
    return {name: word for name, word in config["pgbouncer"].items() if name not in _OF_A_PLACE}


def tracks_nothing() -> dict[str, str]:
    """The setting with which prepared statements are passed on as they are; older versions do no other."""
    said = (
        subprocess.run([str(PROGRAM), "--version"], capture_output=True, text=True).stdout if PROGRAM else ""
    )
    found = re.search(r"(\d+)\.(\d+)", said)
    is_new = found is not None and (int(found[1]), int(found[2])) >= (1, 21)
    return {"max_prepared_statements": "0"} if is_new else {}


def _account_of(host: str) -> dict[str, Any]:
    """It refuses to be root; of a server on a socket it has to be the account that may open that."""
    if os.geteuid() != 0:
        return {}
    status = os.stat(host) if host.startswith("/") else None
    uid, gid = (status.st_uid, status.st_gid) if status and status.st_uid else (NOBODY, NOBODY)
    return {"user": uid, "group": gid, "extra_groups": []}


class PgBouncer:
    """Pools connections to one database, under several names with settings of their own; anybody may come in.

    `restart` keeps its port, and may change what it is set to.
    """

    def __init__(self, target: Cluster | str, pool_mode: str = "transaction", **settings: str) -> None:
        if PROGRAM is None:
            missing("pgbouncer is not installed")
        if isinstance(target, Cluster):
            self._server = {
                "host": str(target.home),
                "port": str(target.port),
                "user": "app",
                "dbname": "app",
            }
        else:
            self._server = {name: value for name, value in conninfo_to_dict(target).items() if value}
        self.port = free_port()
        self._names: dict[str, Mapping[str, str]] = {self._server["dbname"]: {}}
        self._settings = {"pool_mode": pool_mode, "default_pool_size": "3", **settings}
        self._home = Path(tempfile.mkdtemp(prefix="qwf-pgbouncer-", dir="/tmp"))
        self._home.chmod(0o755)
        self._log = open(self._home / "log", "ab")  # noqa: SIM115 - closed in close()
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    def named(self, name: str, **settings: str) -> str:
        """Another name for the database; its DSN works after the next start."""
        self._names[name] = settings
        return self.dsn(dbname=name)

    def dsn(self, port: int | None = None, dbname: str | None = None) -> str:
        """Through the proxy."""
        where = {"host": "127.0.0.1", "port": port or self.port, "dbname": dbname or self._server["dbname"]}
        return make_conninfo("", user=self._server["user"], sslmode="disable", **where)

    def start(self, **settings: str) -> None:
        """Come up, with these settings beside those of before."""
        config = self._written(settings)
        self._process = subprocess.Popen(
            [str(PROGRAM), config],
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            **_account_of(str(self._server.get("host", ""))),
        )
        self._wait()

    def reload(self, **settings: str) -> None:
        """Take other settings without cutting anybody off; at once as far as a client can see."""
        self._written(settings)
        assert self._process is not None
        before = self.said().count("re-reading config")
        self._process.send_signal(signal.SIGHUP)
        until = time.monotonic() + 150
        while self.said().count("re-reading config") == before:
            assert time.monotonic() < until, self.said()[-2000:]
            time.sleep(0.02)

    def stop(self) -> None:
        """End it at once: all its connections are cut."""
        if self._process is not None:
            # Which signal of its own means "now" is another in each version.
            self._process.kill()
            self._process.wait(150)
        self._process = None

    def console(self, command: str) -> list[dict[str, Any]]:
        """What its console answers; PAUSE answers once it holds."""
        with (
            psycopg.connect(self.dsn(dbname="pgbouncer"), autocommit=True, row_factory=dict_row) as console,
            console.cursor() as cursor,
        ):
            cursor.execute(command.encode())
            return cursor.fetchall() if cursor.description else []

    def restart(self, **settings: str) -> None:
        """Cut everybody off and come back."""
        self.stop()
        self.start(**settings)

    def close(self) -> None:
        """End it, and leave nothing."""
        self.stop()
        self._log.close()
        shutil.rmtree(self._home, ignore_errors=True)

    def said(self) -> str:
        """Its log."""
        return (self._home / "log").read_text(encoding="utf-8", errors="replace")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _written(self, settings: Mapping[str, str]) -> Path:
        self._settings.update(settings)
        config = self._home / "pgbouncer.ini"
        config.write_text(self._config(), encoding="utf-8")
        config.chmod(0o644)
        return config

    def _config(self) -> str:
        kept = ("host", "port", "user", "password", "dbname")
        server = {name: self._server[name] for name in kept if name in self._server}
        quoted = " ".join(f"{name}='{value}'".replace("\\", "\\\\") for name, value in server.items())
        lines = {
            "listen_addr": "127.0.0.1",
            "listen_port": str(self.port),
            "unix_socket_dir": "",
            "auth_type": "any",
            "admin_users": self._server["user"],
            **self._settings,
        }
        databases = (
            " ".join([f"{name} = {quoted}", *(f"{word}={value}" for word, value in settings.items())])
            for name, settings in self._names.items()
        )
        general = (f"{name} = {value}" for name, value in lines.items())
        return "\n".join(["[databases]", *databases, "[pgbouncer]", *general, ""])

    def _wait(self) -> None:
        until = time.monotonic() + 150
        while True:
            assert self._process is not None
            assert self._process.poll() is None, self.said()[-2000:]
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
            except OSError:
                assert time.monotonic() < until, self.said()[-2000:]
                time.sleep(0.02)
            else:
                return
