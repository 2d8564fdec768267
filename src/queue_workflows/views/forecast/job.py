"""When one job will begin and end, as far as a guess is worth anything; else why there is none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import psycopg

from queue_workflows.config import HOOKS_QUEUE
from queue_workflows.engine.explain.history import held_for
from queue_workflows.engine.explain.job import title_of
from queue_workflows.engine.forecast import worth
from queue_workflows.engine.forecast.plays import ROWS_PLAYED, NoGuess, Span, foretell
from queue_workflows.engine.forecast.replay import Beyond, Load, Waiting
from queue_workflows.repositories.explain.explain_job import Circumstances
from queue_workflows.repositories.forecast.ended import LOOKED_AT
from queue_workflows.repositories.forecast.queue_now import COUNTED, QueueNow, QueueNowRepository
from queue_workflows.repositories.limits.lanes import LIMIT_FULL
from queue_workflows.repositories.limits.overview import COUNTED as COUNTED_IN_LANE
from queue_workflows.states import JOB_TERMINAL, JobStatus
from queue_workflows.views.forecast.drain import (
    BRIEF_COUNTED,
    BRIEF_LOOKED_AT,
    BRIEF_MOST,
    BRIEF_PLAYED,
    MOST,
    json_of_no_guess,
    json_of_span,
)
from queue_workflows.views.forecast.loads import (
    arrivals,
    history_of,
    load_of,
    needs_of,
    places_of_key,
    places_of_line,
)


@dataclass(frozen=True, slots=True)
class JobForecast:
    """In how long a job begins and ends; where a span is missing `no_guess` says why, if it has not begun."""

    begins: Span | None = None
    ends: Span | None = None
    no_guess: NoGuess | None = None


def job_forecast(
    connection: psycopg.Connection[Any], there: Circumstances, *, stale_s: float, brief: bool = False
) -> JobForecast | None:
    """A job's start and end; None where it is over. Read within the snapshot of its circumstances."""
    job = there.job
    if job.status in JOB_TERMINAL:
        return None
    if (why := _out_of_line(there)) is not None:
        return JobForecast(no_guess=why)
    now = QueueNowRepository(connection).read(
        job.queue,
        most=BRIEF_MOST if brief else MOST,
        stale_s=stale_s,
        looked_at=BRIEF_LOOKED_AT if brief else LOOKED_AT,
        counted=BRIEF_COUNTED if brief else COUNTED,
    )
    return forecast_of(now, there, rows_played=BRIEF_PLAYED if brief else ROWS_PLAYED)


def forecast_of(now: QueueNow, there: Circumstances, *, rows_played: int = ROWS_PLAYED) -> JobForecast:
    """A job's start and end, from its queue as it was read."""
    if (why := _out_of_line(there)) is not None:
        return JobForecast(no_guess=why)
    if there.job.status == JobStatus.RUNNING:
        return _of_running(now, there)
    return _of_waiting(now, there, rows_played=rows_played)


def json_of(found: JobForecast | None) -> dict[str, Any] | None:
    """What `qwf explain JOB --json` says by `estimate`."""
    if found is None:
        return None
    return {
        "starts_in": json_of_span(found.begins),
        "ends_in": json_of_span(found.ends),
        "no_guess": json_of_no_guess(found.no_guess),
    }


def _name(there: Circumstances) -> str:
    return f"{there.family.name}:{there.job.id}"


def _out_of_line(there: Circumstances) -> NoGuess | None:
    """What keeps a job from the line, of which nobody knows for how long."""
    job = there.job
    if job.status == JobStatus.AWAITING_INPUT:
        return NoGuess(
            "awaits", "it waits for an answer or for other runs, of which nobody knows when they come"
        )
    if job.hold_reason is not None and job.hold_reason != LIMIT_FULL:
        held = held_for(job.hold_reason, job.hold_key)
        return NoGuess("held", f"it is on hold: {held}, and nobody knows for how long")
    if there.ahead > there.counted_ahead:
        return NoGuess("too_far", f"more than {there.counted_ahead:,} jobs are before it")
    if there.limit is not None and there.limit.before >= COUNTED_IN_LANE:
        return NoGuess("too_far", f"at least {COUNTED_IN_LANE:,} jobs of its key are before it")
    return None


def _of_running(now: QueueNow, there: Circumstances) -> JobForecast:
    history, own = history_of(now), _name(there)
    row = next((one for one in load_of(now, history).running if one.name == own), None)
    if row is None:
        return JobForecast(no_guess=NoGuess("no_worker", "no live worker is known to be at it"))
    if (why := worth.of_task(history, row.task)) is not None:
        return JobForecast(no_guess=why)
    if history.longest_s(row.task) <= row.elapsed_s:
        text = f"it runs longer than any of {history.count(row.task)} {row.task} that ended lately"
        return JobForecast(no_guess=NoGuess("longer_than_any", text))
    (span,) = foretell(Load((), [replace(row, host=None, keys=row.keys[:1])]), history).running
    why = worth.of_span(span)
    return JobForecast(ends=None if why else span, no_guess=why)


