"""The wiring of a host app whose tasks behave in every way that a worker has to cope with."""

from __future__ import annotations

import asyncio
import ctypes
import os
import threading
import time
from pathlib import Path
from typing import Any

from support.stages.ledger import Ledger

from queue_workflows import (
    RetryAfter,
    aenqueue_ingest_job,
    enqueue_ingest_job,
    ingest_task,
    set_node_module_package,
)

set_node_module_package("support.node_modules")


@ingest_task("note")
def note(reason: str | None) -> dict[str, Any]:
    return {"reason": reason, "pid": os.getpid()}


@ingest_task("say")
def say(reason: str | None, args: dict[str, Any]) -> None:
    print(args["words"])


@ingest_task("enqueues and fails")
def enqueues_and_fails(reason: str | None) -> None:
    """Has no connection at hand, and an end that undoes what is its own."""
    enqueue_ingest_job("note", queue="fetch", reason="sync")
    raise ValueError("after that")


@ingest_task("enqueues and fails, async")
async def enqueues_and_fails_async(reason: str | None) -> None:
    """As above, awaited."""
    await aenqueue_ingest_job("note", queue="fetch", reason="async")
    raise ValueError("after that")


@ingest_task("clock")
def clock(reason: str | None) -> float:
    return time.time()


@ingest_task("wait")
def wait(reason: str | None, args: dict[str, Any], ctx: Any) -> dict[str, Any]:
    """Polite: stops as soon as it is told to."""
    ctx.progress(0.5, "waiting")
    ctx.sleep(args["s"])
    return {"waited": args["s"]}


@ingest_task("deaf")
def deaf(reason: str | None, args: dict[str, Any], ctx: Any) -> None:
    """Hears nothing, but lets other threads run; says that it has begun, ends when a file appears."""
    if "begun" in args:
        Path(args["begun"]).write_text(str(ctx.attempt))
    until = Path(args["until"]) if "until" in args else None
    while until is None or not until.exists():
        time.sleep(0.02)


@ingest_task("recorded")
def recorded(reason: str | None, args: dict[str, Any], ctx: Any) -> dict[str, Any]:
    """Writes down outside the database that it began; may get stuck the first time, or wait at its gate."""
    ledger = Ledger(Path(args["ledger"]))
    ledger.record(ctx.id, ctx.attempt)
    if args["stuck"] and ctx.attempt == 1:
        ledger.get_stuck()
    elif args["gated"]:
        ledger.wait_at_the_gate(ctx.id, ctx.attempt)
    return {"attempt": ctx.attempt, "pid": os.getpid()}


@ingest_task("enduring", survives_outage=True)
def enduring(reason: str | None, args: dict[str, Any], ctx: Any) -> dict[str, Any]:
    """The same for one that may go on without its lease."""
    return recorded(reason, args, ctx)


@ingest_task("enduring_hog", survives_outage=True)
def enduring_hog(reason: str | None, args: dict[str, Any], ctx: Any) -> None:
    """Writes down that it began, and holds the GIL for good once its gate is open."""
    recorded(reason, args, ctx)
    hog(reason, {"s": 600})


@ingest_task("silent")
def silent(reason: str | None, args: dict[str, Any], ctx: Any) -> None:
    """Says one thing and then nothing for ever."""
    ctx.progress(0.1)
    while True:
        time.sleep(0.05)


@ingest_task("hog")
def hog(reason: str | None, args: dict[str, Any]) -> None:
    """C code that never lets go of the GIL."""
    ctypes.PyDLL(None).sleep(int(args["s"]))


@ingest_task("suicide")
def suicide(reason: str | None) -> None:
    os.kill(os.getpid(), 9)


@ingest_task("parent")
def parent(reason: str | None, args: dict[str, Any], ctx: Any) -> None:
    """Starts a process that hears nothing, says so once, and waits for it."""
    import subprocess

    child = subprocess.Popen(["sleep", "1000"])
    Path(args["pid_file"]).write_text(str(child.pid))
    ctx.progress(0.1)
    child.wait()


@ingest_task("daemon")
def daemon(reason: str | None, args: dict[str, Any]) -> None:
    """Starts a process that is nobody's child, in a session of its own, and hears nothing."""
    import subprocess

    text = f"(setsid sh -c 'echo $$ > {args['pid_file']}.new; exec sleep 1000' &)"
    subprocess.run(["sh", "-c", text], check=True)
    while not Path(args["pid_file"] + ".new").exists():
        time.sleep(0.01)
    Path(args["pid_file"] + ".new").rename(args["pid_file"])
    time.sleep(1000)


@ingest_task("later")
def later(reason: str | None) -> None:
    raise RetryAfter(3600, reason or "")


@ingest_task("talks")
def talks(reason: str | None, args: dict[str, Any], ctx: Any) -> dict[str, Any]:
    """Has last words of so many characters."""
    ctx.progress(message="x" * args["size"])
    return {"said": args["size"]}


@ingest_task("fails")
def fails(reason: str | None) -> None:
    raise ValueError(f"no use: {reason}")


@ingest_task("forks")
def forks(reason: str | None) -> dict[str, Any]:
    """Ends a forked child of its own the way multiprocessing does."""
    import multiprocessing

    child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(600,))
    child.start()
    child.terminate()
    child.join()
    return {"exitcode": child.exitcode}


_KEPT: list[bytes] = []


@ingest_task("keep")
def keep(reason: str | None, args: dict[str, Any]) -> dict[str, Any]:
    """Leaves memory behind, and counts what it left in this process."""
    _KEPT.append(b"x" * (int(args.get("mb", 0)) << 20))
    told = [name for name in os.environ if name.startswith("_QWF_") and name != "_QWF_TREE"]
    return {"kept": len(_KEPT), "pid": os.getpid(), "told": told}


@ingest_task("leaves a thread")
def leaves_a_thread(reason: str | None) -> None:
    """Ends, and leaves behind what never will."""
    threading.Thread(target=threading.Event().wait, name="left").start()


@ingest_task("leaves a thread of its loop")
async def leaves_a_thread_of_its_loop(reason: str | None) -> None:
    asyncio.get_running_loop().run_in_executor(None, threading.Event().wait)


@ingest_task("recorded once", at_most_once=True)
def recorded_once(reason: str | None, args: dict[str, Any], ctx: Any) -> dict[str, Any]:
    """The same, of a task that says of itself that it begins at most once."""
    return recorded(reason, args, ctx)


@ingest_task("frail", max_crashes=1)
def frail(reason: str | None) -> None:
    """Kills its worker, which nobody should see twice."""
    os.kill(os.getpid(), 9)


@ingest_task("later once", at_most_once=True)
def later_once(reason: str | None, args: dict[str, Any], ctx: Any) -> None:
    """Writes down that it began, and asks to be run again."""
    Ledger(Path(args["ledger"])).record(ctx.id, ctx.attempt)
    raise RetryAfter(0, "busy")
