"""Jobs whose worker notes which of the engine's files run from the start of one job to that of a later one.

So much is one job's whole way at least: its function, its end, the claim of the next, and what leads to that.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any, Final

import queue_workflows as qwf

ROOT: Final = f"{Path(qwf.__file__).parent}{os.sep}"
# The guardian goes its own way beside the jobs, and so do the threads that listen and time.
OF_A_JOB: Final = ("MainThread", "qwf-job-")


class Follower:
    """Notes files while jobs `first` to `last` begin, and then writes them down."""

    def __init__(self, first: int, last: int) -> None:
        self._first, self._last = first, last
        self._begun = 0
        self._seen: dict[str, None] = {}

    def job_begins(self) -> dict[str, Any]:
        """Count a job; its result."""
        self._begun += 1
        if self._begun == self._last:
            Path(os.environ["FOLLOWED"]).write_text(json.dumps(list(self._seen)))
        return {"job": self._begun}

    def note(self, frame: FrameType, event: str, _arg: Any) -> None:
        """Keep the file of a function that is called, in the order of the first calls."""
        if event != "call" or not self._first <= self._begun < self._last:
            return
        code = frame.f_code
        # A module's own body runs once, whenever it is imported.
        if not code.co_filename.startswith(ROOT) or code.co_name == "<module>":
            return
        if threading.current_thread().name.startswith(OF_A_JOB):
            self._seen[code.co_filename.removeprefix(ROOT)] = None


follower = Follower(*(int(each) for each in os.environ.get("FOLLOW_JOBS", "4 8").split()))
threading.setprofile(follower.note)
sys.setprofile(follower.note)


@qwf.ingest_task("follow", queue="fetch")
def follow(reason: str | None, args: dict[str, Any]) -> dict[str, Any]:
    """An ordinary job."""
    return follower.job_begins()


def node(inputs: dict[str, Any]) -> dict[str, Any]:
    """An ordinary node."""
    return follower.job_begins()


qwf.set_node_resolver({"node": node}.get)
