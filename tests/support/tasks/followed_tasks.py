"""Jobs whose worker notes which of the engine's files run from the start of one job to that of a later one.

So much is one job's whole way at least: its function, its end, the claim of the next, and what leads to that.
Several looks are taken, and what runs in each is written down: a worker does other things now and then.
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
    """Notes the files of so many looks of so many jobs each, after as many that are not looked at."""

    def __init__(self, size: int, looks: int) -> None:
        self._size, self._left = size, looks
        self._begun = 0
        self._lock = threading.Lock()
        self._seen: dict[str, None] = {}
        self._always: list[str] | None = None

    def job_begins(self) -> dict[str, Any]:
        """Count a job; its result."""
        with self._lock:
            self._begun += 1
            if self._begun % self._size == 0 and self._left >= 0:
                self._look_is_over()
            return {"job": self._begun}

    def note(self, frame: FrameType, event: str, _arg: Any) -> None:
        """Keep the file of a function that is called, in the order of the first calls."""
        code = frame.f_code
        # A module's own body runs once, whenever it is imported.
        if event != "call" or not code.co_filename.startswith(ROOT) or code.co_name == "<module>":
            return
        if threading.current_thread().name.startswith(OF_A_JOB):
            self._seen[code.co_filename.removeprefix(ROOT)] = None

    def _look_is_over(self) -> None:
        seen, self._seen = self._seen, {}
        if self._begun > self._size:
            self._always = [each for each in (self._always or seen) if each in seen]
        self._left -= 1
        if self._left < 0:
            Path(os.environ["FOLLOWED"]).write_text(json.dumps(self._always))


follower = Follower(*(int(each) for each in os.environ["FOLLOW"].split()))
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
