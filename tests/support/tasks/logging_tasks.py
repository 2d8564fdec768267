"""The wiring of a host app that logs from its jobs: in a thread, a task, a child thread, threads of pools."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from queue_workflows import JobContext, RetryAfter, ingest_task, set_node_module_package

log = logging.getLogger("shop.pages")
# One thread, which every job uses.
shared = ThreadPoolExecutor(1)
set_node_module_package("support.node_modules")

# How the app sets up logging by itself, if it does.
if os.environ.get("SHOP_LOG") == "root":
    logging.basicConfig(format="SHOP %(levelname)s %(name)s %(message)s", level=logging.WARNING)
elif os.environ.get("SHOP_LOG") == "own":
    own = logging.StreamHandler()
    own.setFormatter(logging.Formatter("OWN %(message)s"))
    log.addHandler(own)


@ingest_task("sync")
def sync(reason: str | None) -> None:
    log.info("in the function")
    child = threading.Thread(target=lambda: log.info("in a child thread"))
    child.start()
    child.join()


@ingest_task("pooled")
def pooled(reason: str | None, args: dict[str, Any], *, ctx: JobContext) -> None:
    with ThreadPoolExecutor(2) as own:
        list(own.map(log.info, [f"{ctx.id} in its own pool"] * 3))
    shared.submit(log.info, f"{ctx.id} in the pool of all").result()


@ingest_task("poolcoro")
async def poolcoro(reason: str | None, args: dict[str, Any], *, ctx: JobContext) -> None:
    await asyncio.get_running_loop().run_in_executor(shared, log.info, f"{ctx.id} in the pool of all")


@ingest_task("coro")
async def coro(reason: str | None) -> None:
    log.info("in the coroutine")
    await asyncio.to_thread(log.info, "in to_thread")


@ingest_task("bad")
def bad(reason: str | None) -> None:
    raise ValueError("no such page, with password=hunter2")


@ingest_task("later")
def later(reason: str | None) -> None:
    raise RetryAfter(3600, "busy")


@ingest_task("noop")
def noop(reason: str | None, args: dict[str, Any]) -> None:
    """Nothing to say."""
