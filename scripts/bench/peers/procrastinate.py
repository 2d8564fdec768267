"""procrastinate, an asynchronous worker with async tasks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

import procrastinate

from bench.peers.kinds import Forms, Peer

_CONCURRENCY: Final = 100


def _app(connector: Any) -> tuple[Any, Any, list[Callable[[], None]]]:
    app: Any = procrastinate.App(connector=connector)
    bodies: list[Callable[[], None]] = []

    async def noop(**_given: int) -> None:
        for body in bodies:
            body()

    return app, app.task(noop, name="noop", queue="fetch"), bodies


def _sync(dsn: str) -> tuple[Any, Any]:
    connector = procrastinate.SyncPsycopgConnector(conninfo=dsn, min_size=1, max_size=1)
    app, task, _ = _app(connector)
    app.open()
    return app, task


def _prepare(dsn: str) -> None:
    _sync(dsn)[0].schema_manager.apply_schema()


def _produce(dsn: str) -> Forms:
    _, task = _sync(dsn)

    def single(count: int) -> None:
        for number in range(count):
            task.defer(n=number)

    def bulk(count: int) -> None:
        task.batch_defer(*({"n": number} for number in range(count)))

    return {"single": single, "bulk": bulk}


def _work(dsn: str, body: Callable[[], None]) -> None:
    async def serve() -> None:
        app, _, bodies = _app(procrastinate.PsycopgConnector(conninfo=dsn, max_size=20))
        bodies.append(body)
        async with app.open_async():
            await app.run_worker_async(queues=["fetch"], concurrency=_CONCURRENCY)

    asyncio.run(serve())


PEER: Final = Peer(
    prepare=_prepare,
    produce=_produce,
    work=_work,
    settings=f"async, concurrency {_CONCURRENCY}",
    tables=("procrastinate_jobs",),
    key="'id', n + 1000000",
    done="SELECT count(*) FROM procrastinate_jobs WHERE status = 'succeeded'",
    also=("procrastinate_events", "procrastinate_periodic_defers"),
)
