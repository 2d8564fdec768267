"""The wiring of a host app whose tasks change what belongs to the process that runs them."""

from __future__ import annotations

import asyncio
import ctypes
import inspect
import json
import math
import os
import resource
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import psycopg

from queue_workflows import enqueue_ingest_job, ingest_task

_KEPT: list[int] = []
_FEW = 200
# As they were before any task.
_sleep, _dumps = time.sleep, json.dumps


def _refused(*_: Any, **__: Any) -> Any:
    raise ValueError("replaced by a job")


@ingest_task("good")
def good(reason: str | None) -> dict[str, Any]:
    return {"pid": os.getpid()}


@ingest_task("prints")
def prints(reason: str | None) -> dict[str, Any]:
    print("a word")
    sys.stderr.write("and another\n")
    return {"pid": os.getpid()}


@ingest_task("async good")
async def async_good(reason: str | None) -> dict[str, Any]:
    await asyncio.sleep(0)
    return {"pid": os.getpid()}


@ingest_task("waits")
def waits(reason: str | None, args: dict[str, Any]) -> dict[str, Any]:
    """Until a file appears; it takes no descriptor."""
    while not Path(args["until"]).exists():
        _sleep(0.01)
    return {"pid": os.getpid()}


@ingest_task("uses up descriptors")
def uses_up_descriptors(reason: str | None) -> None:
    """All that there are, and keeps them."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (_FEW, hard))
    while True:
        try:
            _KEPT.append(os.open(os.devnull, os.O_RDONLY))
        except OSError:
            return


@ingest_task("keeps descriptors")
def keeps_descriptors(reason: str | None, args: dict[str, Any], ctx: Any) -> None:
    """All but a few; in its first attempt until its process ends."""
    uses_up_descriptors(reason)
    if ctx.attempt == 1:
        for _ in range(args["but"]):
            os.close(_KEPT.pop())
        # Which takes no descriptor.
        os.mkdir(args["begun"])
        while True:
            _sleep(3600)


@ingest_task("allows no thread")
def allows_no_thread(reason: str | None) -> None:
    """Each one to come would have a stack that no memory holds."""
    threading.stack_size(1 << 47)


@ingest_task("traces threads")
def traces_threads(reason: str | None) -> None:
    """As a broken debugger does: none that starts from now on gets to its first line."""
    threading.settrace(_refused)


@ingest_task("ends other threads")
def ends_other_threads(reason: str | None) -> None:
    """Again and again for a second, so that it also meets what the process does about the first time."""
    here, raise_in = threading.get_ident(), ctypes.pythonapi.PyThreadState_SetAsyncExc
    until = time.monotonic() + 1
    while time.monotonic() < until:
        for thread in threading.enumerate():
            if thread.ident not in (here, None):
                raise_in(ctypes.c_ulong(thread.ident), ctypes.py_object(SystemExit))
        _sleep(0.001)


@ingest_task("ignores signals")
def ignores_signals(reason: str | None) -> dict[str, Any]:
    """In the main thread, where it may."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    signal.set_wakeup_fd(-1)
    return {"pid": os.getpid()}


@ingest_task("replaces")
def replaces(reason: str | None, args: dict[str, Any]) -> dict[str, Any]:
    """What everybody in the process uses: clocks, sleeping, JSON."""
    modules = {"time": time, "json": json}
    values = {
        "raises": _refused,
        "still": lambda *_: 0.0,
        "ahead": lambda *_: 1e12,
        "no number": lambda *_: math.nan,
    }
    for name in args["names"]:
        module, _, attribute = name.partition(".")
        setattr(modules[module], attribute, values[args["by"]])
    _sleep(args.get("s", 0))
    return {"pid": os.getpid()}


@ingest_task("closes its streams")
def closes_its_streams(reason: str | None) -> dict[str, Any]:
    sys.stdout.close()
    sys.stderr.close()
    return {"pid": os.getpid()}


@ingest_task("loses its directory")
def loses_its_directory(reason: str | None, args: dict[str, Any]) -> dict[str, Any]:
    place = Path(args["place"])
    place.mkdir()
    os.chdir(place)
    place.rmdir()
    return {"pid": os.getpid()}


@ingest_task("enqueues")
def enqueues(reason: str | None) -> dict[str, Any]:
    """By the settings of its worker."""
    with psycopg.connect(os.environ["QWF_DB_URL"]) as connection:
        made = enqueue_ingest_job("good", queue="fetch", conn=connection)
    return {"made": made.id, "pid": os.getpid()}


@ingest_task("overwrites its context")
def overwrites_its_context(reason: str | None, args: dict[str, Any], ctx: Any) -> dict[str, Any]:
    """With what the guardian of its worker cannot reckon with, for as long as it takes to look."""
    ctx.progress(0.1)
    for name in ("last_beat", "loading", "ready_at", "takes_s", "awaiting", "observed", "survives_outage"):
        try:
            setattr(ctx, name, "overwritten")
        except AttributeError:
            continue
    _sleep(args.get("s", 0))
    return {"pid": os.getpid()}


@ingest_task("cancels the others")
async def cancels_the_others(reason: str | None, args: dict[str, Any]) -> dict[str, Any]:
    """Every other task of the loop that they share, once a file says that they are there."""
    while not Path(args["after"]).exists():
        await asyncio.sleep(0.01)
    here = asyncio.current_task()
    for task in asyncio.all_tasks():
        if task is not here:
            task.cancel()
    return {"pid": os.getpid()}


@ingest_task("cancels one before it begins")
async def cancels_one_before_it_begins(reason: str | None) -> dict[str, Any]:
    """The first that comes: this one has a turn of the loop before any task has its first."""
    while True:
        await asyncio.sleep(0)
        for task in asyncio.all_tasks():
            if inspect.getcoroutinestate(task.get_coro()) == inspect.CORO_CREATED:
                task.cancel()
                return {"pid": os.getpid()}


@ingest_task("cancels itself")
async def cancels_itself(reason: str | None) -> None:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    await asyncio.sleep(0)


@ingest_task("async waits")
async def async_waits(reason: str | None, args: dict[str, Any], ctx: Any) -> dict[str, Any]:
    """The first attempt for ever."""
    Path(f"{args['begun']}-{ctx.id}").touch()
    if ctx.attempt == 1:
        await asyncio.create_task(asyncio.sleep(3600))
    return {"attempt": ctx.attempt}


@ingest_task("writes on")
def writes_on(reason: str | None, args: dict[str, Any], ctx: Any) -> dict[str, Any]:
    """The first attempt for ever, deaf to everything; each writes down when it runs."""
    with Path(args["ledger"]).open("a") as ledger:
        while True:
            ledger.write(f"{ctx.attempt}\n")
            ledger.flush()
            if ctx.attempt > 1:
                return {"attempt": ctx.attempt}
            _sleep(0.002)


@ingest_task("empties its environment")
def empties_its_environment(reason: str | None) -> dict[str, Any]:
    """Which an exec hands on, and where a worker reads its settings."""
    os.environ.clear()
    os.environ["QWF_DB_URL"] = "postgresql://nobody@127.0.0.1:1/x"
    return {"pid": os.getpid()}


@ingest_task("limits")
def limits(reason: str | None, args: dict[str, Any]) -> dict[str, Any]:
    """Resources of its process, which an exec hands on; `for_good` it cannot be undone."""
    for which, value in args["limits"].items():
        _, hard = resource.getrlimit(getattr(resource, which))
        resource.setrlimit(getattr(resource, which), (value, value if args.get("for_good") else hard))
    return {"pid": os.getpid()}
