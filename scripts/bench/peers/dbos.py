"""dbos, with workflows on a queue: of one step, and of none."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Final

from dbos import DBOS, DBOSClient

from bench.peers.kinds import Forms, Peer

_CONCURRENCY: Final = 100
_POLL_S: Final = 0.1
_bodies: list[Callable[[], None]] = []


def _launch(dsn: str) -> None:
    DBOS(config={"name": "bench", "system_database_url": dsn, "log_level": "ERROR"})

    @DBOS.workflow(name="noop")
    def noop(_number: int) -> None:
        for body in _bodies:
            body()

    @DBOS.step()
    def once() -> int:
        for body in _bodies:
            body()
        return 1

    @DBOS.workflow(name="step")
    def step(_number: int) -> int:
        done: int = once()
        return done

    DBOS.launch()
    DBOS.register_queue("fetch", worker_concurrency=_CONCURRENCY, polling_interval_sec=_POLL_S)


def _prepare(dsn: str) -> None:
    _launch(dsn)
    DBOS.destroy()


def _produce(dsn: str) -> Forms:
    client: Any = DBOSClient(system_database_url=dsn)

    def spawn(workflow: str) -> Callable[[int], None]:
        def enqueue(count: int) -> None:
            for number in range(count):
                client.enqueue({"queue_name": "fetch", "workflow_name": workflow}, number)

        return enqueue

    return {"single": spawn("noop"), "step": spawn("step")}


def _work(dsn: str, body: Callable[[], None]) -> None:
    _bodies.append(body)
    _launch(dsn)
    threading.Event().wait()


PEER: Final = Peer(
    prepare=_prepare,
    produce=_produce,
    work=_work,
    settings=f"worker concurrency {_CONCURRENCY}, polls every {_POLL_S} s",
    tables=("dbos.workflow_status", "dbos.workflow_input"),
    key="'workflow_uuid', 'w' || n",
    done="SELECT count(*) FROM dbos.workflow_status WHERE status = 'SUCCESS'",
)
