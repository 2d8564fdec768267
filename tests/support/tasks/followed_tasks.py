"""Jobs whose worker notes which of the engine's files run between the start of one job and that of a later one.

So much is one job's whole way at least: its function, its end, the claim of the next, and what leads to that.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any

import queue_workflows as qwf

ROOT = f"{Path(qwf.__file__).parent}{os.sep}"
FIRST, LAST = (int(each) for each in os.environ.get("FOLLOW", "4 8").split())
# The guardian goes its own way beside the jobs, and so do the threads that listen and time.
OF_A_JOB = ("MainThread", "qwf-job-")
seen: dict[str, None] = {}
begun = 0


def note(frame: FrameType, event: str, _arg: Any) -> None:
    """Keep the file of a function that is called, in the order of the first calls."""
    path = frame.f_code.co_filename
    if event == "call" and FIRST <= begun and path.startswith(ROOT):
        # A module's own body runs once, whenever it is imported.
        if threading.current_thread().name.startswith(OF_A_JOB) and frame.f_code.co_name != "<module>":
            seen[path.removeprefix(ROOT)] = None


def step() -> None:
    """One job more has begun."""
    global begun
    begun += 1
    if begun == FIRST:
        seen.clear()
    if begun == LAST:
        Path(os.environ["FOLLOWED"]).write_text(json.dumps(list(seen)))


threading.setprofile(note)
sys.setprofile(note)


@qwf.ingest_task("follow", queue="fetch")
def follow(reason: str | None, args: dict[str, Any]) -> dict[str, int]:
    """An ordinary job."""
    step()
    return {"done": 1}


def node(inputs: dict[str, Any]) -> dict[str, int]:
    """An ordinary node."""
    step()
    return {"done": 1}


qwf.set_node_resolver({"node": node}.get)
