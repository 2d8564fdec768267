"""Durable functions of ten async steps, and the worker that runs them."""

from __future__ import annotations

import os
import sys
from typing import Any

import psycopg

from queue_workflows import NewIngestJob, enqueue_many, ingest_task
from queue_workflows.cli.main import main


@ingest_task("ten", queue="fetch", durable=True)
async def ten(_reason: str | None, *, ctx: Any) -> int:
    """Ten steps that do nothing."""

    async def step(number: int) -> int:
        return number

    return sum([await ctx.step(f"step {number}", step, number) for number in range(10)])


def _fill(dsn: str, count: int) -> None:
    with psycopg.connect(dsn) as connection:
        enqueue_many([NewIngestJob(task_name="ten", queue="fetch") for _ in range(count)], conn=connection)


if __name__ == "__main__":
    verb, dsn = sys.argv[1:3]
    os.environ |= {"QWF_DB_URL": dsn, "QWF_APP": "bench.steps.ours"}
    if verb == "fill":
        _fill(dsn, int(sys.argv[3]))
    elif verb == "work":
        sys.argv[1:] = ["worker", "--queue", "fetch", "--concurrency", "100"]
        main()
