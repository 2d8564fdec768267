"""Ends the jobs that do not end by themselves: the guardian's verdicts, and how they are carried out.

A job that shares its process is asked first, as the others would be given back for it; one that has its
process for itself is not. Then the process ends, and with it the job.
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
from queue_workflows.engine.execution.guards import HeldJob, Verdict, overrun_in_words, verdict_on
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
from queue_workflows.roles.worker.guardian.stop_requests import StopRequests
from queue_workflows.settings import Settings

_log = logging.getLogger(__name__)

MAIN_PATIENCE_S: Final = 0.2
# How long exporters may take to send what is left when this process ends or starts anew.
FLUSH_S: Final = 1.0
# How soon to look again at a job that another one keeps from going on.
_BARRED_S: Final = 0.5
_EXITS: Final = {
    Verdict.WALL_CLOCK: ExitCode.WALL_CLOCK,
    Verdict.MODEL_LOAD: ExitCode.WALL_CLOCK,
    Verdict.MODEL_UNLOAD: ExitCode.WALL_CLOCK,
    Verdict.STALL: ExitCode.STALL,
    Verdict.LEASE: ExitCode.LEASE_LOST,
}
# What is said of a job for its times, or would be.
_BLAMED: Final = (None, Verdict.WALL_CLOCK, Verdict.STALL, Verdict.MODEL_LOAD)


class Guarding(Protocol):
    """What a judge needs of its guardian."""

    settings: Settings
    holdings: HeldJobs
    terms: ClaimTerms
    claiming: FairMutex
    stopping: int | None
    stops: StopRequests
    jobs_done: int

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


class Judge:
    """Judges what a guardian's worker holds, in the guardian's thread."""

    def __init__(self, guardian: Guarding, is_barred: Callable[[HeldJob], bool] | None) -> None:
        self._guardian = guardian
        self._is_barred = is_barred
        self._backoff = backoff_of(guardian.settings)
        self._rng = random.Random()  # noqa: S311

    def judge(self, now: float) -> None:
        """See which jobs have to end by now."""
        self._judge_unload(now)
        for held in self._guardian.holdings.all():
            if now >= held.ask_at:
                held.ctx.stop(Stop.RELEASE, "its worker stops")
            verdict = self._verdict_on(held, now)
            if verdict is None or self._asks_first(held, verdict, now):
                continue
            if verdict is Verdict.STOP and self._has_stopped_its_worker(held):
                self._crash(held, now)
            else:
                self._carry_out(held, verdict, now)

    def _judge_unload(self, now: float) -> None:
        """Judge an unload between jobs: a worker that hangs there beats on, and looks idle to all."""
        guardian = self._guardian
        if not guardian.holdings.all() and self._unload_hangs(now):
            _log.error("a model was not unloaded in time, so its process ends")
            end_children()
            guardian.leave(ExitCode.WALL_CLOCK)

    def _unload_hangs(self, now: float) -> bool | None:
        """Whether an unload takes longer than it may; None if there is none."""
        models = self._guardian.terms.models
        unloading = None if models is None else models.unloading
        if unloading is None:
            return None
        return now >= unloading[1] + self._guardian.settings.model_load_timeout_s

    def _verdict_on(self, held: HeldJob, now: float) -> Verdict | None:
        """The job's own, but while it waits for another model's unload: that uses up nothing of its times."""
        verdict = verdict_on(held, now)
        if verdict not in _BLAMED or held.is_ending or (hangs := self._unload_hangs(now)) is None:
            return verdict
        if hangs or verdict is Verdict.MODEL_LOAD:
            return Verdict.MODEL_UNLOAD
        held.leave_until = now + _BARRED_S
        return None

    def _asks_first(self, held: HeldJob, verdict: Verdict, now: float) -> bool:
        """Whether the job is given a chance to end by itself, as others would be given back for it."""
        if self._is_barred is None or verdict not in (Verdict.WALL_CLOCK, Verdict.STALL):
            return False
        if self._is_barred(held):
            # The one that bars it has a budget of its own, and will be judged by that.
            held.leave_until = now + _BARRED_S
            return True
        if held.overran is not None:
            return False
        reason = overrun_in_words(verdict, held, now)
        _log.error("job %d: %s, so it is asked to stop", held.job.id, reason)
        held.overrun(verdict, reason, now + self._guardian.settings.cancel_grace_s)
        return True

    def _has_stopped_its_worker(self, held: HeldJob) -> bool:
        """Whether a job may have sent the stop that this one outlasts; one that is cancelled is done with."""
        guardian = self._guardian
        is_stopped = guardian.stopping is not None and held.ctx.stopping is not Stop.CANCEL
        return is_stopped and guardian.stops.is_a_strangers

    def _crash(self, held: HeldJob, now: float) -> None:
        """Give nothing back that runs: this end counts as any crash, and the supervisor takes it back so."""
        guardian = self._guardian
        if not guardian.claiming.acquire(timeout=MAIN_PATIENCE_S):
            return
        if not guardian.holdings.holds(held.job) or self._verdict_on(held, now) is not Verdict.STOP:
            guardian.claiming.release()
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

    def _carry_out(self, held: HeldJob, verdict: Verdict, now: float) -> None:
        """End the job, give the others back, and end the process; the lock is never given back."""
        guardian = self._guardian
        if not guardian.claiming.acquire(timeout=MAIN_PATIENCE_S):
            return  # the main thread is writing its end right now; else we come again
        if not guardian.holdings.holds(held.job) or self._verdict_on(held, now) is not verdict:
            guardian.claiming.release()
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
