"""A task that checks from inside whether its limit holds: by the kernel's locks, which a kill takes away."""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path
from typing import Any

from queue_workflows import ingest_task


@ingest_task("inside")
def inside(reason: str | None, args: dict[str, Any], ctx: Any) -> None:
    """Lock one of as many files as the key's cap; where all are locked, one is inside too many."""
    place = Path(args["place"])
    for number in range(args["cap"]):
        seat = os.open(place / f"{args['key']}.{number}", os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(seat, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(seat)
            continue
        try:
            time.sleep(args["s"])
            return
        finally:
            os.close(seat)
    (place / "too-many").write_text(f"{args['key']}: job {ctx.id}, attempt {ctx.attempt}")


@ingest_task("deaf inside")
def deaf_inside(reason: str | None, args: dict[str, Any]) -> None:
    """Say that it has begun, and be inside until the process is killed."""
    Path(args["begun"]).touch()
    while True:
        time.sleep(0.02)


@ingest_task("quick")
def quick(reason: str | None) -> None:
    """Nothing."""
