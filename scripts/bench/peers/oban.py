"""oban-py, on uvloop where it is there, as its own command line runs it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final

import psycopg
import uvloop
from oban import Oban, job
from oban.schema import install_sql

from bench.peers.kinds import Forms, Peer

_LIMIT: Final = 200
_bodies: list[Callable[[], None]] = []


@job(queue="fetch")
async def noop(_number: int) -> None:
    """Found by its name, which is on the row."""
    for body in _bodies:
        body()


def _prepare(dsn: str) -> None:
    with psycopg.connect(dsn) as connection:
        connection.execute(install_sql().encode())


def _produce(dsn: str) -> Forms:
    loop = uvloop.new_event_loop()
    asyncio.set_event_loop(loop)

    def run(work: Coroutine[Any, Any, Any]) -> Any:
        return loop.run_until_complete(work)

    # A client: without queues it runs nothing.
    oban = Oban(pool=run(Oban.create_pool(dsn, min_size=1, max_size=1)))

    def single(count: int) -> None:
        async def enqueue() -> None:
            for number in range(count):
                await oban.enqueue(noop.new(number))

        run(enqueue())

    def bulk(count: int) -> None:
        run(oban.enqueue_many(noop.new(number) for number in range(count)))

    return {"single": single, "bulk": bulk}


def _work(dsn: str, body: Callable[[], None]) -> None:
    _bodies.append(body)

    async def serve() -> None:
        pool = await Oban.create_pool(dsn)
        async with Oban(pool=pool, queues={"fetch": _LIMIT}):
            await asyncio.Event().wait()

    uvloop.run(serve())


PEER: Final = Peer(
    prepare=_prepare,
    produce=_produce,
    work=_work,
    settings=f"uvloop, limit {_LIMIT}",
    tables=("oban_jobs",),
    # The identity is the table's own.
    key="'id', n + 1000000",
    done="SELECT count(*) FROM oban_jobs WHERE state = 'completed'",
)
