"""The judge: which of the jobs in hand do not end by themselves, and what is to be done about each.

    wait ──its worker stops──> STOP: asked to stop, where it can be
      │
      ├─ overran, beside others ──> ASK: asked first, as the others would be given back for it
      ├─ lost its lease, as a task on a loop ──> wait: it was cancelled, and has a second to go
      ├─ overran, or told and not gone in time ──> END: the process ends, and with it the job
      ├─ its worker was told to stop, perhaps by it ──> CRASH: nothing is given back
      └─ no job, but an unload that hangs ──> UNLOAD: the process ends

A ruling is a value. The guardian has it carried out by `process_end`, which asks again under the lock of the
claims, as the job may be over by then.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from queue_workflows.engine.execution.guards import HeldJob, Verdict, verdict_on
from queue_workflows.engine.outcomes import Stop
from queue_workflows.gpu.cache import ModelCache
from queue_workflows.roles.worker.guardian.held_jobs import HeldJobs
from queue_workflows.roles.worker.guardian.stop_requests import StopRequests

# How soon to look again at a job that another one keeps from going on.
_BARRED_S: Final = 0.5
# How long a task that was cancelled for its lost lease may take over its end.
_LEAVES_WITHIN_S: Final = 1.0
# What is said of a job for its times, or would be.
_BLAMED: Final = (None, Verdict.WALL_CLOCK, Verdict.STALL, Verdict.MODEL_LOAD)


class Action(Enum):
    """What is to be done about a job, or about an unload between jobs."""

    STOP = auto()
    ASK = auto()
    END = auto()
    CRASH = auto()
    UNLOAD = auto()


@dataclass(frozen=True, slots=True)
class Ruling:
    """What is to be done about a job, and why; there is none where an unload hangs."""

    action: Action
    held: HeldJob | None = None
    verdict: Verdict = Verdict.STOP


class Judge:
    """Rules on what a guardian's worker holds, told the time, in the guardian's thread."""

    def __init__(
        self,
        holdings: HeldJobs,
        stops: StopRequests,
        *,
        models: ModelCache | None,
        load_timeout_s: float,
        is_barred: Callable[[HeldJob], bool] | None,
    ) -> None:
        """`is_barred` is given where jobs share the process: whether another keeps one from going on."""
        self._holdings = holdings
        self._stops = stops
        self._models = models
        self._load_timeout_s = load_timeout_s
        self._is_barred = is_barred

    def rulings(self, now: float, *, is_stopping: bool) -> Iterator[Ruling]:
        """What is to be done now, one after the other: each is carried out before the next is thought of."""
        # A worker that hangs in an unload between jobs beats on, and looks idle to all.
        if not (jobs := self._holdings.all()) and self._unload_hangs(now):
            yield Ruling(Action.UNLOAD)
        for held in jobs:
            if now >= held.ask_at:
                yield Ruling(Action.STOP, held)
            if (verdict := self.verdict_on(held, now)) is None or self._may_leave_its_loop(
                held, verdict, now
            ):
                continue
            if self._is_barred is not None and verdict in {Verdict.WALL_CLOCK, Verdict.STALL}:
                if self._is_barred(held):
                    # The one that bars it has a budget of its own, and will be judged by that.
                    held.leave_until = now + _BARRED_S
                    continue
                if held.overran is None:
                    yield Ruling(Action.ASK, held, verdict)
                    continue
            is_crash = verdict is Verdict.STOP and is_stopping and self._may_have_stopped_its_worker(held)
            yield Ruling(Action.CRASH if is_crash else Action.END, held, verdict)

    def verdict_on(self, held: HeldJob, now: float) -> Verdict | None:
        """The job's own, but while it waits for another model's unload: that uses up nothing of its times."""
        verdict = verdict_on(held, now)
        if verdict not in _BLAMED or held.is_ending or (hangs := self._unload_hangs(now)) is None:
            return verdict
        if hangs or verdict is Verdict.MODEL_LOAD:
            return Verdict.MODEL_UNLOAD
        held.leave_until = now + _BARRED_S
        return None

    def _may_leave_its_loop(self, held: HeldJob, verdict: Verdict, now: float) -> bool:
        """Whether a lost job can still be taken off its loop: its siblings need not go with it."""
        if verdict is not Verdict.LEASE or not held.is_async or self._is_barred is None:
            return False
        if math.isinf(held.lost_at):
            held.lost_at = now
        held.leave_until = held.lost_at + _LEAVES_WITHIN_S
        return now < held.leave_until

    def _unload_hangs(self, now: float) -> bool | None:
        """Whether an unload takes longer than it may; None if there is none."""
        unloading = None if self._models is None else self._models.unloading
        if unloading is None:
            return None
        return now >= unloading[1] + self._load_timeout_s

    def _may_have_stopped_its_worker(self, held: HeldJob) -> bool:
        """Whether a job may have sent the stop that it outlasts; one that is cancelled is done with."""
        return held.ctx.stopping is not Stop.CANCEL and self._stops.is_a_strangers
