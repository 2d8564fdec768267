"""Forecasts in words, for the command and the page."""

from __future__ import annotations

from collections.abc import Iterator

from queue_workflows.drawing.words import number_of, say_span
from queue_workflows.engine.forecast.plays import Span
from queue_workflows.views.forecast.drain import Drain, QueueForecast
from queue_workflows.views.forecast.job import JobForecast


def said_of_span(span: Span) -> str:
    """`in about 4m 10s (3m 2s to 6m)`, the range in which eight of ten plays come out."""
    if span.high_s < 1:
        return "within a second"
    return f"in about {say_span(span.middle_s)} ({say_span(span.low_s)} to {say_span(span.high_s)})"


def lines_of_job(found: JobForecast) -> Iterator[str]:
    """When a job begins and ends, or why nobody says so."""
    if found.begins is not None:
        yield f"starts {said_of_span(found.begins)}"
    if found.ends is not None:
        yield f"ends {said_of_span(found.ends)}"
    if found.no_guess is not None:
        what = "when it ends" if found.begins is not None else "when it will be done"
        yield f"no guess {what}: {found.no_guess.text}"


def said_of_drain(one: Drain) -> str:
    """When what waits is done, in a few words."""
    if one.span is None:
        return "no guess" if one.no_guess is None or not one.never else "never"
    return said_of_span(one.span) if one.span.high_s > 0 else "nothing waits"


def said_of_fleet(one: Drain) -> str:
    """How many workers with how many slots."""
    workers = number_of("worker", one.workers)
    return workers if one.slots == one.workers else f"{workers}, {number_of('slot', one.slots)}"


def notes_of(one: QueueForecast) -> Iterator[str]:
    """What there is to say beside the times: why there is none, what never runs, what was not played."""
    for when, drain in (("now", one.now), ("then", one.then)):
        if drain is None:
            continue
        for why in drain.never:
            yield f"{one.queue}, {when}: {number_of('job', why.jobs)} never, as {why.first}: {why.text}"
        if drain.no_guess is not None and not drain.never:
            yield f"{one.queue}, {when}: no guess: {drain.no_guess.text}"
    if one.is_scaled:
        yield (
            f"{one.queue}: of {one.waiting:,} jobs that wait {one.played:,} were played; the rest is taken to"
            " be like them"
        )
    if one.on_hold:
        are = "is" if one.on_hold == 1 else "are"
        jobs = number_of("job", one.on_hold)
        yield f"{one.queue}: {jobs} {are} on hold or asleep, and left out of these times"
    if one.is_later_cut:
        yield f"{one.queue}: more is for later than was looked at, which these times leave out"


def lines_of_queue(one: QueueForecast) -> Iterator[str]:
    """A queue's drain, now and then, for a preview."""
    yield f"{one.queue} drains {said_of_drain(one.now)} now" + (
        "" if one.then is None else f", {said_of_drain(one.then)} then"
    )
    yield from notes_of(one)
