"""Tasks that check from inside whether their limits hold: by the kernel's locks, which a kill takes away."""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path
from typing import Any

from queue_workflows import ingest_task

FOR_LONG = 600.0


@ingest_task("inside")
def inside(reason: str | None, args: dict[str, Any], ctx: Any) -> None:
    """Under the key that the job was claimed with."""
    take_a_seat(args, ctx)


@ingest_task("inside window")
def inside_window(reason: str | None, args: dict[str, Any], ctx: Any) -> None:
    """Under a key of which it waits for a slot itself."""
    with ctx.limit(args["key"], max=args["cap"], max_wait_s=FOR_LONG):
        take_a_seat(args, ctx)


@ingest_task("rated")
def rated(reason: str | None, args: dict[str, Any], ctx: Any) -> None:
    """Note when it had its token, a line that is whole."""
    ctx.rate(args["key"], per_s=args["per_s"], burst=args["burst"], max_wait_s=FOR_LONG)
    log = os.open(Path(args["place"]) / "rated", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(log, f"{time.time()}\n".encode())
    finally:
        os.close(log)


def take_a_seat(args: dict[str, Any], ctx: Any) -> None:
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


@ingest_task("inside host lock")
def inside_host_lock(reason: str | None, args: dict[str, Any], ctx: Any) -> None:
    """Say that it has a lock of its machine, and keep it until it is let go; or leave it held even then."""
    lock, place = ctx.host_lock(args["lock"], max_wait_s=FOR_LONG), Path(args["place"])
    lock.__enter__()
    (place / "inside").touch()
    while not (place / "let-go").exists():
        ctx.sleep(0.02)
    if not args["leaves"]:
        lock.__exit__(None, None, None)


@ingest_task("quick")
def quick(reason: str | None) -> None:
    """Nothing."""
