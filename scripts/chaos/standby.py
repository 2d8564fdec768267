"""Scenarios that need servers of their own: a standby that takes over, and a volume for WAL that is full."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import psycopg
from psycopg.conninfo import make_conninfo

from chaos.histories import History
from chaos.launcher import SCRIPTS, Launcher
from chaos.model import judge
from chaos.observing import Observation
from chaos.proxy import Proxy
from chaos.running import run_history
from chaos.scenarios import history, jobs, role, worker
from queue_workflows.db import bootstrap
from queue_workflows.testing.runs import new_run

# The clusters are those of the tests.
sys.path.append(str(SCRIPTS.parent / "tests"))

_PATIENCE_S: Final = 90.0
_VOLUME: Final = "160m"
Verdict = tuple[History, list[str], Observation]


class ClusterServer:
    """What a history needs of a server, over one that can be replaced or filled; always through the proxy."""

    def __init__(self, cluster: Any) -> None:
        self.cluster = cluster
        self.proxy = Proxy(_socket_of(cluster), seed=0)
        self.standby: Any = None
        self.volume: Path | None = None

    def database(self) -> str:
        """The one that there is, migrated, through the proxy: who serves it may change."""
        local = make_conninfo(
            host=str(self.cluster.home), port=self.cluster.port, user="postgres", dbname="app"
        )
        bootstrap(local)
        port = self.proxy.port("direct")
        words = {"sslmode": "disable", "gssencmode": "disable"}
        return make_conninfo("", user="postgres", dbname="app", host="127.0.0.1", port=port, **words)

    def drop(self, dsn: str) -> None:
        """It goes with its cluster."""

    def heal(self, dsn: str) -> None:
        """Wait until it takes connections."""
        until = time.monotonic() + _PATIENCE_S
        while time.monotonic() < until:
            with suppress(psycopg.OperationalError):
                psycopg.connect(dsn, connect_timeout=5).close()
                return
            time.sleep(0.1)

    def promote(self) -> None:
        """The primary is gone from one moment to the next; its standby takes its place."""
        self.cluster.stop("immediate")
        with self.standby.connect("postgres") as admin:
            admin.execute("SELECT pg_promote()")
        self.proxy.upstream = _socket_of(self.standby)

    def fill(self) -> None:
        """Not one more page of WAL can be written."""
        assert self.volume is not None
        with suppress(OSError), (self.volume / "filler").open("wb", buffering=0) as file:
            while True:
                file.write(b"\0" * 65536)

    def free(self) -> None:
        """Somebody makes room, and starts the server again if it is down."""
        assert self.volume is not None
        (self.volume / "filler").unlink()
        with suppress(AssertionError):
            self.cluster.stop("immediate")
        self.cluster.start()


def _socket_of(cluster: Any) -> str:
    return str(cluster.home / f".s.PGSQL.{cluster.port}")


def _run(made: History, server: ClusterServer) -> Verdict:
    with new_run() as run, ExitStack() as stack:
        launcher = Launcher()
        stack.callback(launcher.close)
        stack.callback(server.proxy.close)
        seen = run_history(made, server, launcher, server.proxy, run.directory / "histories" / "1")  # type: ignore[arg-type]
    return made, judge(made, seen), seen


def _load(at: float, for_s: float) -> Iterator[Any]:
    for number in range(int(for_s)):
        yield jobs(at + number, 8, s=0.05)


def promoted() -> Verdict:
    """The standby, which has each commit that was confirmed, takes over under load."""
    from support.servers.cluster import Cluster

    with ExitStack() as stack:
        primary = stack.enter_context(Cluster.primary({"wal_level": "replica", "max_wal_senders": "5"}))
        server = ClusterServer(primary)
        database = server.database()
        server.standby = stack.enter_context(Cluster.standby_of(primary))
        with primary.connect("postgres") as admin:
            admin.execute("ALTER SYSTEM SET synchronous_standby_names = '*'")
            admin.execute("SELECT pg_reload_conf()")
        assert database
        step = {"at": 3.0, "do": "promote", "takes_s": 20}
        roles = [worker("r1"), worker("r2", 0, "--concurrency", "1"), role("r3", 0, "scheduler", via="proxy")]
        return _run(history(*roles, *_load(0.3, 6), step, QWF_MAX_CRASHES="9"), server)


def full() -> Verdict:
    """WAL has a volume of its own, which is full: the server panics, and is down until there is room."""
    from support.servers.cluster import Cluster

    if os.geteuid() != 0:
        raise SystemExit("full-wal needs root: it mounts a volume")
    with ExitStack() as stack:
        cluster = stack.enter_context(Cluster.primary({"max_wal_size": "64MB"}))
        server = ClusterServer(cluster)
        cluster.stop()
        server.volume = stack.enter_context(_volume(cluster.home / "wal"))
        wal = cluster.data / "pg_wal"
        subprocess.run(["cp", "-a", f"{wal}/.", str(server.volume)], check=True)
        subprocess.run(["rm", "-r", str(wal)], check=True)
        wal.symlink_to(server.volume)
        subprocess.run(["chown", "-R", "--reference", str(cluster.data), str(server.volume)], check=True)
        cluster.start({"max_wal_size": "64MB", "wal_recycle": "off"})
        steps = [{"at": 2.0, "do": "fill"}, {"at": 8.0, "do": "free", "takes_s": 20}]
        load = [{"at": 2.2, "do": "many", "task": "returns_much", "count": 60}]
        roles = [worker("r1"), worker("r2", 0, "--concurrency", "1")]
        return _run(history(*roles, *_load(0.3, 2), *load, *steps, jobs(9.0, 5), QWF_MAX_CRASHES="9"), server)


@contextmanager
def _volume(place: Path) -> Iterator[Path]:
    place.mkdir()
    subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={_VOLUME},mode=0700", "tmpfs", str(place)], check=True
    )
    try:
        yield place
    finally:
        # The server of the cluster may still have it open for a moment.
        subprocess.run(["umount", "--lazy", str(place)], check=False)


ON_SERVERS: Final[dict[str, Callable[[], Verdict]]] = {"promoted-standby": promoted, "full-wal": full}
