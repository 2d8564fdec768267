"""The wiring of the workers that forecasts are about: jobs that take as long as they are told."""

from __future__ import annotations

import asyncio
from typing import Any

from queue_workflows import ingest_task


@ingest_task("quick", queue="fetch")
async def quick(_reason: str | None, args: dict[str, Any]) -> None:
    """Wait on the event loop, as for an answer from elsewhere."""
    await asyncio.sleep(args["s"])


@ingest_task("slow", queue="fetch")
async def slow(_reason: str | None, args: dict[str, Any]) -> None:
    """Wait likewise, under another name."""
    await asyncio.sleep(args["s"])
