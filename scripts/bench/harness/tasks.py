"""The wiring of the workers that are measured."""

from __future__ import annotations

import asyncio
import os
import time
from typing import Any

from queue_workflows import ingest_task, set_node_module_package

set_node_module_package("bench.harness.nodes")


@ingest_task("noop", queue="fetch")
def noop(_reason: str | None) -> None:
    """Nothing: what is left is the engine."""


@ingest_task("hold", queue="fetch")
def hold(_reason: str | None, ctx: Any) -> None:
    """Keep a worker busy until it is told to stop."""
    ctx.sleep(86_400)


@ingest_task("asleep", queue="fetch")
async def asleep(_reason: str | None, args: dict[str, Any]) -> None:
    """Wait on the event loop, as for an answer from elsewhere."""
    await asyncio.sleep(args["s"])


@ingest_task("clock", queue="fetch")
def clock(_reason: str | None) -> int:
    """When the body began, on the clock that all processes of a machine share."""
    return time.monotonic_ns()


@ingest_task("written", queue="fetch")
def written(_reason: str | None, args: dict[str, Any], ctx: Any) -> None:
    """Write down outside the database, for good, that this attempt ran; then take a moment."""
    ledger = os.open(args["ledger"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(ledger, f"{ctx.id} {ctx.attempt}\n".encode())
        os.fsync(ledger)
    finally:
        os.close(ledger)
    ctx.sleep(args["s"])
