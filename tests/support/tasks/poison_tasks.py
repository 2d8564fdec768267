"""The wiring of a host app some of whose tasks end the process that they run in, each in its way."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

from queue_workflows import ingest_task

HOW = ("kill", "segv", "abort", "exit")


@ingest_task("doze")
def doze(reason: str | None, args: dict[str, Any]) -> None:
    """A good job, which takes a moment."""
    time.sleep(args["s"])


@ingest_task("poison")
def poison(reason: str | None, args: dict[str, Any]) -> None:
    """Ends the process at once, as a fault in a C library or the kernel's want of memory does."""
    how = args["how"]
    if how == "exit":
        os._exit(3)
    number = {"kill": signal.SIGKILL, "segv": signal.SIGSEGV, "abort": signal.SIGABRT}[how]
    os.kill(os.getpid(), number)
    time.sleep(60)
