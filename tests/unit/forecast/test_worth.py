"""How long jobs took, as it is drawn from, and when a guess would be worthless."""

from __future__ import annotations

from random import Random

import pytest

from queue_workflows.engine.forecast import worth
from queue_workflows.engine.forecast.history import ENOUGH, Ended, History
from queue_workflows.engine.forecast.plays import Span
from queue_workflows.engine.forecast.replay import Arriving, Load, Waiting


def ended(
    count: int, took_s: float, task: str = "task", key: str | None = None, worker: str = "w"
) -> list[Ended]:
    """Jobs that ran one after the other, the last first."""
    return [Ended(task, key, worker, n * took_s + took_s, n * took_s) for n in range(count)]


def test_a_key_has_durations_of_its_own_where_enough_are_known() -> None:
    """Else its jobs take as long as any of their task."""
    rows = [*ended(ENOUGH, 1.0, key="quick"), *ended(ENOUGH, 9.0), *ended(3, 50.0, key="rare")]
    drawn = History.of(rows).drawn(Random(1))
    assert drawn.trial("task", "quick").took_s < 2
    assert {round(drawn.trial("task", "rare").took_s) > 2 for _ in range(99)} == {True, False}
    assert drawn.rest_s("task", "quick", 0.4) < 1
    assert drawn.rest_s("task", "quick", 70.0) == 70.0


def test_what_waited_in_its_worker_is_taken_off() -> None:
    """Up to a quarter of a second: a worker is at no more jobs than it has slots."""
    claimed_together = [Ended("task", None, "w", 2.0, 2.0 - 0.02 * n) for n in range(1, 101)]
    history = History.of(claimed_together, {"w": 1})
    assert history.mean_s("task") == pytest.approx(1.01 - 0.25, abs=0.02)
    quick = [Ended("task", None, "w", 2.0, 2.0 - 0.002 * n) for n in range(1, 101)]
    assert History.of(quick, {"w": 1}).mean_s("task") == pytest.approx(0.002, abs=0.0005)
    assert History.of(quick).mean_s("task") == pytest.approx(0.101, abs=0.001)


def test_when_a_guess_is_worth_nothing() -> None:
    """Too few of a task, too much unknown, a range too wide, others that come first all the time."""
    history = History.of([*ended(ENOUGH, 1.0), *ended(3, 1.0, task="rare")])
    assert worth.of_task(history, "task") is None
    assert worth.of_task(history, "rare").text == f"only 3 of rare ended lately: it takes {ENOUGH}"
    load = Load([Waiting("", "task")] * 8 + [Waiting("", "rare")] * 2, (), {"a": 2})
    assert worth.of_work(load, history).text.startswith("20% of the work is of tasks that are not known")
    assert (
        worth.of_work(Load([Waiting("", "task")] * 99 + [Waiting("", "rare")], (), {"a": 2}), history) is None
    )
    assert worth.of_span(Span(100.0, 200.0, 900.0)) is None
    assert worth.of_span(Span(0.0, 1.0, 9.0)) is None
    assert worth.of_span(Span(2.0, 20.0, 90.0)).code == "too_wide"
    busy = Load([], (), {"a": 2}, arriving=[Arriving("task", 7, 1.95)])
    assert worth.of_arrivals(busy, history, 5).code == "starved"
    assert worth.of_arrivals(busy, history, 7) is None
