"""A worker's connection to its database, which may go away in the middle of anything.

Whatever the database does to a statement, what it may have done is found out before anything else: the lost
session is ended, so that nothing it was asked is done later; the end is written again (the fence makes that
harmless), and a claim is given back if its answer was lost.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from random import Random
from typing import Any, Final

import psycopg

from queue_workflows import clock as time
from queue_workflows.db.connections import sessions
from queue_workflows.db.connections.asking_connection import AskingConnection
from queue_workflows.db.connections.failures import DATABASE_AWAY
from queue_workflows.db.connections.kept_line import Line
from queue_workflows.db.listen.listener import Listener
from queue_workflows.engine.execution.ending import ending_instead
from queue_workflows.engine.execution.error_capture import captured
from queue_workflows.engine.execution.guards import HeldJob
from queue_workflows.engine.execution.redaction import Redactor
from queue_workflows.errors import DatabaseError, LeaseLost, QwfError
from queue_workflows.repositories.claims.begins import Rules, begin
from queue_workflows.repositories.claims.end import Ending
from queue_workflows.repositories.claims.repository import ClaimableRepository
from queue_workflows.repositories.sql.claimed_job import ClaimedJob
from queue_workflows.repositories.sql.low_water_marks import Marks
from queue_workflows.roles.worker.claims.session import ClaimSession
from queue_workflows.roles.worker.claims.session_by_model import intake_on
from queue_workflows.roles.worker.guardian.guardian import Guardian

_log = logging.getLogger(__name__)

_RETRY_S: Final = 0.5


class WorkerConnection:
    """The main thread's connection, and what to do when it is lost."""

    def __init__(
        self,
        connect: Callable[[], AskingConnection],
        *,
        guardian: Guardian,
        listener: Listener,
        marks: Marks,
        rng: Random,
        redactor: Redactor,
    ) -> None:
        self._connect = connect
        self._line = Line(self._open)
        self._session: int | None = None
        self._lost_sessions: list[int] = []
        self._guardian = guardian
        guardian.outage.cuts(self._line.cut_if_unanswered)
        self._listener = listener
        self._marks = marks
        self._rng = rng
        self._redactor = redactor
        self._claim_session: ClaimSession | None = None

    @property
    def is_up(self) -> bool:
        """Whether there is a connection, as far as anybody knows."""
        return self._line.is_up

    def connected(self) -> AskingConnection:
        """The connection, for all else that the main thread asks."""
        return self._line.connected()

    def claim_session(self) -> ClaimSession:
        """The jobs of this worker's queue, on the connection of the moment."""
        if self._claim_session is None:
            self._claim_session = intake_on(self._guardian.terms, self._line.connected())
        return self._claim_session

    def repository(self) -> ClaimableRepository[Any, Any]:
        """What else there is to ask about jobs of this family."""
        return self.claim_session().repository

    def meanwhile(self, do: Callable[[], None]) -> None:
        """Do this as soon as the next statement is on its way."""
        self._line.connected().meanwhile = do

    def let_go(self) -> bool:
        """Close the connection, as nobody knows what it is at; whether there was one."""
        self._claim_session = None
        return self._line.let_go()

    def lost(self, exc: Exception) -> None:
        """Let go, and wait a little before the next try."""
        self._guardian.damage.leave_if_closed()
        self._guardian.damage.leave_if_at_fault(exc)
        self._guardian.main_at = time.monotonic()
        self._marks.unsure()
        if self._session is not None and self._line.is_up:
            self._lost_sessions.append(self._session)
        if self.let_go():
            _log.warning("the worker has no database: %s", " ".join(str(exc).split()))
        self._listener.wait(_RETRY_S * (0.5 + self._rng.random()))
        self._guardian.cut_if_stuck()

    def recover(self, endings: Sequence[Ending]) -> None:
        """Recover from a lost answer: write the ends again, and give back a claim that was never read.

        A worker that is told to stop meanwhile waits only to write an end, as long as the guardian lets it.
        """
        guardian, over = self._guardian, {ending.fence.job_id for ending in endings}
        while endings or guardian.stopping is None:
            try:
                claim_session = self.claim_session()
                with guardian.holdings.bounded():
                    self._end_lost_sessions()
                    for fence in claim_session.end(endings).lost if endings else ():
                        _log.info(
                            "job %d: its end was stored before the connection was lost, or its lease was",
                            fence.job_id,
                        )
                    # What is over may have been claimed again, unread like the rest.
                    held = [one for one in guardian.holdings.all() if one.job.id not in over]
                    claim_session.give_back_unread(held, max_crashes=guardian.settings.max_crashes)
                return
            except DATABASE_AWAY as exc:
                self.lost(exc)

    def recover_refused(self, held: HeldJob, refusal: psycopg.Error | QwfError) -> None:
        """End otherwise what the server would not end as it should have: that is no crash of this worker."""
        _log.error("job %d: its end was refused: %s", held.job.id, " ".join(str(refusal).split()))
        self.let_go()
        entry = captured(refusal, self._redactor)
        held.ending = ending_instead(refusal, held.job, entry, for_good=held.ctx.has_begun_for_good)
        self.recover([held.ending])

    def _open(self) -> AskingConnection:
        connection, self._session = self._connect(), None
        if not connection.between.is_absent:
            return connection
        try:
            with self._guardian.holdings.bounded():
                self._session = sessions.mark(connection, self._guardian.identity.worker_id)
        except BaseException:
            connection.close()
            raise
        return connection

    def _end_lost_sessions(self) -> None:
        within_s, owner = self._guardian.holdings.lease_s / 4, self._guardian.identity.worker_id
        while self._lost_sessions:
            pid = self._lost_sessions[-1]
            if not sessions.end(self._line.connected(), owner, pid, within_s=within_s):
                raise DatabaseError("the session that this worker lost is still at what it was asked")
            self._lost_sessions.pop()

    def make_durable(self, job: ClaimedJob, rules: Rules | None = None, /) -> bool:
        """Put the claim on disk; a database that is away is waited for, as it is not the job's failure."""
        holdings = self._guardian.holdings
        while holdings.holds(job):
            try:
                if rules is not None:
                    begin(self._line.connected(), job, rules, lease_s=holdings.lease_s)
                else:
                    self.repository().make_durable(job.fence, lease_s=holdings.lease_s)
            except LeaseLost:
                return False
            except DATABASE_AWAY as exc:
                self.lost(exc)
            else:
                return True
        return False
