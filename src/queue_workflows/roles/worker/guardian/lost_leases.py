"""Jobs that a worker has lost the leases of though it lives, and for which it speaks when it is back."""

from __future__ import annotations

import logging
from typing import Any

import psycopg

from queue_workflows.db.connections.failures import DATABASE_AWAY
from queue_workflows.repositories.claims.withdraw_doubts import withdraw_doubts
from queue_workflows.repositories.sql.claimed_job import ClaimedJob
from queue_workflows.roles.worker.guardian.held_jobs import HeldJobs

_log = logging.getLogger(__name__)


class LostLeases:
    """The lost leases, added to from any thread, cleared in that of the guardian."""

    def __init__(self, holdings: HeldJobs) -> None:
        self._holdings = holdings
        self._lost: list[ClaimedJob] = []

    def add(self, job: ClaimedJob) -> None:
        """The lease of this attempt had lapsed."""
        self._lost.append(job)

    def found_at_end(self, job: ClaimedJob) -> None:
        """It had lapsed, as the server says that was asked to store the attempt's end."""
        self.add(job)
        _log.warning("job %d: attempt %d was over before its end could be stored", job.id, job.attempt)

    def clear(self, connection: psycopg.Connection[Any]) -> None:
        """Say that this worker lives: it was taken for dead, and what it held is suspected for that."""
        if not self._lost:
            return
        lost = list(self._lost)
        try:
            cleared = withdraw_doubts(connection, [*lost, *(one.job for one in self._holdings.all())])
        except DATABASE_AWAY:
            raise
        except psycopg.Error as exc:
            # What is refused once would be each time, and is no reason to leave the other duties undone.
            _log.warning("jobs that it lost stay suspected: %s", " ".join(str(exc).split()))
            cleared = 0
        if cleared:
            _log.info("%d jobs are not to blame: this worker lives, its leases had lapsed", cleared)
        del self._lost[: len(lost)]
