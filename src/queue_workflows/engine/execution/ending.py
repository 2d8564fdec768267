"""From how an attempt ended to what becomes of its row: the one function that every end goes through.

The function's own outcome, a watchdog's verdict, a cancel, an operator's `off`, a worker that stops: each is
an `Outcome` first and an `Ending` by `ending_of`, whatever then writes it.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Final

import psycopg

from queue_workflows.engine.execution.backoff import Backoff
from queue_workflows.engine.execution.context import JobContext
from queue_workflows.engine.execution.guards import HeldJob, Verdict, overrun_in_words
from queue_workflows.engine.outcomes import (
    Abandoned,
    CancelledOutcome,
    Completed,
    Failed,
    OnHold,
    Outcome,
    Released,
    RetryLater,
    Skipped,
    Stop,
)
from queue_workflows.errors import PayloadError, QwfError
from queue_workflows.repositories.claims.end import Ending, error_entry
from queue_workflows.repositories.sql.claimed_job import ClaimedIngestJob, ClaimedJob
from queue_workflows.states import JobStatus

# How long a job waits after its end was refused for a reason that is not in the job.
_REFUSED_DELAY_S: Final = 60.0
# Two readings of the clock in one INSERT.
_SAME_MOMENT: Final = timedelta(seconds=1)
# An enum's members are dear to look up on a class, and this one is wanted for nearly every job.
# The kind of the error of a job that would have begun again.
AT_MOST_ONCE: Final = "at_most_once"
_COMPLETED: Final = JobStatus.COMPLETED
_made: Final = tuple.__new__


def for_good(outcome: Outcome, ctx: JobContext) -> Outcome:
    """What an attempt comes to once its function has begun and may not begin again: it failed, or is over."""
    if not ctx.has_begun_for_good:
        return outcome
    match outcome:
        case Failed():
            return replace(outcome, retryable=False)
        case RetryLater(delay_s, reason):
            why = f"it asked to be run again in {delay_s:g} s" + (f" ({reason})" if reason else "")
        case OnHold(_, reason, key):
            why = f"it was to be put on hold for {reason} {key or ''}".rstrip()
        case Released(reason):
            why = f"its worker let go of it ({reason})" if reason else "its worker let go of it"
        case _:
            return outcome
    message = f"{why}, but it had begun, and it begins at most once"
    return Failed(error_entry(AT_MOST_ONCE, message), retryable=False)


def ending_of(outcome: Outcome, job: ClaimedJob, backoff: Backoff, chance: float) -> Ending | None:
    """What to write for an attempt that ended so; None if there is nothing to write, the lease being lost."""
    fence = job.fence
    ending: Ending | None
    match outcome:
        case Completed():
            # Most jobs of most workers: made without the call that fills in what is not given.
            ending = _made(
                Ending, (fence, _COMPLETED, outcome.result_json, None, False, None, None, None, None)
            )
        case Skipped():
            error = _timed(_note("skipped", outcome.reason), job)
            ending = Ending(fence, JobStatus.SKIPPED, result=outcome.result_json, error=error)
        case RetryLater():
            error = _timed(_note("retry_after", outcome.reason), job, again_s=outcome.delay_s)
            ending = Ending(fence, JobStatus.SCHEDULED, error=error, delay_s=outcome.delay_s)
        case OnHold(delay_s, reason, key):
            ending = Ending(fence, JobStatus.SCHEDULED, delay_s=delay_s, hold_reason=reason, hold_key=key)
        case CancelledOutcome():
            error = _timed(outcome.error or _note("cancelled", outcome.reason), job)
            ending = Ending(fence, JobStatus.CANCELLED, error=error)
        case Released():
            ending = Ending(fence, JobStatus.QUEUED)
        case Failed():
            ending = _failed(outcome, job, backoff, chance)
        case Abandoned():
            ending = None
    return ending


def ending_instead(
    refusal: psycopg.Error | QwfError, job: ClaimedJob, entry: str, *, for_good: bool = False
) -> Ending:
    """What to write of a job that could not begin, or if the server refused its end; `entry` tells why.

    What is in the job, its row or what it left, would be so again, and ends it as failed. So does a refusal
    of one that has begun `for_good`.
    """
    is_in_the_job = isinstance(refusal, psycopg.DataError | psycopg.IntegrityError | PayloadError)
    if for_good or is_in_the_job:
        return Ending(job.fence, JobStatus.FAILED, error=_timed(entry, job), counts=True)
    error = _timed(entry, job, again_s=_REFUSED_DELAY_S)
    return Ending(job.fence, JobStatus.SCHEDULED, error=error, delay_s=_REFUSED_DELAY_S)


def outcome_of(verdict: Verdict, held: HeldJob, now: float) -> Outcome:
    """How a guard's verdict reads as the attempt's outcome."""
    match verdict:
        case Verdict.WALL_CLOCK | Verdict.STALL | Verdict.MODEL_LOAD:
            message = overrun_in_words(verdict, held, now)
            model = held.loading.model if held.loading is not None else None
            return Failed(error_entry(verdict.value, message, model=model), retryable=True)
        case Verdict.MODEL_UNLOAD:
            return Released("the model before it was not unloaded in time")
        case Verdict.LEASE:
            return Abandoned()
        case Verdict.STOP:
            if held.ctx.stopping is Stop.CANCEL:
                return CancelledOutcome(held.ctx.stop_reason)
            return Released(held.ctx.stop_reason)


def _failed(outcome: Failed, job: ClaimedJob, backoff: Backoff, chance: float) -> Ending:
    failures = job.failures + 1
    if outcome.retryable and failures < job.max_attempts:
        task_name = job.task_name if isinstance(job, ClaimedIngestJob) else None
        delay_s = backoff.delay_s(failures, job.backoff_s, chance, task_name)
        error = _timed(outcome.error, job, again_s=delay_s)
        return Ending(job.fence, JobStatus.SCHEDULED, error=error, counts=True, delay_s=delay_s)
    error = _timed(outcome.error, job)
    return Ending(job.fence, JobStatus.FAILED, result=outcome.result_json, error=error, counts=True)


def _timed(error: str | None, job: ClaimedJob, *, again_s: float | None = None) -> str | None:
    """An error's entry with the moment of its attempt's claim, and after how long the next one is due; and
    when its first attempt was due, if that was later than its enqueue.

    The row keeps that of the last attempt alone. The worker writes them, as they are in its hands: the
    statement of an end stays as short as it is, and an attempt without an error pays nothing.
    """
    if error is None:
        return None
    times = f', "since": "{job.started_at.isoformat()}"'
    if again_s is not None:
        times += f', "again_s": {again_s!r}'
        if job.failures == 0 and job.run_at > job.created_at + _SAME_MOMENT:
            times += f', "due": "{job.run_at.isoformat()}"'
    return error[:-1] + times + "}"


def _note(kind: str, reason: str) -> str | None:
    return error_entry(kind, reason) if reason else None