def _of_waiting(now: QueueNow, there: Circumstances, *, rows_played: int) -> JobForecast:
    history, own = history_of(now), _name(there)
    whole = load_of(now, history)
    place = next((place for place, row in enumerate(whole.waiting) if row.name == own), None)
    load, row = _before(now, whole, place, there)
    before = replace(load, waiting=load.waiting[:-1])
    why = worth.first((worth.of_work(before, history), worth.of_arrivals(load, history, row.priority)))
    if why is not None and load.all_slots:
        return JobForecast(no_guess=why)
    told = foretell(load, history, rows_played=rows_played)
    if told.never:
        never = next((one for one, places in told.never.items() if len(load.waiting) - 1 in places), None)
        if never is not None:
            return JobForecast(no_guess=never)
    begins, ends = told.begins[-1], told.ends[-1]
    if begins is None:
        return JobForecast(no_guess=NoGuess("unknown", "most plays of it come to no end"))
    begins, ends = _farther(begins, ends, next(iter(told.beyond), None))
    if (why := worth.of_span(begins)) is not None:
        return JobForecast(no_guess=why)
    why = worth.of_task(history, row.task) or (None if ends is None else worth.of_span(ends))
    return JobForecast(begins, None if why else ends, why)


def _before(now: QueueNow, whole: Load, place: int | None, there: Circumstances) -> tuple[Load, Waiting]:
    """Of a load what a job waits for, with the job at the end; of one farther back all that was read."""
    if place is None:
        own = _own(there)
        waiting = [row for row in whole.waiting if row.priority >= own.priority]
        beyond = [_between(now, waiting, there)]
    else:
        own = whole.waiting[place]
        before = (*whole.waiting[:place], *(row for row in whole.waiting[place + 1 :] if _passes(row, own)))
        waiting, beyond = [row for row in before if row.priority >= own.priority], []
    least = own.priority + (own.due_s <= 0)
    arriving = [one for one in arrivals(now) if one.priority >= least]
    lane = {whole.waiting[at].name for at in whole.in_lanes}
    rows = [*waiting, own]
    in_lanes = frozenset(
        at for at, row in enumerate(rows) if row.name in lane or (row is own and _is_in_lane(there))
    )
    return replace(whole, waiting=rows, arriving=arriving, beyond=beyond, in_lanes=in_lanes), own


def _is_in_lane(there: Circumstances) -> bool:
    return there.job.hold_reason == LIMIT_FULL and there.limit is not None and there.limit.limit is not None


def _own(there: Circumstances) -> Waiting:
    """A job that was not read with its queue."""
    job = there.job
    host = getattr(job, "pinned_host", None) if job.queue == HOOKS_QUEUE else None
    due_s = 0.0 if job.status == JobStatus.QUEUED or job.hold_reason is not None else _until(there)
    return Waiting("", title_of(job), job.priority, needs_of(job), None if host == "*" else host, due_s)


def _until(there: Circumstances) -> float:
    return max(0.0, (there.job.run_at - there.now).total_seconds())


def _between(now: QueueNow, waiting: Sequence[Waiting], there: Circumstances) -> Beyond:
    """What stands before a job behind all that was read of its lane or of the line."""
    key = there.job.limit_key
    if there.job.hold_reason is not None and there.limit is not None and key is not None:
        read = sum(job.limit_key == key for job in now.lane)
        return Beyond(places_of_key(key, waiting), max(0, there.limit.before - read))
    places = places_of_line(now, waiting) if there.ahead > len(now.line) else []
    return Beyond(places, max(0, there.ahead - len(now.line)))


def _passes(row: Waiting, own: Waiting) -> bool:
    """Whether a row that stands behind another may be claimed before it."""
    return row.priority > own.priority or (row.priority == own.priority and row.due_s < own.due_s)


def _farther(begins: Span, ends: Span | None, beyond: Span | None) -> tuple[Span, Span | None]:
    """Of a job behind all that was played: when what stands before it has begun too."""
    if beyond is None:
        return begins, ends
    far = Span(*(max(getattr(begins, name), getattr(beyond, name)) for name in _SPAN))
    if ends is None:
        return far, None
    return far, Span(*(getattr(far, name) + getattr(ends, name) - getattr(begins, name) for name in _SPAN))


_SPAN: Final = ("low_s", "middle_s", "high_s")
