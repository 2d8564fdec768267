"""Which jobs a worker prefers because of what it has loaded, and for how long it may.

Preferring is passing others by. A worker that has done so for `max_wait_s` then takes the oldest job, of
whatever model, and loads that; then it may prefer again. So a job that has become the oldest waits no longer
than that and the job that a worker is at, however many workers there are and however many jobs for models
that are loaded: each of them either takes it, or passes it and remembers since when.

Each priority has a clock of its own, as a job of another one passes nobody that it might not. Only a worker
that has taken the oldest and may do it stops a clock, and one that has seen that nothing waits stops all. One
that has just begun does not know what those before it have passed, and takes the oldest of each priority
first.

What counts is the time of passing and not that of waiting: under a backlog every job has waited for long, and
each worker would load a model for every job when it is needed least.
"""

from __future__ import annotations

from math import inf

from queue_workflows.gpu.cache import ModelCache
from queue_workflows.repositories.claims.claim_by_model import First, Preference
from queue_workflows.repositories.sql.low_water_marks import PRIORITIES


class Affinity:
    """One worker's; a pure object that is told the time."""

    def __init__(
        self, models: ModelCache, *, max_wait_s: float, yield_s: float, fresh_s: float, first: First
    ) -> None:
        self._models = models
        self._max_wait_s = max_wait_s
        self._yield_s = yield_s
        self._fresh_s = fresh_s
        self._first: First = first
        self._passing_since = dict.fromkeys(PRIORITIES, -inf)
        # What was forgotten for the job that was taken last.
        self._forgotten: tuple[int, float] | None = None

    @property
    def is_passing(self) -> bool:
        """Whether there may be a job that it has passed."""
        return bool(self._passing_since)

    def preference(self, now: float) -> Preference:
        """What to ask for now."""
        due = [level for level, since in self._passing_since.items() if now - since >= self._max_wait_s]
        return Preference(
            warm=self._models.names,
            oldest=tuple(due),
            yield_s=self._yield_s,
            fresh_s=self._fresh_s,
            first=self._first,
        )

    def claimed(self, priority: int, now: float, *, has_passed: bool) -> None:
        """Learn from the given job: for it older ones of its priority were passed, or it is the oldest."""
        self._forgotten = None
        if has_passed:
            self._passing_since.setdefault(priority, now)
        elif (since := self._passing_since.pop(priority, None)) is not None:
            self._forgotten = priority, since

    def put_aside(self) -> None:
        """The job that was given last cannot run here: a job that was passed waits still."""
        if self._forgotten is not None:
            priority, since = self._forgotten
            self._passing_since[priority], self._forgotten = since, None

    def look_for_the_oldest(self) -> None:
        """Jobs came back that nobody else could do: they are not to wait for another turn."""
        self._passing_since = dict.fromkeys(PRIORITIES, -inf)

    def nothing_waits(self) -> None:
        """No job is left that it has passed."""
        self._passing_since.clear()
