"""Tasks that go through windows and write down, in the order in which it happens, who is inside of what."""

from __future__ import annotations

import asyncio
import os
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from queue_workflows import ingest_task

FOR_LONG = 600.0


@ingest_task("window")
def window(reason: str | None, args: dict[str, Any], ctx: Any) -> dict[str, Any]:
    """Inside its keys' window for so long; or until it is killed."""
    with ctx.limit(*args["keys"], max=args.get("max"), max_wait_s=FOR_LONG):
        entered = time.time()
        note(args, "in")
        ctx.sleep(args["s"])
        note(args, "out")
    return {"pid": os.getpid(), "entered": entered}


@ingest_task("async window")
async def async_window(reason: str | None, args: dict[str, Any], ctx: Any) -> dict[str, Any]:
    """The same on an event loop."""
    async with ctx.limit(*args["keys"], max=args.get("max"), max_wait_s=FOR_LONG):
        entered = time.time()
        note(args, "in")
        await asyncio.sleep(args["s"])
        note(args, "out")
    return {"pid": os.getpid(), "entered": entered}


@ingest_task("rated")
def rated(reason: str | None, args: dict[str, Any], ctx: Any) -> dict[str, Any]:
    """Takes one token."""
    ctx.rate("unpaywall", per_s=args["per_s"], burst=args["burst"], max_wait_s=FOR_LONG)
    return {"pid": os.getpid(), "entered": time.time()}


def note(args: dict[str, Any], what: str) -> None:
    """One line, whole, behind all that were written before."""
    line = f"{what} {' '.join(args.get('keys', ()))}\n".encode()
    log = os.open(args["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(log, line)
    finally:
        os.close(log)


def notes(log: Path) -> list[list[str]]:
    """What was written so far."""
    return [line.split() for line in log.read_text().splitlines()] if log.exists() else []


def most_inside(written: Sequence[Sequence[str]]) -> dict[str, int]:
    """How many were inside of each key at once, at most."""
    inside: Counter[str] = Counter()
    most: Counter[str] = Counter()
    for what, *keys in written:
        for key in keys:
            inside[key] += 1 if what == "in" else -1
            most[key] = max(most[key], inside[key])
    return dict(most)
