"""What a worker does about tasks that it does not know: it puts all their queued jobs aside, in batches.

One by one each of a million jobs would be claimed, put aside, and claimed again when its delay is over.
"""

from __future__ import annotations

from queue_workflows.db.failures import DATABASE_AWAY
from queue_workflows.jobs.tasks import UNKNOWN_TASK
from queue_workflows.roles.performing import UNKNOWN_DELAY_S
from queue_workflows.roles.touch import Touch


class PuttingAside:
    """The tasks of one queue that a worker met and does not know."""

    def __init__(self, queue: str) -> None:
        self._queue = queue
        self._met: set[str] = set()

    @property
    def is_due(self) -> bool:
        """Whether there may be more of them in the queue."""
        return bool(self._met)

    def met(self, task_name: str) -> None:
        """A job of this task was claimed."""
        self._met.add(task_name)

    def put_aside(self, touch: Touch) -> None:
        """Some thousand, from the head of the queue; not due any more when there was none."""
        try:
            found = touch.repository().put_aside(
                self._queue, self._met, reason=UNKNOWN_TASK, delay_s=UNKNOWN_DELAY_S
            )
        except DATABASE_AWAY as exc:
            touch.lost(exc)
            touch.recover([])
            return
        if not found:
            self._met.clear()
