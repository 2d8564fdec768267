"""How long jobs took, as it is drawn from, and when a guess would be worthless."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from queue_workflows.engine.forecast import worth
from queue_workflows.engine.forecast.history import BETWEEN_S, ENOUGH, Ended, History
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


def test_a_duration_is_how_long_a_slot_is_taken() -> None:
    """While others waited each slot was in use: up to a quarter of a second is taken off, or added."""
    last = Ended("other", None, "w", 0.0, 0.0, ready_s=60.0)

    def mean_s(*rows: tuple[float, float], slots: int = 1) -> float:
        """Of jobs that began and ended so many seconds ago, while others waited."""
        ended = [last, *(Ended("task", None, "w", *row, ready_s=60.0) for row in rows)]
        history = History.of(ended, {"w": slots})
        return sum(history.drawn(Random(n)).trial("task", None).took_s for n in range(2000)) / 2000

    batches = [
        (0.2 * batch, 0.2 * batch - 0.002 * number) for batch in range(1, 6) for number in range(1, 101)
    ]
    assert mean_s(*batches) == pytest.approx(0.002, rel=0.1)
    slow = [(2.0 * number, 2.0 * number - 1.9) for number in range(1, 31)]
    assert mean_s(*slow) == pytest.approx(2.0, rel=0.02)
    assert mean_s(*slow, slots=9) == pytest.approx(1.9 + 0.25, rel=0.02)
    assert History.of([Ended("task", None, "w", 2.0, 1.0)]).mean_s("task") == 1.0


def test_a_slot_of_a_key_is_nobodys_between_two_jobs() -> None:
    """For as long as it was so while jobs of the key waited."""
    rows = [Ended("task", "k", "w", 1.1 * number + 1.0, 1.1 * number, created_s=60.0) for number in range(30)]
    history = History.of(rows, caps={"k": 1})
    assert history.between_s("k") == pytest.approx(0.1, rel=0.1)
    # While others waited for a worker too, a key's slot may have been nobody's for want of one.
    crowded = [
        Ended("task", None, "w", 8.0, 7.0, ready_s=60.0),
        *(replace(one, ended_s=one.began_s) for one in rows),
    ]
    assert History.of(crowded, caps={"k": 1}).between_s("k") == BETWEEN_S
    assert history.between_s("other") == BETWEEN_S


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
    sleeps = History.of(
        [*ended(ENOUGH, 1.0), *(replace(one, was_parked=True) for one in ended(30, 1.0, "sleeps"))]
    )
    assert (worth.of_task(sleeps, "task"), worth.of_task(sleeps, "sleeps").code) == (None, "durable")
    half = Load([Waiting("", "task"), Waiting("", "sleeps")], (), {"a": 2})
    assert worth.of_work(half, sleeps).text == "50% of the work sleeps or waits in between, as sleeps does"
    busy = Load([], (), {"a": 2}, arriving=[Arriving("task", 7, 1.95)])
    assert worth.of_arrivals(busy, history, 5).code == "starved"
    assert worth.of_arrivals(busy, history, 7) is None
