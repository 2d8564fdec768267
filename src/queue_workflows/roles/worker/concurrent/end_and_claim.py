"""What a worker of many jobs asks: the end of what has ended and the claim of the next, over and over.

    ask 1 ──> answer 1          ask 2 ──────────> answer 2          ask 3 ─────> …
                      └ as it is full, ask 2 is sent first
                        and this answer is taken in meanwhile:
                        loaded, guarded, handed to the threads

So the server is at the next batch while the last one is loaded and run. An answer that is not full is taken
in at once: then there is time. The turn (`claim_mutex`) lasts from the first question to the last answer that
is taken in, so that a thread that ends the process in its own turn knows of all that was claimed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

import psycopg

from queue_workflows import clock as time
from queue_workflows.db.connections.failures import DATABASE_AWAY
from queue_workflows.engine.execution.guards import HeldJob
from queue_workflows.errors import QwfError
from queue_workflows.host.processes.lease_timer import boottime
from queue_workflows.repositories.claims.end import Ended, Ending
from queue_workflows.repositories.claims.unusable_rows import Faults, faults_of
from queue_workflows.repositories.sql.claimed_job import ClaimedJob
from queue_workflows.roles.worker.claims.session import Asked, ClaimSession
from queue_workflows.roles.worker.common.parts import WorkerParts
from queue_workflows.states import JobStatus

_log = logging.getLogger(__name__)

_FAILED: Final = (psycopg.Error, QwfError)
# A smaller batch is taken in first: it is soon done, and makes room for a larger one.
_WORTH_FLOWING: Final = 100


class Taking(Protocol):
    """What works on the jobs that an exchange brings."""

    @property
    def is_for_a_suspect(self) -> bool:
        """Whether a claim of one that is alone is to bring a suspect before all others."""

    def held(self, jobs: Sequence[ClaimedJob], reading: float) -> list[HeldJob]:
        """Make these jobs held ones; their claim was sent at this reading of the clock."""

    def taken(self, claimed: list[HeldJob], *, alone: bool) -> None:
        """The claimed jobs are guarded by now; the marks have learned from them."""

    def unsure(self) -> None:
        """There may be something to claim, whatever was seen before."""


@dataclass(slots=True)
class _Unread:
    """An answer, the jobs to be ended by the same question, and when and how that was asked.

    Loaded it has `accepted` and `jobs`; once it `has_begun`, those are taken care of.
    """

    claim_session: ClaimSession
    asked: Asked
    ended: list[HeldJob]
    reading: float
    alone: bool
    accepted: Ended | None = None
    jobs: list[ClaimedJob] = field(default_factory=list)
    faults: Faults = field(default_factory=dict)
    has_begun: bool = False


class EndAndClaim:
    """The main thread's; what has ended is put to `unwritten`."""

    def __init__(self, parts: WorkerParts, taking: Taking) -> None:
        self.unwritten: list[HeldJob] = []
        self._taking = taking
        self._guardian = parts.guardian
        self._turns = parts.turns
        self._job_log = parts.guardian.job_log
        self._holdings = parts.guardian.holdings
        self._kept = parts.guardian.terms.kept
        self._marks = parts.marks
        self._worker_connection = parts.worker_connection
        self._unread: _Unread | None = None
        # How long the last end and claim took.
        self.took_s = 0.0

    @property
    def unread(self) -> int:
        """How many jobs were claimed that nothing has looked at yet."""
        return 0 if self._unread is None else self._unread.asked.limit

    @property
    def ending(self) -> int:
        """How many jobs have an end in the unread answer, and are held until it is read."""
        return 0 if self._unread is None else len(self._unread.ended)

    @property
    def must_read(self) -> bool:
        """Whether an answer waits that is not to wait for the next question."""
        return self._unread is not None and (
            not self.unwritten
            or not self._unread.asked.is_full
            or self._unread.asked.limit < _WORTH_FLOWING
            or bool(self._kept)
            or self._guardian.claiming.is_wanted
        )

    def exchange(self, limit: int, alone: bool) -> None:
        """Claim, and with it end what has ended; an answer that waits is taken in meanwhile."""
        ended = self._to_write()
        if ended:
            self._end_and_claim(ended, limit, alone)
            return
        try:
            self._claim(limit, alone)
        except DATABASE_AWAY as exc:
            self.lost(exc)

    def read(self) -> None:
        """Take in an answer that waits."""
        unread, self._unread = self._unread, None
        if unread is None:
            return
        try:
            self._load(unread)
            self._begin(unread)
            self._abandon(unread.ended)
        except _FAILED as exc:
            failed: Exception | None = exc
        else:
            failed = None
        finally:
            self._guardian.claiming.release()
        if failed is not None:
            self._failed(failed, [] if unread.has_begun else unread.ended)

    def write(self) -> None:
        """End what has ended, and claim nothing."""
        ended = self._to_write()
        try:
            endings = _endings_of(ended)
            with self._guardian.claiming:
                accepted = self._worker_connection.claim_session().end(endings)
                self._guardian.exchange([], ended)
            self._count(ended, accepted)
            self._job_log.ended(ended, accepted.statuses)
        except _FAILED as exc:
            self._failed(exc, ended)
            return
        try:
            self._abandon(ended)
        except DATABASE_AWAY as exc:
            self.lost(exc)
        if any(held.job.limit_key is not None or held.job.host_lock is not None for held in ended):
            # What waited for the slot or lock that is free now was let out of its lane, or promoted.
            self._taking.unsure()

    def _to_write(self) -> list[HeldJob]:
        if self.unwritten:
            self._guardian.damage.leave_if_used_up()
        ended, self.unwritten = self.unwritten, []
        return ended

    def lost(self, exc: Exception, ended: list[HeldJob] | None = None) -> None:
        """Recover from a lost answer: ends are written again, and what was claimed unread is given back."""
        ended = ended or []
        self._taking.unsure()
        self._worker_connection.lost(exc)
        self._written_anew(ended, lambda: self._worker_connection.recover(_endings_of(ended)))

    def _claim(self, limit: int, alone: bool) -> None:
        claim_session = self._worker_connection.claim_session()
        with self._guardian.claiming, self._holdings.bounded(self._worker_connection.meanwhile) as reading:
            first, now = alone and self._taking.is_for_a_suspect, time.monotonic()
            jobs = claim_session.claim(self._marks, now, limit=limit, alone=alone, suspects_first=first)
            # It passes by what it lacks, so that it has not looked for others.
            is_left = not self._marks.empty or bool(self._guardian.terms.lacked)
            self._turns.looked(now, found=bool(jobs) or is_left, is_free=alone)
            claimed = self._taking.held(jobs, reading)
            self._guardian.exchange(claimed, [])
        self._taking.taken(claimed, alone=alone)

    def _end_and_claim(self, ended: list[HeldJob], limit: int, alone: bool) -> None:
        before, self._unread = self._unread, None
        if before is None:
            self._guardian.claiming.take()
        try:
            self._unread = self._asked(ended, limit, alone, before)
            if before is not None:
                self._begin(before)
                self._abandon(before.ended)
        except _FAILED as exc:
            self._unread = None
            self._guardian.claiming.release()
            left = before.ended if before is not None and not before.has_begun else []
            self._failed(exc, left + ended)
        except BaseException:
            self._unread = None
            self._guardian.claiming.release()
            raise
        else:
            if not self._unread.asked.is_full:
                self.read()

    def _asked(self, ended: list[HeldJob], limit: int, alone: bool, before: _Unread | None) -> _Unread:
        endings = _endings_of(ended)
        try:
            claim_session = self._worker_connection.claim_session()
            if before is not None:
                self._worker_connection.meanwhile(lambda: self._load(before))
            reading = boottime()
            asked_at = time.monotonic()
            asked = claim_session.ask_end_and_claim(endings, self._marks, asked_at, limit=limit, alone=alone)
            self.took_s = time.monotonic() - asked_at
            return _Unread(claim_session, asked, ended, reading, alone)
        finally:
            # Not yet, if it could not even be asked.
            if before is not None:
                self._load(before)

    def _load(self, unread: _Unread) -> None:
        """Read an answer, and have its jobs begin if that takes no question: the connection may be at one."""
        if unread.accepted is None:
            unread.accepted, unread.jobs = unread.claim_session.read(unread.asked)
            unread.faults = faults_of(unread.jobs)
            if not unread.claim_session.must_ask(unread.jobs, unread.faults):
                self._begin(unread)

    def _begin(self, unread: _Unread) -> None:
        if unread.has_begun or unread.accepted is None:
            return
        claimed = self._taking.held(unread.claim_session.begun(unread.jobs, unread.faults), unread.reading)
        self._guardian.exchange(claimed, unread.ended)
        self._count(unread.ended, unread.accepted)
        unread.has_begun = True
        self._taking.taken(claimed, alone=unread.alone)
        self._job_log.ended(unread.ended, unread.accepted.statuses)
        if not unread.asked.is_full and any(
            ending.status is JobStatus.QUEUED for ending in unread.asked.endings
        ):
            # The claim beside it did not see what was given back.
            self._taking.unsure()
        # To let go of so many jobs takes its time: here, while the server is at the next, and not after.
        unread.ended = [held for held in unread.ended if held.ending is None]
        unread.jobs, unread.asked = [], unread.asked._replace(endings=())

    def _abandon(self, ended: list[HeldJob]) -> None:
        """Give back the slots of jobs with lost leases; what fails here lapses by itself."""
        fences = [held.job.fence for held in ended if held.ending is None]
        if fences:
            self._worker_connection.claim_session().abandon(fences)

    def _count(self, ended: list[HeldJob], accepted: Ended) -> None:
        self._guardian.jobs_done += sum([held.counts for held in ended])
        lost = set(accepted.lost)
        for held in ended if lost else ():
            if held.job.fence in lost:
                self._guardian.lost.found_at_end(held.job)

    def _failed(self, exc: Exception, ended: list[HeldJob]) -> None:
        if isinstance(exc, DATABASE_AWAY):
            self.lost(exc, ended)
        elif ended:
            self._refused(exc, ended)
        else:
            raise exc

    def _refused(self, exc: Exception, ended: list[HeldJob]) -> None:
        """Write ends one by one, so that one that the server refuses spoils no other."""
        _log.error("an end of %d was refused: %s", len(ended), " ".join(str(exc).split()))
        self._worker_connection.let_go()
        for held in ended:
            self._written_anew([held], lambda held=held: self._worker_connection.recover(_endings_of([held])))  # type: ignore[misc]

    def _written_anew(self, ended: list[HeldJob], write: Callable[[], None]) -> None:
        try:
            write()
        except _FAILED as exc:
            if len(ended) > 1:
                self._refused(exc, ended)
                return
            self._worker_connection.let_go()
            for held in ended:
                self._worker_connection.recover_refused(held, exc)
            self._marks.unsure()
        with self._guardian.claiming:
            self._guardian.exchange([], ended)
        statuses = {held.job.id: held.ending.status for held in ended if held.ending is not None}
        self._job_log.ended(ended, statuses)
        self._guardian.jobs_done += sum([held.counts for held in ended])


def _endings_of(ended: list[HeldJob]) -> list[Ending]:
    """What to write, with the jobs' last words; nothing for one with a lost lease."""
    endings = []
    for held in ended:
        if held.ending is not None:
            words = held.ctx.take_progress(now=0.0, final=True)
            if words is not None:
                held.ending = held.ending.saying(words)
            endings.append(held.ending)
    return endings
