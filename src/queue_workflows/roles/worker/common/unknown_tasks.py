"""What a worker does about tasks that it does not know: it puts their queued jobs aside, in batches.

One by one each of a million jobs would be claimed, put aside, and claimed again when its delay is over. But
a worker that knows a task fetches its jobs as it needs them, and would have none of them left if all were put
aside at once again and again: for some seconds after the last batch only what was claimed is.
"""

from __future__ import annotations

import math
from typing import Final

from queue_workflows import clock as time
from queue_workflows.db.connections.failures import DATABASE_AWAY
from queue_workflows.engine.registry.tasks import UNKNOWN_TASK
from queue_workflows.roles.worker.common.connection import WorkerConnection
from queue_workflows.roles.worker.common.run_job import UNKNOWN_DELAY_S

# So many found at once are a crowd, of which there may be more: what others fetch for themselves is less.
CROWD: Final = 1_000
QUIET_S: Final = 5.0


class UnknownTasks:
    """The tasks of one queue that a worker met and does not know."""

    def __init__(self, queue: str) -> None:
        self._queue = queue
        self._met: set[str] = set()
        self._quiet_until: dict[str, float] = {}

    @property
    def is_due(self) -> bool:
        """Whether there may be more of them in the queue."""
        return bool(self._met)

    def met(self, task_name: str, now: float) -> None:
        """A job of this task was claimed."""
        if now >= self._quiet_until.get(task_name, -math.inf):
            self._met.add(task_name)

    def put_aside(self, worker_connection: WorkerConnection) -> None:
        """Some thousand, from the head of the queue; not due any more when there was no crowd."""
        try:
            found = worker_connection.repository().put_aside(
                self._queue, self._met, reason=UNKNOWN_TASK, delay_s=UNKNOWN_DELAY_S
            )
        except DATABASE_AWAY as exc:
            worker_connection.lost(exc)
            worker_connection.recover([])
            return
        if found < CROWD:
            self._quiet_until |= dict.fromkeys(self._met, time.monotonic() + QUIET_S)
            self._met.clear()
