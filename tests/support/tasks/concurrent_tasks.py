"""The wiring of a host app whose tasks are run several at once."""

from __future__ import annotations

import asyncio
import ctypes
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

from support.tasks import worker_tasks  # noqa: F401 - its tasks are run here too

from queue_workflows import ingest_task


@ingest_task("noop")
def noop(reason: str | None) -> None:
    """As short as a job can be."""


@ingest_task("async noop")
async def async_noop(reason: str | None) -> None:
    """The same on the loop."""


def _line(args: dict[str, Any], what: str, job: int) -> None:
    # One write of a few bytes at the end of a file is one line, whoever else writes.
    with Path(args["ledger"]).open("a") as ledger:
        ledger.write(f"{what} {job}\n")


@ingest_task("counted")
def counted(reason: str | None, args: dict[str, Any], ctx: Any) -> None:
    """Writes down when it is inside, and stays there for a moment, or until a file appears."""
    _line(args, "in", ctx.id)
    if "until" in args:
        while not Path(args["until"]).exists():
            time.sleep(0.01)
    else:
        time.sleep(args.get("s", 0.01))
    _line(args, "out", ctx.id)


@ingest_task("async counted")
async def async_counted(reason: str | None, args: dict[str, Any], ctx: Any) -> None:
    """The same on the loop."""
    _line(args, "in", ctx.id)
    if "until" in args:
        while not Path(args["until"]).exists():
            await asyncio.sleep(0.01)
    else:
        await asyncio.sleep(args.get("s", 0.01))
    _line(args, "out", ctx.id)


@ingest_task("async patient")
async def async_patient(reason: str | None, args: dict[str, Any]) -> None:
    """Waits for ever, and ends when it is cancelled."""
    Path(args["begun"]).touch()
    await asyncio.Event().wait()


@ingest_task("async stubborn")
async def async_stubborn(reason: str | None, args: dict[str, Any]) -> None:
    """Will not be cancelled."""
    Path(args["begun"]).touch()
    while True:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            continue


@ingest_task("blocks the loop")
async def blocks_the_loop(reason: str | None, args: dict[str, Any]) -> None:
    """A slip of its author: everybody on the loop stands still."""
    Path(args["begun"]).touch()
    while True:
        time.sleep(0.02)


@ingest_task("leaves")
def leaves(reason: str | None) -> None:
    """What would end a script."""
    sys.exit(3)


@ingest_task("interrupts")
async def interrupts(reason: str | None) -> None:
    """In a task of its own."""

    async def inner() -> None:
        raise KeyboardInterrupt

    await asyncio.create_task(inner())


_all_here = threading.Barrier(2)


@ingest_task("interrupted late")
def interrupted_late(reason: str | None, args: dict[str, Any]) -> None:
    """What limits its time raises an exception in its thread when that waits for its next job.

    Two of them run at a time, so that each has a thread of its own.
    """
    here, raise_in = threading.get_ident(), ctypes.pythonapi.PyThreadState_SetAsyncExc

    def interrupt() -> None:
        while _is_at_a_job(here):
            time.sleep(0.001)
        raise_in(ctypes.c_ulong(here), ctypes.py_object(SystemExit))
        with Path(args["ledger"]).open("a") as ledger:
            ledger.write("raised\n")

    _all_here.wait(150)
    threading.Thread(target=interrupt, daemon=True).start()


def _is_at_a_job(thread: int) -> bool:
    frame = sys._current_frames().get(thread)
    while frame is not None:
        if frame.f_globals["__name__"] in (__name__, "queue_workflows.engine.execution.executor"):
            return True
        frame = frame.f_back
    return False


@ingest_task("holds signals back")
def holds_signals_back(reason: str | None) -> None:
    """In its thread, and for good."""
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])


@ingest_task("bad result")
def bad_result(reason: str | None) -> dict[str, Any]:
    """JSON that the server will not have as jsonb, though it is JSON."""
    return {"n": 10**300_000 if reason == "huge" else 1}


@ingest_task("async many")
async def async_many(reason: str | None, args: dict[str, Any], ctx: Any) -> dict[str, Any]:
    """Writes down that it is inside; its first attempt waits until a file appears, or for ever, politely."""
    _line(args, "in", ctx.id)
    while ctx.attempt == 1 and not Path(args["until"]).exists():
        await asyncio.sleep(0.25)
    _line(args, "out", ctx.id)
    return {"attempt": ctx.attempt}


@ingest_task("async deaf")
async def async_deaf(reason: str | None, args: dict[str, Any], ctx: Any) -> None:
    """Writes down that it is inside, and will not be cancelled."""
    _line(args, "in", ctx.id)
    while True:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            continue


@ingest_task("async once", at_most_once=True)
async def async_once(reason: str | None, args: dict[str, Any], ctx: Any) -> None:
    """Begins only when that is in the row."""
    _line(args, "in", ctx.id)


@ingest_task("async progress")
async def async_progress(reason: str | None, args: dict[str, Any], ctx: Any) -> None:
    """Says how far it is, and waits until a file appears."""
    _line(args, "in", ctx.id)
    while not Path(args["until"]).exists():
        ctx.progress(0.5, number=10**300 if args.get("huge") else 1)
        await asyncio.sleep(0.25)


@ingest_task("async leaves")
async def async_leaves(reason: str | None, args: dict[str, Any]) -> None:
    """Ends the turn of its loop, in each way that there is, from a task of its own."""

    async def inner() -> None:
        asyncio.get_running_loop().stop()
        raise SystemExit(3)

    await asyncio.create_task(inner())
