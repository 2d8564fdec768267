"""What is told of a background hook that runs, as those after it wait for it: that it is ready."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg

from queue_workflows.hooks.readiness import Ends, Watch
from queue_workflows.hooks.script.process import HookStop
from queue_workflows.repositories.jobs.hooks import HookJobRepository
from queue_workflows.repositories.sql.claimed_job import ClaimedNodeJob


class Beginning:
    """The beginning of one attempt; without a `watch` it is ready as soon as it runs."""

    def __init__(
        self,
        job: ClaimedNodeJob,
        watch: Watch | None,
        *,
        stop: HookStop,
        ask: Callable[[Callable[[psycopg.Connection[Any]], Any]], Any],
    ) -> None:
        self._job, self._watch, self._stop, self._ask = job, watch, stop, ask

    def told(self, ends: Ends) -> None:
        """Called once the hook runs; ends it if it is not ready in its time."""
        is_ready = True if self._watch is None else self._watch.until_ready(ends)
        if self._watch is not None and is_ready is False:
            self._stop.request(
                f"it was not ready within {self._watch.within_s:g} s, as its x-ready or hooks.toml says"
            )
        # What ends before is told of by its end; one that a stop has ended is begun again, and not ready.
        if is_ready:
            self._ask(lambda conn: HookJobRepository(conn).tell_ready(self._job.fence))
