"""Absurd, with its asynchronous worker; a task of one step, and one of none."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

import psycopg
from absurd_sdk import Absurd, AsyncAbsurd
from absurdctl import BUNDLED_SCHEMA_SQL

from bench.peers.kinds import Forms, Peer

_CONCURRENCY: Final = 100
_POLL_S: Final = 0.1


def _prepare(dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(BUNDLED_SCHEMA_SQL.encode())
    Absurd(dsn, queue_name="fetch").create_queue()


def _produce(dsn: str) -> Forms:
    app: Any = Absurd(dsn, queue_name="fetch")

    def spawn(task: str) -> Callable[[int], None]:
        def enqueue(count: int) -> None:
            for number in range(count):
                app.spawn(task, {"n": number}, queue="fetch")

        return enqueue

    return {"single": spawn("noop"), "step": spawn("step")}


def _work(dsn: str, body: Callable[[], None]) -> None:
    async def once() -> int:
        body()
        return 1

    async def serve() -> None:
        app: Any = AsyncAbsurd(dsn, queue_name="fetch")

        @app.register_task("noop")
        async def noop(_given: Any, _ctx: Any) -> None:
            body()

        @app.register_task("step")
        async def step(_given: Any, ctx: Any) -> int:
            done: int = await ctx.step("once", once)
            return done

        await app.start_worker(concurrency=_CONCURRENCY, poll_interval=_POLL_S)

    asyncio.run(serve())


PEER: Final = Peer(
    prepare=_prepare,
    produce=_produce,
    work=_work,
    settings=f"async, concurrency {_CONCURRENCY}, polls every {_POLL_S} s",
    tables=("absurd.t_fetch", "absurd.r_fetch", "absurd.c_fetch"),
    key="",
    fill="SELECT count(*) FROM generate_series(1, %s::bigint) AS n, "
    """LATERAL absurd.spawn_task('fetch', 'noop', jsonb_build_object('n', n), '{}'::jsonb)""",
    done="SELECT count(*) FROM absurd.t_fetch WHERE state = 'completed'",
)
