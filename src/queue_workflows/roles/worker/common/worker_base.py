"""What the worker of one job and the worker of many have in common: their parts, and each job's way through.

a claimed job ──held()──> a guarded one ──run_job()──> its ending
"""

from __future__ import annotations

import math
from collections.abc import Callable

from queue_workflows import clock as time
from queue_workflows.engine.execution.context import JobContext, MakesDurable
from queue_workflows.engine.execution.guards import HeldJob, budget_for
from queue_workflows.engine.registry.node_modules import UNKNOWN_MODULE
from queue_workflows.engine.registry.tasks import UNKNOWN_TASK
from queue_workflows.repositories.claims.end import Ending
from queue_workflows.repositories.sql.claimed_job import ClaimedJob
from queue_workflows.repositories.sql.families import INGEST
from queue_workflows.roles.look_pace import LookPace
from queue_workflows.roles.worker.common.leftover_processes import Leftovers
from queue_workflows.roles.worker.common.parts import WorkerParts
from queue_workflows.roles.worker.common.unknown_tasks import UnknownTasks


class WorkerBase:
    """The main thread's; what it shares with the guardian is in the guardian."""

    def __init__(
        self,
        parts: WorkerParts,
        *,
        make_durable: MakesDurable,
        after_job: Callable[[], None],
        leftovers: Leftovers | None,
    ) -> None:
        """`make_durable` and `after_job` are called in the thread of a job; `leftovers` is none for hooks."""
        self._parts = parts
        self._queue = parts.options.queue
        self._guardian = parts.guardian
        self._holdings = parts.guardian.holdings
        self._lifecycle = parts.lifecycle
        self._listener = parts.listener
        self._turns = parts.turns
        self._marks = parts.marks
        self._worker_connection = parts.worker_connection
        self._job_runner = parts.job_runner
        # Hooks are their hosts' own: a script that is missing here is no matter of versions.
        self._unknown = UnknownTasks(
            self._queue,
            UNKNOWN_TASK if parts.family is INGEST else UNKNOWN_MODULE,
            None if parts.hooks is not None else parts.guardian.terms.published,
            worker_id=parts.guardian.identity.worker_id,
            stale_s=parts.settings.stale_heartbeat_s,
        )
        self._family_title = parts.family.title
        self._make_durable = make_durable
        self._after_job = after_job
        self._leftovers = leftovers
        self._look_pace = LookPace(time.monotonic())
        self._claimed_at = time.monotonic()

    def _held_job(self, job: ClaimedJob, reading: float, started: float = math.inf) -> HeldJob:
        """A job that was claimed after this reading of the clock, as it is guarded."""
        parts = self._parts
        context = JobContext(
            job,
            family=self._family_title,
            make_durable=self._make_durable,
            windows=parts.windows,
        )
        budget = parts.budget
        if job.timeout_s or job.stall_timeout_s:
            budget = budget_for(job, budget)
        return HeldJob(job, context, budget, started, reading + self._holdings.lease_s)

    def _run_job(self, held: HeldJob) -> Ending | None:
        """Run a job here and now; what to write for it, None if its lease is lost."""
        if self._leftovers is None:
            return self._job_runner.run(held)
        began = self._leftovers.before(held.job)
        try:
            return self._job_runner.run(held)
        finally:
            self._after_job()
            self._leftovers.after(held, began)

    def _poll_s(self) -> float:
        """How long to wait for a wake: workers that began together do not look together."""
        return self._parts.settings.poll_s * (0.75 + self._parts.rng.random() / 2)

    def _look_again_in(self, now: float) -> float | None:
        """When to look for what may come, or have come, without a wake; None where a wake is certain."""
        if not self._listener.must_look_again():
            return None
        hears = self._listener.state == "listening"
        return self._look_pace.pause(now, hears=hears, others=self._guardian.looking)

    def _is_polled_for(self) -> bool:
        """Whether the guardian looks into the queue, and found nothing, so that the main thread need not."""
        self._guardian.main_at = now = time.monotonic()
        return self._guardian.poll.has_found_nothing(now)

    def _rest(self) -> None:
        """Let go of the database after a while without a job, where others of this host wait in front.

        Those do what is to be done now and then, as for what is on hold; the host's agent listens and asks.
        """
        guardian = self._guardian
        is_long = time.monotonic() - self._claimed_at >= self._parts.settings.rest_s
        guardian.is_resting = is_long and self._listener.is_near and self._turns.is_behind()
        if guardian.is_resting and guardian.is_served and self._worker_connection.is_up:
            self._worker_connection.let_go()
            self._parts.side_connection.close()

    def _claims(self) -> None:
        """A claim is on its way: there may be a job, and for some time a next one."""
        self._claimed_at = time.monotonic()
        self._guardian.is_resting = False

    def _advertise(self) -> bool:
        """Have writers wake this worker; whether that is new, so that it has to look once more."""
        if self._listener.is_wanted(self._queue):
            return False
        self._listener.advertise(self._queue)
        return True

    def _fetches_more(self, now: float, *, at_last: bool = False) -> bool:
        """Whether there is something to claim after all, in an empty queue: what others do not know."""
        if not self._lifecycle.fetch_more(now, at_last=at_last):
            return False
        self._marks.unsure()
        return True
