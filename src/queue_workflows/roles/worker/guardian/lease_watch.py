"""What the guardian asks the database of the jobs in hand: to extend their leases, and what became of them.

A job that somebody cancelled is asked to stop. One with a fence that holds no more is another attempt's,
unless the main thread has just ended it, or a server that crashed has forgotten the claim and nobody has made
another: then it is made once more. Else the function is stopped, and nothing is written for it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Final

import psycopg

from queue_workflows import clock as time
from queue_workflows.engine.execution.guards import HeldJob
from queue_workflows.engine.outcomes import Stop
from queue_workflows.host.processes.lease_timer import boottime
from queue_workflows.repositories.claims.hold_lease import Watched
from queue_workflows.repositories.sql.connection import Questions
from queue_workflows.roles.identity import Identity
from queue_workflows.roles.worker.claims.session import ClaimSession
from queue_workflows.roles.worker.claims.terms import ClaimTerms
from queue_workflows.roles.worker.guardian.claim_mutex import FairMutex
from queue_workflows.roles.worker.guardian.held_jobs import HeldJobs
from queue_workflows.roles.worker.guardian.lost_leases import LostLeases
from queue_workflows.settings import Settings

_log = logging.getLogger(__name__)

# How long the main thread may take over the end of a job before the guardian comes again.
MAIN_PATIENCE_S: Final = 0.2
# A job that began so lately need not be watched yet: the next watch, within two seconds, hears of a cancel.
_WATCHED_AFTER_S: Final = 0.25


class LeaseWatch:
    """The guarding thread's, on its connection."""

    def __init__(
        self,
        identity: Identity,
        settings: Settings,
        terms: ClaimTerms,
        *,
        connected: Callable[[], psycopg.Connection[Any]],
        holdings: HeldJobs,
        claiming: FairMutex,
        lost: LostLeases,
    ) -> None:
        self._identity = identity
        self._terms = terms
        self._connected = connected
        self._holdings = holdings
        self._claiming = claiming
        self._lost = lost
        self._cancel_grace_s = settings.cancel_grace_s
        self._renew_s = settings.renew_for(identity.queue)

    def renew(self) -> None:
        """Extend the leases that are due."""
        reading = boottime()
        due = self._holdings.due(reading, self._renew_s)
        if not due:
            return
        alive = ClaimSession(self._terms, self._connected()).renew(due)
        self._holdings.renewed([held for held in due if held.job.id in alive], reading)
        for held in due:
            if alive.get(held.job.id) is not None:
                self._cancel(held)
        self._disown([held for held in due if held.job.id not in alive])

    def look_with(self, questions: Questions, now: float) -> Callable[[], Watched]:
        """Ask with other questions; what then sees to what was cancelled or lost, and returns the wish."""
        lasts = now - _WATCHED_AFTER_S
        held = {one.job.id: one for one in self._holdings.leased() if one.started <= lasts}
        answer = questions.add(
            self._terms.repository(questions.handle).watching(
                [one.job.fence for one in held.values()],
                host_label=self._identity.host_label,
                queue=self._identity.queue,
            )
        )

        def see_to() -> Watched:
            seen = answer()
            for job_id in seen.cancelled & held.keys():
                self._cancel(held[job_id])
            self._disown([held[job_id] for job_id in seen.lost & held.keys()])
            return seen

        return see_to

    def _cancel(self, held: HeldJob) -> None:
        if held.ctx.stopping is None or held.ctx.stopping < Stop.CANCEL:
            _log.info("job %d was cancelled", held.job.id)
            held.tell(Stop.CANCEL, "", time.monotonic() + self._cancel_grace_s)

    def _disown(self, lost: list[HeldJob]) -> None:
        """A fence that does not hold: unless the main thread has just ended the job, its lease is lost."""
        if not lost or not self._claiming.acquire(timeout=MAIN_PATIENCE_S):
            return
        try:
            lost = [held for held in lost if self._holdings.holds(held.job) and not held.is_ending]
            reading = boottime()
            again = self._terms.repository(self._connected()).claim_again(
                [held.job for held in lost], lease_s=self._terms.lease_s
            )
            self._holdings.renewed([held for held in lost if held.job.id in again], reading)
            for held in lost:
                if held.job.id in again:
                    _log.warning(
                        "job %d: the server had forgotten its claim, which is made again", held.job.id
                    )
                else:
                    self._lost.add(held.job)
                    held.tell(Stop.LEASE_LOST, "", time.monotonic())
        finally:
            self._claiming.release()
