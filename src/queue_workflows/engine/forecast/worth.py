"""When a guess would be worthless, and why: better none than one that nobody should go by."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Final

from queue_workflows.engine.forecast.history import ENOUGH, History
from queue_workflows.engine.forecast.plays import STARVED, NoGuess, Span
from queue_workflows.engine.forecast.replay import Load

# Of the work before it so much may be of tasks that are not known.
_UNKNOWN_SHARE: Final = 0.1
# A range is worth nothing of which the end is so many times its beginning, unless both are soon.
_WIDEST: Final = 10.0
_SOON_S: Final = 10.0
# What of a higher priority comes in, as a share of what the fleet can do.
_FULL: Final = 0.95


def of_task(history: History, task: str) -> NoGuess | None:
    """Whether too few of a task have ended to say how long one takes, or it waits in between."""
    if history.parks(task):
        return NoGuess("durable", f"{task} sleeps or waits in between, and nobody knows for how long")
    if history.knows(task):
        return None
    return NoGuess("unknown_task", f"{_seen(history.count(task))} of {task} ended lately: it takes {ENOUGH}")


def of_work(load: Load, history: History) -> NoGuess | None:
    """Whether too much of what is before is of tasks that are not known."""
    tasks = Counter(row.task for row in load.waiting) + Counter(row.task for row in load.running)
    parks = {task: count for task, count in tasks.items() if history.parks(task)}
    if sum(parks.values()) > _UNKNOWN_SHARE * tasks.total():
        most = max(parks, key=parks.__getitem__)
        share = sum(parks.values()) / tasks.total()
        return NoGuess("durable", f"{share:.0%} of the work sleeps or waits in between, as {most} does")
    unknown = {task: count for task, count in tasks.items() if not history.knows(task)}
    share = sum(unknown.values()) / max(1, tasks.total())
    if share <= _UNKNOWN_SHARE:
        return None
    most = max(unknown, key=unknown.__getitem__)
    seen = _seen(history.count(most))
    text = f"{share:.0%} of the work is of tasks that are not known: of {most} {seen} ended lately, it takes"
    return NoGuess("unknown_work", f"{text} {ENOUGH}")


def of_arrivals(load: Load, history: History, priority: int) -> NoGuess | None:
    """Whether what comes in before a priority leaves no worker to it."""
    busy = sum(kind.per_s * history.mean_s(kind.task) for kind in load.arriving if kind.priority > priority)
    if load.all_slots and busy < _FULL * load.all_slots:
        return None
    return STARVED if load.all_slots else None


def of_span(span: Span) -> NoGuess | None:
    """Whether a range is too wide to go by."""
    if span.high_s <= max(_SOON_S, _WIDEST * span.low_s):
        return None
    text = f"durations differ too much: it would be between {_said(span.low_s)} and {_said(span.high_s)}"
    return NoGuess("too_wide", text)


def first(reasons: Iterable[NoGuess | None]) -> NoGuess | None:
    """The first of these that holds."""
    return next((reason for reason in reasons if reason is not None), None)


def _seen(count: int) -> str:
    return "none" if count == 0 else f"only {count}"


def _said(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"
