"""How soon a worker begins a job past a PgBouncer that pools transactions, and what its looks cost."""

from __future__ import annotations

import os
import random
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from bench.harness.figures import Figure, percentile
from bench.harness.measuring import Bench
from bench.harness.workers import ONE_AT_A_TIME, working
from bench.worker.wakes import ENQUEUE, result, until, value

PROGRAM: Final = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
AIM_MS: Final = 30.0
_NOBODY: Final = 65_534
# Jobs come at any time within this after the one before has begun.
_WITHIN_S: Final = 2.0
_QUIET_S: Final = 35.0
_IDLE_S: Final = 20.0


def pooled(bench: Bench) -> Sequence[Figure]:
    """From the return of a commit to the first line of the body, and transactions a second."""
    if PROGRAM is None:
        bench.say("no pgbouncer is installed")
        return []
    figures: list[Figure] = []
    for name, options in (("one job at a time", ONE_AT_A_TIME), ("eight threads", ())):
        with ExitStack() as stack:
            dsn, connection = stack.enter_context(bench.database())
            through, console = stack.enter_context(_pooling(dsn))
            stack.enter_context(working(through, *options))
            began = partial(result, connection)
            began(value(connection, ENQUEUE))
            before, since = _transactions(console), time.monotonic()
            seen = [_sample(connection, began) for _ in range(bench.much(60, 3))]
            busy = (_transactions(console) - before) / (time.monotonic() - since)
            time.sleep(bench.much(int(_QUIET_S), 1))
            before, since = _transactions(console), time.monotonic()
            time.sleep(bench.much(int(_IDLE_S), 1))
            idle = (_transactions(console) - before) / (time.monotonic() - since)
        median = percentile(seen, 0.5)
        figures += [
            Figure(
                *("pooled", f"commit to body, {name}, median", median, "ms"),
                *("aim", AIM_MS, median / AIM_MS, 1.0, True),
            ),
            Figure("pooled", f"commit to body, {name}, 99 %", percentile(seen, 0.99), "ms"),
            Figure("pooled", f"transactions a second with a job a second, {name}", busy, "/s"),
            Figure("pooled", f"transactions a second when idle for long, {name}", idle, "/s"),
        ]
    return figures


def _sample(connection: psycopg.Connection[Any], began: Any) -> float:
    time.sleep(random.random() * _WITHIN_S)
    job = value(connection, ENQUEUE)
    committed = time.monotonic_ns()
    return float(max(began(job) - committed, 1) / 1e6)


def _transactions(console: psycopg.Connection[Any]) -> int:
    """How many the proxy has passed on to our database since it began."""
    with console.cursor() as cursor:
        cursor.execute("SHOW STATS_TOTALS")
        names = [column.name for column in cursor.description or ()]
        rows = [dict(zip(names, row, strict=True)) for row in cursor]
    return sum(int(row["xact_count"]) for row in rows if row["database"] != "pgbouncer")


@contextmanager
def _pooling(dsn: str) -> Iterator[tuple[str, psycopg.Connection[Any]]]:
    """A DSN through a new PgBouncer, and its console."""
    target = {name: str(word) for name, word in conninfo_to_dict(dsn).items() if word}
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with tempfile.TemporaryDirectory(prefix="qwf-bench-pooled-") as place:
        os.chmod(place, 0o755)
        config = Path(place, "pgbouncer.ini")
        server = " ".join(
            f"{name}='{target[name]}'"
            for name in ("host", "port", "user", "password", "dbname")
            if name in target
        )
        config.write_text(
            f"[databases]\n{target['dbname']} = {server}\n"
            f"[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\n"
            "unix_socket_dir =\nauth_type = any\npool_mode = transaction\ndefault_pool_size = 5\n"
        )
        host = target.get("host", "")
        owner = os.stat(host) if host.startswith("/") else None
        uid, gid = (owner.st_uid, owner.st_gid) if owner and owner.st_uid else (_NOBODY, _NOBODY)
        account: dict[str, Any] = {"user": uid, "group": gid, "extra_groups": []} if os.geteuid() == 0 else {}
        process = subprocess.Popen(
            [str(PROGRAM), config], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, **account
        )
        common = {"host": "127.0.0.1", "port": port, "user": target.get("user", ""), "sslmode": "disable"}
        try:
            console = until(lambda: _console(make_conninfo("", dbname="pgbouncer", **common)))
            with console:
                yield make_conninfo("", dbname=target["dbname"], **common), console
        finally:
            process.kill()
            process.wait()


def _console(dsn: str) -> psycopg.Connection[Any] | None:
    try:
        return psycopg.connect(dsn, autocommit=True)
    except psycopg.OperationalError:
        return None
