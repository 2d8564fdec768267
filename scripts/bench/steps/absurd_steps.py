"""Absurd: tasks of ten async steps on a queue, and the worker that runs them."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from absurd_sdk import Absurd, AsyncAbsurd


async def _work(dsn: str) -> None:
    app = AsyncAbsurd(dsn, queue_name="fetch")

    @app.register_task(name="ten")
    async def ten(_params: Any, ctx: Any) -> int:
        total = 0
        for number in range(10):

            async def step(number: int = number) -> int:
                return number

            total += await ctx.step(f"step {number}", step)
        return total

    await app.start_worker(concurrency=100, poll_interval=0.1)


if __name__ == "__main__":
    verb, dsn = sys.argv[1:3]
    if verb == "prepare":
        command = [str(Path(sys.executable).parent / "absurdctl"), "init"]
        subprocess.run(command, check=True, env=os.environ | {"ABSURD_DATABASE_URL": dsn})
        Absurd(dsn).create_queue("fetch")
    elif verb == "fill":
        producer = Absurd(dsn, queue_name="fetch")
        for one in range(int(sys.argv[3])):
            producer.spawn("ten", {"n": one}, queue="fetch", max_attempts=3)
    else:
        asyncio.run(_work(dsn))
