"""The wiring of a host app whose tasks end, deafen or starve the process that runs them."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

from queue_workflows import ingest_task

# Above what a process has open, and below what it takes long to walk through.
_MANY = 65_536


class _Unshowable(RuntimeError):
    def __str__(self) -> str:
        raise SystemExit(0)

    __repr__ = __str__


@ingest_task("good")
def good(reason: str | None) -> dict[str, Any]:
    return {"pid": os.getpid()}


@ingest_task("exits")
def exits(reason: str | None, args: dict[str, Any]) -> None:
    """As no code of the engine does: at once, or as a C library that gives up."""
    status = int(args["status"])
    if args.get("in_c"):
        ctypes.CDLL(None).exit(status)
    os._exit(status)


@ingest_task("is killed")
def is_killed(reason: str | None, args: dict[str, Any]) -> None:
    """By a signal that does what it does in a process without handlers."""
    number = int(args["signal"])
    ctypes.CDLL(None).signal(number, ctypes.c_void_p(None))
    os.kill(os.getpid(), number)
    time.sleep(1)  # in one of several threads the signal may be taken by another


@ingest_task("stops its worker")
def stops_its_worker(reason: str | None, args: dict[str, Any]) -> None:
    """As a supervisor or an operator asks it to stop, itself or through a child; then it does not end."""
    if args.get("by_a_child"):
        subprocess.run(["/bin/sh", "-c", "kill -TERM $PPID"], check=True)
    else:
        os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(3600)


@ingest_task("sleeps on")
def sleeps_on(reason: str | None, args: dict[str, Any]) -> None:
    """Through the grace of any stop."""
    Path(args["begun"]).touch()
    while not Path(args["until"]).exists():
        time.sleep(0.01)


@ingest_task("cannot be shown")
def cannot_be_shown(reason: str | None, ctx: Any) -> None:
    """Fails outside of its function, with what ends a thread as soon as somebody looks at it."""

    def close() -> None:
        raise _Unshowable

    ctx.close = close


@ingest_task("becomes another")
def becomes_another(reason: str | None) -> None:
    os.execv("/bin/true", ["true"])


@ingest_task("closes descriptors")
def closes_descriptors(reason: str | None, args: dict[str, Any]) -> None:
    """All that are not its own, or its streams too, and opens others in their places."""
    os.closerange(args.get("first", 3), _MANY)
    for name in args.get("opens", ()):
        os.open(Path(name), os.O_RDWR | os.O_CREAT)


@ingest_task("fills memory")
def fills_memory(reason: str | None) -> None:
    """Until there is none; each page is written to, so that it counts."""
    kept = []
    while True:
        kept.append(bytearray(os.urandom(1 << 16)) * 16)
