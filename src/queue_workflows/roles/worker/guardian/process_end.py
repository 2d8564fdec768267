"""How a ruling of the guardian's judge is carried out: the job is asked to stop, or ends with its process.

    take the lock of the claims ──> still so? ──> end what the jobs started ──> write what is over
      ──> say goodbye ──> send what is given back, as the very last ──> end, or start afresh

The lock is never given back: the main thread would else claim for a process that ends. Where the main thread
has it for long, as it is at writing the job's end, the guardian comes again.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final, NoReturn, Protocol

import psycopg

from queue_workflows.db.connections.failures import DATABASE_AWAY, DATABASE_FAILED
from queue_workflows.engine.execution.ending import ending_of, for_good, outcome_of
from queue_workflows.engine.execution.guards import HeldJob, Verdict, overrun_in_words
from queue_workflows.engine.outcomes import Outcome, Released, Stop
from queue_workflows.engine.registry.tasks import backoff_of
from queue_workflows.engine.telemetry import count_ended, cut_short
from queue_workflows.errors import ExitCode, PayloadError
from queue_workflows.host.processes.harden import exit_code_of
from queue_workflows.repositories.claims.end import Ending
from queue_workflows.roles.process_exit import end_children
from queue_workflows.roles.worker.claims.session import ClaimSession
from queue_workflows.roles.worker.claims.terms import ClaimTerms
from queue_workflows.roles.worker.guardian.claim_mutex import FairMutex
from queue_workflows.roles.worker.guardian.held_jobs import HeldJobs
from queue_workflows.roles.worker.guardian.last_message import begins_again, last_message
from queue_workflows.roles.worker.guardian.lease_watch import MAIN_PATIENCE_S
from queue_workflows.roles.worker.guardian.verdicts import Action, Judge, Ruling
from queue_workflows.roles.worker.job_log import JobLog
from queue_workflows.settings import Settings

_log = logging.getLogger(__name__)

# How long exporters may take to send what is left when this process ends or starts anew.
FLUSH_S: Final = 1.0
_EXITS: Final = {
    Verdict.WALL_CLOCK: ExitCode.WALL_CLOCK,
    Verdict.MODEL_LOAD: ExitCode.WALL_CLOCK,
    Verdict.MODEL_UNLOAD: ExitCode.WALL_CLOCK,
    Verdict.STALL: ExitCode.STALL,
    Verdict.LEASE: ExitCode.LEASE_LOST,
}


class Guarding(Protocol):
    """The guardian, as the end of its process needs it."""

    settings: Settings
    holdings: HeldJobs
    terms: ClaimTerms
    claiming: FairMutex
    stopping: int | None
    jobs_done: int
    job_log: JobLog

    def connected(self) -> psycopg.Connection[Any]:
        """The connection of the guardian."""

    def write_progress(self, now: float, *, final: bool = False) -> None:
        """Write what the jobs have said."""

    def execute_anew(self, last: Callable[[], None] = ...) -> NoReturn:
        """Start the worker afresh; `last` is the last that it does before."""

    def leave(self, status: int, last: Callable[[], None] = ...) -> NoReturn:
        """End the process; `last` is the last that it does."""

    def crash(self) -> NoReturn:
        """End the process as one that the signal killed which asked it to stop."""


class ProcessEnd:
    """Carries out what the judge ruled, in the guardian's thread."""

    def __init__(self, guardian: Guarding, judge: Judge) -> None:
        self._guardian = guardian
        self._judge = judge
        self._backoff = backoff_of(guardian.settings)
        self._rng = random.Random()  # noqa: S311

    def carry_out(self, ruling: Ruling, now: float) -> None:
        """Do what was ruled; it may not return."""
        held = ruling.held
        if held is None:
            _log.error("a model was not unloaded in time, so its process ends")
            end_children()
            self._guardian.leave(ExitCode.WALL_CLOCK)
        match ruling.action:
            case Action.STOP:
                held.ctx.stop(Stop.RELEASE, "its worker stops")
            case Action.ASK:
                reason = overrun_in_words(ruling.verdict, held, now)
                _log.error("job %d: %s, so it is asked to stop", held.job.id, reason)
                held.overrun(ruling.verdict, reason, now + self._guardian.settings.cancel_grace_s)
            case Action.CRASH:
                self._crash(held, now)
            case _:
                self._end(held, ruling.verdict, now)

    def _is_still(self, held: HeldJob, verdict: Verdict, now: float) -> bool:
        """Whether that is still to be done; then with the lock of the claims, for good."""
        guardian = self._guardian
        if not guardian.claiming.acquire(timeout=MAIN_PATIENCE_S):
            return False
        if guardian.holdings.holds(held.job) and self._judge.verdict_on(held, now) is verdict:
            return True
        guardian.claiming.release()
        return False

    def _crash(self, held: HeldJob, now: float) -> None:
        """Give nothing back that runs: this end counts as any crash, and the supervisor takes it back so."""
        guardian = self._guardian
        if not self._is_still(held, Verdict.STOP, now):
            return
        _log.error(
            "job %d does not end, and this worker was told to stop, but not by its supervisor: that counts "
            "as a crash, as a job of its own may have told it",
            held.job.id,
        )
        end_children()
        try:
            guardian.write_progress(now, final=True)
            ended = [one.ending for one in guardian.holdings.all() if one.ending is not None]
            if ended:
                self._write(ended, is_counted=True)
        except DATABASE_FAILED as exc:
            _log.warning("what has ended could not be written: %s", " ".join(str(exc).split()))
        guardian.crash()

    def _end(self, held: HeldJob, verdict: Verdict, now: float) -> None:
        """End the job, give the others back, and end the process."""
        guardian = self._guardian
        if not self._is_still(held, verdict, now):
            return
        others = [one for one in guardian.holdings.all() if one is not held]
        outcomes = [(held, for_good(outcome_of(verdict, held, now), held.ctx))]
        beside = Released("its worker had to end another job")
        outcomes += [(one, for_good(beside, one.ctx)) for one in others]
        endings = [self._ending_of(one, how) for one, how in outcomes]
        accepted = [each for each in endings if each is not None]
        if verdict is Verdict.STOP:
            _log.info("job %d is ended: %s", held.job.id, held.ctx.stop_reason or "its grace is over")
        else:
            _log.error("job %d: %s, so its process ends", held.job.id, verdict.value.replace("_", " "))
        # While these live, so does the job; and its row must be nobody else's yet.
        end_children()
        is_told = verdict is not Verdict.LEASE
        if is_told:
            # While the rows are ours still: the functions run until the process ends.
            within_s = min(FLUSH_S, guardian.holdings.lease_s / 10)
            count_ended(guardian.terms.queue, accepted, {each.fence.job_id: each.status for each in accepted})
            cut_short([(one.observed, how) for one, how in outcomes if one.ending is None], within_s=within_s)
        try:
            guardian.write_progress(now, final=True)
            self._write([each for each in accepted if not begins_again(each)], is_counted=is_told)
            given_back = [each for each in accepted if begins_again(each)]
            last = last_message(guardian.terms, guardian.connected(), given_back)
            for (one, _), ending in zip(outcomes, endings, strict=True):
                if ending is not None and is_told:
                    guardian.job_log.ended_one(one, ending, ending.status)
        except DATABASE_FAILED as exc:
            _log.warning("its end could not be written, its lease will lapse: %s", " ".join(str(exc).split()))
            guardian.leave(self._status_after(verdict) or ExitCode.LEASE_LOST)
        status = self._status_after(verdict)
        if status is None:
            # A job that was cancelled is done with; one that was given back is not.
            guardian.jobs_done += held.ctx.stopping is Stop.CANCEL
            guardian.execute_anew(last)
        guardian.leave(status, last)

    def _write(self, endings: Sequence[Ending], *, is_counted: bool) -> None:
        if not endings:
            return
        claim_session = ClaimSession(self._guardian.terms, self._guardian.connected())
        try:
            claim_session.end(endings, is_counted=is_counted, keeps_locks=True)
        except DATABASE_AWAY:
            raise
        except DATABASE_FAILED as exc:
            # One that the server will not have spoils no other.
            _log.error("an end of %d was refused: %s", len(endings), " ".join(str(exc).split()))
            for ending in endings if len(endings) > 1 else ():
                with suppress(psycopg.DataError, psycopg.IntegrityError, PayloadError):
                    claim_session.end([ending], is_counted=is_counted, keeps_locks=True)

    def _ending_of(self, held: HeldJob, outcome: Outcome) -> Ending | None:
        """What its function has come to, if it has, else what this says."""
        if held.ending is not None:
            return held.ending
        return ending_of(outcome, held.job, self._backoff, self._rng.random())

    def _status_after(self, verdict: Verdict) -> ExitCode | None:
        """What to end with; None to go on afresh, as the worker itself need not end."""
        if verdict is not Verdict.STOP:
            return _EXITS[verdict]
        return None if self._guardian.stopping is None else exit_code_of(self._guardian.stopping)
