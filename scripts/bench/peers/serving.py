"""What a peer's own process does for the bench, in the peers' environment."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final

import psycopg

from bench.peers.kinds import Peer
from bench.producing.orders import take_orders

# The peers, by the package that has their version.
PACKAGES: Final = {
    "pgqueuer": "pgqueuer",
    "procrastinate": "procrastinate",
    "chancy": "chancy",
    "dbos": "dbos",
    "oban": "oban",
    "absurd": "absurd-sdk",
}
# Bodies that are so far apart belong to two bursts of work.
_BURST_NS: Final = 500_000_000
# A row as the peer wrote it, so many times over.
COPY: Final = """
INSERT INTO {table}
SELECT made.* FROM (SELECT * FROM {table} LIMIT 1) AS one, generate_series(1, %s::bigint) AS n,
    LATERAL jsonb_populate_record(one::{table}, jsonb_build_object({key})) AS made
"""


def main(what: str, *arguments: str) -> None:
    """Say what is installed, or do one thing with one peer."""
    if what == "versions":
        print(json.dumps(_versions()))
        return
    peer: Peer = import_module(f"bench.peers.{arguments[0]}").PEER
    _WHAT[what](peer, *arguments[1:])


def _versions() -> dict[str, str]:
    found = {}
    for name, package in PACKAGES.items():
        try:
            found[name] = version(package)
        except PackageNotFoundError:
            continue
    return found


def _settings(peer: Peer) -> None:
    print(peer.settings)


def _facts(peer: Peer) -> None:
    """What the bench itself has to know: the queries and the tables."""
    print(json.dumps({name: value for name, value in vars(peer).items() if not callable(value)}))


def _prepare(peer: Peer, dsn: str) -> None:
    peer.prepare(dsn)


def _template(peer: Peer, dsn: str) -> None:
    """Keep a row of each table as the peer writes it, to copy it later beside workers that run."""
    peer.produce(dsn)["single"](1)
    with psycopg.connect(dsn, autocommit=True) as connection:
        for number, table in enumerate(peer.tables):
            connection.execute(f"CREATE TABLE bench_one_{number} AS SELECT * FROM {table} LIMIT 1".encode())
    os._exit(0)  # a pool's threads would keep the process


def _produce(peer: Peer, dsn: str) -> None:
    forms = peer.produce(dsn)
    forms["single"](1)
    take_orders(dict(forms))


def _fill(peer: Peer, dsn: str, jobs: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(f"TRUNCATE {', '.join((*peer.tables, *peer.also))} CASCADE")
        peer.produce(dsn)["single"](1)
        for table in peer.tables:
            copy: Any = COPY.replace("{table}", table).replace("{key}", peer.key)
            connection.execute(copy, [int(jobs) - 1])
        connection.execute(f"VACUUM (ANALYZE) {', '.join(peer.tables)}")
        connection.execute("CHECKPOINT")
    os._exit(0)  # a pool's threads would keep the process


def _drain(peer: Peer, dsn: str, jobs: str, longest_s: str) -> None:
    began: list[float] = []

    def body() -> None:
        if not began:
            began.append(time.monotonic())

    def watch() -> None:
        with psycopg.connect(dsn, autocommit=True) as connection:
            done: Any = peer.done
            while not began:
                time.sleep(0.01)
            while True:
                ((count,),) = connection.execute(done).fetchall()
                took = time.monotonic() - began[0]
                if count >= int(jobs) or took > float(longest_s):
                    print(count / took, flush=True)
                    os._exit(0)
                # Seldom enough to cost nothing, and soon enough after what is likely to be the end.
                time.sleep(max(0.01, min(0.5, took * (int(jobs) - count) / max(count, 1) / 2)))

    threading.Thread(target=watch, daemon=True).start()
    peer.work(dsn, body)


def _moments(peer: Peer, dsn: str) -> None:
    peer.work(dsn, lambda: print(time.monotonic_ns(), flush=True))


def _bursts(peer: Peer, dsn: str) -> None:
    """Work, and print when the first body of each burst began."""
    last = 0

    def body() -> None:
        nonlocal last
        now = time.monotonic_ns()
        if now - last > _BURST_NS:
            print(now, flush=True)
        last = now

    peer.work(dsn, body)


def _wait(peer: Peer, dsn: str, at_once: str, seconds: str) -> None:
    assert peer.wait is not None
    peer.wait(dsn, int(at_once), float(seconds))


_WHAT: Final[dict[str, Callable[..., None]]] = {
    "settings": _settings,
    "facts": _facts,
    "template": _template,
    "bursts": _bursts,
    "prepare": _prepare,
    "produce": _produce,
    "fill": _fill,
    "drain": _drain,
    "moments": _moments,
    "wait": _wait,
}
