"""Which jobs a worker prefers because of what it has loaded, and for how long it may.

Preferring is passing others by. A worker that has done so for `max_wait_s` then takes the oldest job, of
whatever model, and loads that; then it may prefer again. So whoever has become the oldest waits for no longer
than that and the job that a worker is at, however many workers there are and however many jobs for models
that are loaded: each of them either takes it, or passes it and remembers since when.

What counts is the time of passing and not that of waiting: under a backlog every job has waited for long, and
each worker would load a model for every job when it is needed least.
"""

from __future__ import annotations

from queue_workflows.gpu.cache import ModelCache
from queue_workflows.repositories.affinity import First, Preference


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
        self._passing_since: float | None = None

    def preference(self, now: float) -> Preference:
        """What to ask for now."""
        since = self._passing_since
        return Preference(
            warm=self._models.names,
            oldest=since is not None and now - since >= self._max_wait_s,
            yield_s=self._yield_s,
            fresh_s=self._fresh_s,
            first=self._first,
        )

    def claimed(self, now: float, *, has_passed: bool) -> None:
        """Learn from what was given: a job for which older ones were passed, the oldest, or none."""
        if not has_passed:
            self._passing_since = None
        elif self._passing_since is None:
            self._passing_since = now
