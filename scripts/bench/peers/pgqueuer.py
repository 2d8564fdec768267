"""pgqueuer, on asyncpg with uvloop, as its own benchmark is run."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Final

import asyncpg
import psycopg
import uvloop
from pgqueuer import PgQueuer
from pgqueuer.adapters.persistence.qb import QueryBuilderEnvironment
from pgqueuer.db import AsyncpgDriver, SyncPsycopgDriver
from pgqueuer.queries import SyncQueries

from bench.peers.kinds import Forms, Peer

_BATCH: Final = 500


def _prepare(dsn: str) -> None:
    with psycopg.connect(dsn) as connection:
        connection.execute(QueryBuilderEnvironment().build_install_query())


def _produce(dsn: str) -> Forms:
    queries: Any = SyncQueries(SyncPsycopgDriver(psycopg.connect(dsn, autocommit=True)))

    def single(count: int) -> None:
        for number in range(count):
            queries.enqueue("noop", json.dumps({"n": number}).encode())

    def bulk(count: int) -> None:
        payloads = [json.dumps({"n": number}).encode() for number in range(count)]
        queries.enqueue(["noop"] * count, payloads, [0] * count)

    return {"single": single, "bulk": bulk}


def _work(dsn: str, body: Callable[[], None]) -> None:
    async def noop(_job: Any) -> None:
        body()

    async def serve() -> None:
        queuer: Any = PgQueuer(AsyncpgDriver(await asyncpg.connect(dsn)))
        queuer.entrypoint("noop")(noop)
        await queuer.run(batch_size=_BATCH, dequeue_timeout=timedelta(seconds=30))

    uvloop.run(serve())


def _wait(dsn: str, at_once: int, seconds: float) -> None:
    async def noop(_job: Any) -> None:
        await asyncio.sleep(seconds)

    async def serve() -> None:
        queuer: Any = PgQueuer(AsyncpgDriver(await asyncpg.connect(dsn)))
        queuer.entrypoint("noop")(noop)
        # The largest batch that it allows with so many.
        await queuer.run(batch_size=at_once // 2, max_concurrent_tasks=at_once)

    uvloop.run(serve())


PEER: Final = Peer(
    prepare=_prepare,
    produce=_produce,
    work=_work,
    settings=f"asyncpg, uvloop, batches of {_BATCH}",
    tables=("pgqueuer",),
    key="'id', n + 1000000",
    done="SELECT count(*) FROM pgqueuer_log WHERE status = 'successful'",
    also=("pgqueuer_log",),
    wait=_wait,
)
