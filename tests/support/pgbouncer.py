"""A real PgBouncer in front of a cluster of the test's own, where its program is installed."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from typing import Self

import pytest
from psycopg.conninfo import make_conninfo
from support.cluster import Cluster, free_port

PROGRAM = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")


class PgBouncer:
    """Pools connections to the database `app`; anybody may come in."""

    def __init__(self, cluster: Cluster, pool_mode: str, **settings: str) -> None:
        if PROGRAM is None:
            pytest.skip("pgbouncer is not installed")
        self.port = free_port()
        lines = {
            "listen_addr": "127.0.0.1",
            "listen_port": str(self.port),
            "unix_socket_dir": "",
            "auth_type": "any",
            "pool_mode": pool_mode,
            "default_pool_size": "3",
            **settings,
        }
        config = cluster.home / f"pgbouncer-{self.port}.ini"
        text = "\n".join(f"{name} = {value}" for name, value in lines.items())
        database = f"app = host={cluster.home} port={cluster.port} user=app"
        config.write_text(f"[databases]\n{database}\n[pgbouncer]\n{text}\n")
        config.chmod(0o644)
        switch = cluster.account.switch() if cluster.account else {}
        self._log = open(cluster.home / f"pgbouncer-{self.port}.log", "wb")  # noqa: SIM115 - closed in close()
        self._process = subprocess.Popen([PROGRAM, config], stdout=self._log, stderr=self._log, **switch)
        self._wait()

    def dsn(self, port: int | None = None) -> str:
        """Through the proxy."""
        return make_conninfo("", host="127.0.0.1", port=port or self.port, user="app", dbname="app")

    def close(self) -> None:
        """End it at once."""
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(10)
        self._log.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _wait(self) -> None:
        until = time.monotonic() + 20
        while True:
            assert self._process.poll() is None, self._process.returncode
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
            except OSError:
                assert time.monotonic() < until
                time.sleep(0.02)
            else:
                return
