"""What the guards of a running job decide: pure, told the time, tested without waiting.

Four guards bracket a job. Three of them are here and judged by a thread of the worker; the fourth, the kernel
timer of `host/processes/lease_timer`, needs no thread of ours and stands under them all.

    wall clock   the job has run longer than its budget                           the process ends (75)
    load         its model is not loaded within the time for that                 the process ends (75)
    unload       another model, for which the job waits, is not unloaded in time  the process ends (75)
    stall        after a first progress beat, none for longer than the limit      the process ends (76)
    stop         cancelled, or its worker has to stop, and its grace is over      the process starts anew
    lease        a renewal was refused, so another attempt owns the job            the process ends (80)
                 of several on a loop: its task is cancelled first

A job's own budget begins when its model is loaded: how long that takes is not the job's doing, and nothing
beats meanwhile. For a model that is not unloaded no job is blamed at all: it is given back.

Code that does not end by itself cannot be taken off a thread, so a verdict ends the process, after the row
has been ended in the one way in which every attempt ends (`execution/ending`). Where other jobs would go down
with it, the attempt is asked first: a task on an event loop is cancelled, a function hears of it from its
`ctx`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum
from typing import Final

from queue_workflows.engine.execution.context import JobContext, Loading
from queue_workflows.engine.limits.wait_loop import Awaited
from queue_workflows.engine.outcomes import Stop
from queue_workflows.engine.telemetry import UNOBSERVED, Unobserved
from queue_workflows.repositories.claims.end import Ending
from queue_workflows.repositories.sql.claimed_job import ClaimedJob
from queue_workflows.settings import Settings
from queue_workflows.states import JobFamily


class Verdict(Enum):
    """Why a job that does not end by itself is ended."""

    WALL_CLOCK = "wall_clock"
    STALL = "stall"
    STOP = "stop"
    LEASE = "lease"
    MODEL_LOAD = "model_load_timeout"
    MODEL_UNLOAD = "model_unload_timeout"


@dataclass(frozen=True, slots=True)
class Budget:
    """How long a job may run, and how long it may be silent once it has said something."""

    wall_s: float
    stall_s: float


def budget_of(queue: str, family: JobFamily, settings: Settings) -> Budget:
    """What a queue's jobs may take, else those of its family."""
    default = (
        settings.ingest_default_budget_s if family is JobFamily.INGEST else settings.node_default_budget_s
    )
    return Budget(settings.budget_s_by_queue.get(queue, default), settings.stall_timeout_s)


def budget_for(job: ClaimedJob, usual: Budget) -> Budget:
    """The job's own limits, else the usual ones."""
    if not (job.timeout_s or job.stall_timeout_s):
        return usual
    return Budget(job.timeout_s or usual.wall_s, job.stall_timeout_s or usual.stall_s)


_STOPS: Final = {Verdict.WALL_CLOCK: Stop.WALL_CLOCK, Verdict.STALL: Stop.STALL}


