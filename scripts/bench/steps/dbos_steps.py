"""DBOS: workflows of ten async steps on a queue, and the worker that runs them."""

from __future__ import annotations

import sys
import threading
from typing import Any

from dbos import DBOS, DBOSClient


def _launch(dsn: str) -> None:
    DBOS(config={"name": "bench", "system_database_url": dsn, "log_level": "ERROR"})

    @DBOS.step()
    async def step(number: int) -> int:
        return number

    @DBOS.workflow(name="ten")
    async def ten(_number: int) -> int:
        return sum([await step(number) for number in range(10)])

    DBOS.launch()
    DBOS.register_queue("fetch", worker_concurrency=100, polling_interval_sec=0.1)


if __name__ == "__main__":
    verb, dsn = sys.argv[1:3]
    if verb == "prepare":
        _launch(dsn)
        DBOS.destroy()
    elif verb == "fill":
        client: Any = DBOSClient(system_database_url=dsn)
        for one in range(int(sys.argv[3])):
            client.enqueue({"queue_name": "fetch", "workflow_name": "ten"}, one)
    else:
        _launch(dsn)
        threading.Event().wait()
