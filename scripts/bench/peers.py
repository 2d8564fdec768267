"""Other queues on Postgres, as their own documentation says to enqueue from synchronous code.

They live in an environment of their own (`PLACE`), so that what they need never meets what the engine needs;
what is below `main` runs there, without any of our packages.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

from bench.orders import take_orders

SCRIPTS: Final = Path(__file__).resolve().parents[1]
PLACE: Final = SCRIPTS.parent / ".venv-peers"
_RUN: Final = "import sys; from bench.peers import main; main(*sys.argv[1:])"
PEERS: Final = ("procrastinate", "pgqueuer")


def installed() -> dict[str, str]:
    """The peers of that environment with their versions; none where it was never made."""
    if not _python().is_file():
        return {}
    ran = subprocess.run(command("versions"), env=environment(), capture_output=True, text=True, check=True)
    return dict(json.loads(ran.stdout))


def command(*arguments: str) -> list[str]:
    """What runs `main` there; imported, because a peer warns of tasks that belong to `__main__`."""
    return [str(_python()), "-c", _RUN, *arguments]


def environment() -> dict[str, str]:
    """What such a process is given."""
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PG", "QWF_"))
    }
    return kept | {"PYTHONPATH": str(SCRIPTS)}


def prepare(peer: str, dsn: str) -> None:
    """Make the peer's tables."""
    subprocess.run(command("prepare", peer, dsn), env=environment(), check=True)


def _python() -> Path:
    return PLACE / "bin" / "python"


def _procrastinate(dsn: str) -> tuple[Callable[[], None], Callable[[int], None]]:
    import procrastinate

    app: Any = procrastinate.App(
        connector=procrastinate.SyncPsycopgConnector(conninfo=dsn, min_size=1, max_size=1)
    )
    app.open()

    def noop(n: int) -> None:
        """Nothing."""

    task = app.task(noop, name="noop", queue="fetch")

    def produce(count: int) -> None:
        for number in range(count):
            task.defer(n=number)

    return app.schema_manager.apply_schema, produce


def _pgqueuer(dsn: str) -> tuple[Callable[[], None], Callable[[int], None]]:
    import psycopg
    from pgqueuer.adapters.persistence.qb import QueryBuilderEnvironment
    from pgqueuer.db import SyncPsycopgDriver
    from pgqueuer.queries import SyncQueries

    connection = psycopg.connect(dsn, autocommit=True)
    queries: Any = SyncQueries(SyncPsycopgDriver(connection))

    def apply() -> None:
        connection.execute(QueryBuilderEnvironment().build_install_query())

    def produce(count: int) -> None:
        for number in range(count):
            queries.enqueue("noop", json.dumps({"n": number}).encode())

    return apply, produce


_OPEN: Final = {"procrastinate": _procrastinate, "pgqueuer": _pgqueuer}


def _versions() -> dict[str, str]:
    found = {}
    for peer in PEERS:
        try:
            found[peer] = version(peer)
        except PackageNotFoundError:
            continue
    return found


def main(what: str, *arguments: str) -> None:
    """Say what is installed, make a peer's tables, or produce as one of its crew."""
    if what == "versions":
        print(json.dumps(_versions()))
        return
    peer, dsn = arguments
    apply, produce = _OPEN[peer](dsn)
    if what == "prepare":
        apply()
    else:
        produce(1)
        take_orders({"autocommit": produce})