@dataclass(slots=True)
class HeldJob:
    """One job that this worker holds; `lease_until` is on the boot clock, all else on the monotonic one.

    `started` is infinite for one that is claimed ahead and not begun.
    """

    job: ClaimedJob
    ctx: JobContext
    budget: Budget
    started: float
    lease_until: float
    # When it is ended whatever it does, because it was told to stop or its worker has to.
    end_at: float = math.inf
    # When it is asked to stop, if its worker stops and it can be asked.
    ask_at: float = math.inf
    # Its function has ended, and the main thread is writing so: a fence that no longer holds may be its work.
    is_ending: bool = False
    # What is to be written for it, once it has ended, when it did, and whether it was a job's worth.
    ending: Ending | None = None
    ended: float = math.inf
    counts: bool = False
    # It runs on a loop that it shares, and when it was seen to have lost its lease there.
    is_async: bool = False
    lost_at: float = math.inf
    # Told by a guard that it has overrun, and left to stop by itself until `end_at`.
    overran: Verdict | None = None
    leave_until: float = 0.0

    @property
    def began(self) -> float:
        """When its budget began to run."""
        return max(self.started, _seconds(self.ctx.ready_at, -math.inf))

    @property
    def wall_s(self) -> float:
        """What it may take."""
        return max(self.budget.wall_s, _seconds(self.ctx.takes_s, 0.0))

    # A job may write what it likes over what its context says of it, so that is believed by its kind alone.

    @property
    def silent_at(self) -> float:
        """When it will have been silent for too long; never, if it has said nothing yet."""
        return _seconds(self.ctx.last_beat, math.inf) + self.budget.stall_s

    @property
    def loading(self) -> Loading | None:
        """The model that is being loaded for it."""
        loading = self.ctx.loading
        return loading if isinstance(loading, Loading) else None

    @property
    def awaiting(self) -> tuple[tuple[Awaited, float], ...]:
        """What it waits for inside its own code."""
        awaiting = self.ctx.awaiting
        return awaiting if isinstance(awaiting, tuple) else ()

    @property
    def observed(self) -> Unobserved:
        """What telemetry is told of it."""
        observed = self.ctx.observed
        return observed if isinstance(observed, Unobserved) else UNOBSERVED

    def tell(self, why: Stop, reason: str, end_at: float) -> None:
        """Ask the attempt to stop, and end it if it has not by then."""
        self.ctx.stop(why, reason)
        self.finish_by(end_at)

    def wind_up(self, ask_at: float, end_at: float) -> None:
        """Leave the attempt alone until `ask_at`, when it is asked to stop because its worker does."""
        self.ask_at = min(self.ask_at, ask_at)
        self.finish_by(end_at)

    def overrun(self, verdict: Verdict, reason: str, end_at: float) -> None:
        """Ask the attempt to stop because its budget is used up; that is a failure all the same."""
        self.overran = verdict
        self.tell(_STOPS[verdict], reason, end_at)

    def finish_by(self, end_at: float) -> None:
        """Leave the attempt alone until then; told twice, the earlier time counts."""
        self.end_at = min(self.end_at, end_at)


def _seconds(value: object, otherwise: float) -> float:
    return value if isinstance(value, float | int) else otherwise


def verdict_on(held: HeldJob, now: float) -> Verdict | None:
    """What is to be done about a job now; the graver first."""
    if held.ctx.stopping is Stop.LEASE_LOST:
        return Verdict.LEASE
    if now >= held.end_at:
        return held.overran or Verdict.STOP
    if held.is_ending or held.overran:
        # Its function has ended; how long the database takes to store that is not the job's fault.
        return None
    return _overrun(held, now)


def _overrun(held: HeldJob, now: float) -> Verdict | None:
    """Of its times, the one that is used up."""
    if (loading := held.loading) is not None:
        return Verdict.MODEL_LOAD if now >= loading.until else None
    if now >= held.began + held.wall_s:
        return Verdict.WALL_CLOCK
    if now >= held.silent_at:
        return Verdict.STALL
    return None


def overrun_in_words(verdict: Verdict, held: HeldJob, now: float) -> str:
    """What a job did that has used up its budget."""
    if verdict is Verdict.MODEL_LOAD and (loading := held.loading) is not None:
        return f"the model {loading.model!r} was not loaded within {loading.timeout_s:g} s"
    if verdict is Verdict.WALL_CLOCK:
        return f"it ran for {now - held.began:.1f} s, its limit is {held.wall_s:g} s"
    return f"it said nothing for {held.budget.stall_s:g} s"


def next_verdict_at(held: HeldJob) -> float:
    """When `verdict_on` may have something new to say, if nothing happens before."""
    if held.is_ending or held.overran:
        return held.end_at
    if (loading := held.loading) is not None:
        return min(held.end_at, loading.until)
    return max(held.leave_until, min(held.end_at, held.began + held.wall_s, held.silent_at))
