"""Background hooks that end when their run is sealed, by the jobs that a worker holds."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Final

from queue_workflows.hooks.script.process import HookStop

# What a background hook is told when its run has come to its last step's end.
SEALED: Final = "the run is sealed"


class AtSeal:
    """What to tell when a run is sealed; thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._stops: dict[int, tuple[HookStop, float | None]] = {}

    @contextmanager
    def ends(self, job_id: int, stop: HookStop, *, grace_s: float | None = None) -> Iterator[None]:
        """This job's hook is to end at the seal of its run, with so much grace if any is named."""
        own = stop, grace_s
        with self._lock:
            self._stops[job_id] = own
        try:
            yield
        finally:
            with self._lock:
                # A later attempt, of a worker that had lost this one, may be told here as well.
                if self._stops.get(job_id) is own:
                    del self._stops[job_id]

    def jobs(self) -> list[int]:
        """The jobs of the runs that are to be looked at."""
        with self._lock:
            return list(self._stops)

    def end(self, jobs: Iterable[int]) -> None:
        """End the hooks of these jobs, as their runs are sealed."""
        with self._lock:
            told = [self._stops[job_id] for job_id in jobs if job_id in self._stops]
        for stop, grace_s in told:
            stop.request(SEALED, grace_s=grace_s)
