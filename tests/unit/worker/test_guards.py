"""What the guards decide about a held job, told the time."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest

from queue_workflows.engine.execution.context import Loading
from queue_workflows.engine.execution.guards import Budget, HeldJob, Verdict, next_verdict_at, verdict_on


def held(
    *,
    last_beat: float | None = None,
    end_at: float = math.inf,
    is_ending: bool = False,
    loading: Loading | None = None,
    ready_at: float = -math.inf,
    takes_s: float = 0.0,
) -> HeldJob:
    """A job begun at 0 that may run for 10 s and be silent for 3."""
    ctx: Any = SimpleNamespace(
        stopping=None, last_beat=last_beat, loading=loading, ready_at=ready_at, takes_s=takes_s
    )
    job: Any = SimpleNamespace(id=1)
    return HeldJob(job, ctx, Budget(10.0, 3.0), 0.0, math.inf, end_at=end_at, is_ending=is_ending)


@pytest.mark.parametrize(
    ("one", "at", "verdict"),
    [
        (held(), 10.0, Verdict.WALL_CLOCK),
        (held(last_beat=1.0), 4.0, Verdict.STALL),
        (held(end_at=2.0), 2.0, Verdict.STOP),
        # A load has a time of its own, however long the job itself may take, and the job begins after it.
        (held(loading=Loading("sdxl", 5.0, 60.0)), 65.0, Verdict.MODEL_LOAD),
        (held(loading=Loading("sdxl", 5.0, 60.0), end_at=20.0), 20.0, Verdict.STOP),
        (held(ready_at=40.0), 50.0, Verdict.WALL_CLOCK),
        # What ends by a timeout of its own may take that long, and never less than any other job.
        (held(takes_s=30.0), 30.0, Verdict.WALL_CLOCK),
        (held(takes_s=5.0), 10.0, Verdict.WALL_CLOCK),
        (held(ready_at=40.0, last_beat=41.0), 44.0, Verdict.STALL),
    ],
)
def test_each_strikes_at_its_time(one: HeldJob, at: float, verdict: Verdict) -> None:
    """Not before, then at once; and that is when the guard wakes for it."""
    assert verdict_on(one, at - 0.01) is None
    assert verdict_on(one, at) is verdict
    assert next_verdict_at(one) == at


def test_a_job_that_has_ended_is_not_timed_any_more() -> None:
    """While the database is away its end waits to be written, for which only a stop has no patience."""
    ending = held(last_beat=1.0, is_ending=True)
    assert verdict_on(ending, 1000.0) is None
    assert next_verdict_at(ending) == math.inf
    ending.finish_by(20.0)
    assert (verdict_on(ending, 19.0), verdict_on(ending, 20.0)) == (None, Verdict.STOP)
    assert next_verdict_at(ending) == 20.0
