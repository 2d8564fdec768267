"""chancy, with its asyncio executor."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Final

from chancy import Chancy, Job, Queue, Worker

from bench.peers.kinds import Forms, Peer

_CONCURRENCY: Final = 200
# Its default logger writes three lines of text for each job.
_QUIET: Final = logging.getLogger("chancy-bench")
_bodies: list[Callable[[], None]] = []


async def noop(**_given: int) -> None:
    """Found by its name, which is on the row."""
    for body in _bodies:
        body()


def _job(number: int) -> Any:
    return Job.from_func(noop, queue="fetch", kwargs={"n": number})


def _prepare(dsn: str) -> None:
    async def migrate() -> None:
        async with Chancy(dsn, log=_QUIET) as chancy:
            await chancy.migrate()
            await chancy.declare(
                Queue(
                    name="fetch",
                    concurrency=_CONCURRENCY,
                    executor=Chancy.Executor.Async,
                    eager_polling=True,
                    polling_interval=1,
                )
            )

    asyncio.run(migrate())


def _produce(dsn: str) -> Forms:
    chancy = Chancy(dsn, log=_QUIET, max_connection_pool_size=1)

    def single(count: int) -> None:
        for number in range(count):
            chancy.sync_push(_job(number))

    def bulk(count: int) -> None:
        for _ in chancy.sync_push_many([_job(number) for number in range(count)]):
            pass

    return {"single": single, "bulk": bulk}


def _work(dsn: str, body: Callable[[], None]) -> None:
    _bodies.append(body)

    async def serve() -> None:
        async with Chancy(dsn, log=_QUIET) as chancy, Worker(chancy) as worker:
            await worker.wait_for_shutdown()

    asyncio.run(serve())


PEER: Final = Peer(
    prepare=_prepare,
    produce=_produce,
    work=_work,
    settings=f"async executor, concurrency {_CONCURRENCY}, eager polling",
    tables=("chancy_jobs",),
    key="'id', lpad(to_hex(n), 32, '0')",
    done="SELECT count(*) FROM chancy_jobs WHERE state = 'succeeded'",
)
