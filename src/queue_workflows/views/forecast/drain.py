"""When all that waits on a queue will be done: as it is, and with another fleet beside it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import psycopg

from queue_workflows.engine.forecast import worth
from queue_workflows.engine.forecast.plays import NO_WORKER, ROWS_PLAYED, Foretold, NoGuess, Span, foretell
from queue_workflows.engine.forecast.replay import Load
from queue_workflows.errors import PayloadError
from queue_workflows.repositories.forecast.queue_now import QueueNow, QueueNowRepository
from queue_workflows.repositories.limits.lanes import LIMIT_FULL
from queue_workflows.repositories.reports.queue_statistics import StatisticsRepository
from queue_workflows.views.forecast.changes import Changes
from queue_workflows.views.forecast.loads import NOTHING_CHANGED, arrivals, fleet_of, history_of, load_of

# So many waiting jobs are played; of more the time is that of these, as many times as there are more.
MOST: Final = 2_000
# In brief, as a page has it: jobs that are read, rows that are played, ended jobs that are looked at, queues.
BRIEF_MOST: Final = 300
BRIEF_PLAYED: Final = 6_000
BRIEF_LOOKED_AT: Final = 1_000
BRIEF_COUNTED: Final = 100_000
_BRIEF_QUEUES: Final = 2
# Queues that are looked at where none is named.
QUEUES: Final = 20
_NOTHING: Final = Span(0.0, 0.0, 0.0)


@dataclass(frozen=True, slots=True)
class NeverRuns:
    """Jobs that would never run, and why; `first` is one of them."""

    code: str
    text: str
    jobs: int
    first: str


@dataclass(frozen=True, slots=True)
class Drain:
    """A fleet, and when what waits would be done with it; without a span `no_guess` says why."""

    workers: int
    slots: int
    span: Span | None
    no_guess: NoGuess | None
    never: Sequence[NeverRuns] = ()


@dataclass(frozen=True, slots=True)
class QueueForecast:
    """A queue's end now and then; of `waiting` jobs, at least, so many were played.

    With `is_later_cut` more is for later than was looked at; `on_hold` wait for something else than a worker
    or a limit, and are not played.
    """

    queue: str
    waiting: int
    running: int
    played: int
    arriving_per_s: float
    now: Drain
    then: Drain | None
    is_later_cut: bool = False
    on_hold: int = 0

    @property
    def is_scaled(self) -> bool:
        """Whether more waits than was played."""
        return self.waiting > self.played

    @property
    def last(self) -> Drain:
        """The one that was asked about."""
        return self.then or self.now


@dataclass(frozen=True, slots=True)
class WhatIf:
    """Changes, and the queues that they are about; no job of these has one of the `unused` keys."""

    changes: Changes
    queues: Sequence[QueueForecast]
    unused: Sequence[str] = ()


def queue_forecast(
    now: QueueNow, changes: Changes | None = None, *, rows_played: int = ROWS_PLAYED, on_hold: int = 0
) -> QueueForecast:
    """A queue as it was read, without changes and with them."""
    played = len(now.line) + len(now.lane) + len(now.later)
    return QueueForecast(
        queue=now.queue,
        waiting=now.waiting,
        running=len(now.at_work),
        played=played,
        arriving_per_s=sum(one.per_s for one in arrivals(now)),
        now=_drain(now, NOTHING_CHANGED, rows_played),
        then=None if changes is None else _drain(now, changes, rows_played),
        is_later_cut=now.is_later_cut,
        on_hold=on_hold,
    )


def _drain(now: QueueNow, changes: Changes, rows_played: int) -> Drain:
    fleet, history = fleet_of(now, changes), history_of(now)
    load = load_of(now, history, changes)
    slots = sum(fleet.slots.values())
    if not load.waiting and not load.running:
        return Drain(fleet.workers, slots, _NOTHING, None)
    if not slots and load.waiting:
        return Drain(fleet.workers, slots, None, NO_WORKER, (_all_of(load),))
    if not now.is_counted:
        text = f"at least {now.waiting:,} jobs wait, and nobody counts further"
        return Drain(fleet.workers, slots, None, NoGuess("too_many", text))
    lowest = min((row.priority for row in load.waiting), default=0)
    if why := worth.first((worth.of_work(load, history), worth.of_arrivals(load, history, lowest))):
        return Drain(fleet.workers, slots, None, why)
    told = foretell(load, history, rows_played=rows_played)
    never = _never(load, told)
    span = told.drain
    if span is None:
        why = next(iter(told.never), NoGuess("unknown", "nothing of it ends"))
        return Drain(fleet.workers, slots, None, why, never)
    why = worth.of_span(span)
    return Drain(fleet.workers, slots, None if why else span, why, never)


def _all_of(load: Load) -> NeverRuns:
    return NeverRuns(NO_WORKER.code, NO_WORKER.text, len(load.waiting), load.waiting[0].name)


def _never(load: Load, told: Foretold) -> list[NeverRuns]:
    return [
        NeverRuns(why.code, why.text, len(places), load.waiting[places[0]].name)
        for why, places in told.never.items()
    ]


def read_queue(connection: psycopg.Connection[Any], queue: str, *, stale_s: float) -> QueueNow:
    """A queue as a forecast needs it; read within one snapshot, so that its parts fit together."""
    return QueueNowRepository(connection).read(queue, most=MOST, stale_s=stale_s)


def brief_forecasts(
    connection: psycopg.Connection[Any], changes: Changes, *, stale_s: float
) -> list[QueueForecast]:
    """What changes would do to the queues that they are about, as a page has it, from less; few of these."""
    reader = QueueNowRepository(connection)
    of_keys = [queue for key in changes.caps for queue in reader.queues_of(key, most=BRIEF_MOST)]
    queues = list(dict.fromkeys((*changes.queues, *of_keys)))[:_BRIEF_QUEUES]
    read = [
        reader.read(queue, most=BRIEF_MOST, stale_s=stale_s, looked_at=BRIEF_LOOKED_AT, counted=BRIEF_COUNTED)
        for queue in queues
    ]
    found = [queue_forecast(one, changes, rows_played=BRIEF_PLAYED) for one in read]
    return [one for one in found if one.waiting]


def read_what_if(
    connection: psycopg.Connection[Any],
    changes: Changes,
    *,
    queues: Sequence[str] = (),
    stale_s: float,
) -> WhatIf:
    """What waits on these queues, now and after changes; without names on those that the changes are about.

    A changed cap may be about any queue on which something waits.
    """
    known = _known(connection, stale_s)
    named = list(dict.fromkeys((*queues, *changes.queues)))
    for queue in named:
        if queue not in known:
            seen = ", ".join(sorted(known)) or "none"
            raise PayloadError(
                f"there is no queue {queue!r}: nothing waits or runs on it, and no worker serves it",
                path="queue",
                advice=f"the queues there are: {seen}",
            )
    if not queues and (changes.caps or not named):
        named = list(dict.fromkeys((*named, *(queue for queue, (waits, _) in known.items() if waits))))[
            :QUEUES
        ]
    is_changed = changes != NOTHING_CHANGED
    found = [read_queue(connection, queue, stale_s=stale_s) for queue in named]
    for one in found:
        _check_hosts(one, changes)
    return WhatIf(
        changes,
        [queue_forecast(one, changes if is_changed else None, on_hold=known[one.queue][1]) for one in found],
        [key for key in changes.caps if not any(_has_key(one, key) for one in found)],
    )


def _check_hosts(now: QueueNow, changes: Changes) -> None:
    """A host without a worker of the queue is a slip, of which nobody should read that it costs nothing."""
    there = sorted({one.host_label for one in now.workers})
    for queue, host in sorted(changes.off):
        if queue == now.queue and host not in there:
            raise PayloadError(
                f"--off {f'{queue}@{host}'!r}: no worker of the queue is there",
                path="--off",
                advice=f"the hosts with workers of it: {', '.join(there) or 'none'}",
            )


def _has_key(now: QueueNow, key: str) -> bool:
    prefix = key.removesuffix("*")
    return any(one == key or (prefix != key and one.startswith(prefix)) for one in now.caps)


def _known(connection: psycopg.Connection[Any], stale_s: float) -> dict[str, tuple[int, int]]:
    """The queues that there are, each with how much waits, and how much of that is on hold."""
    waits: dict[str, tuple[int, int]] = {}
    for one in StatisticsRepository(connection).read(stale_s=stale_s, most=MOST).queues:
        count, on_hold = waits.get(one.queue, (0, 0))
        held = one.held.total()
        count += one.queued + one.scheduled + held
        waits[one.queue] = count, on_hold + held - one.held[LIMIT_FULL]
    return waits


def json_of(seen: WhatIf) -> dict[str, Any]:
    """What `qwf what-if --json` prints."""
    changes = seen.changes
    return {
        "changes": {
            "workers": dict(changes.workers),
            "limits": dict(changes.caps),
            "off": [{"queue": queue, "host_label": host} for queue, host in sorted(changes.off)],
            "paused": sorted(changes.paused),
        },
        "queues": [
            {
                "queue": one.queue,
                "waiting": one.waiting,
                "at_least": one.is_scaled or one.is_later_cut,
                "running": one.running,
                "on_hold": one.on_hold,
                "played": one.played,
                "arriving_per_s": round(one.arriving_per_s, 3),
                "now": _json_of_drain(one.now),
                "then": None if one.then is None else _json_of_drain(one.then),
            }
            for one in seen.queues
        ],
    }


def _json_of_drain(one: Drain) -> dict[str, Any]:
    return {
        "workers": one.workers,
        "slots": one.slots,
        "drains_in": json_of_span(one.span),
        "no_guess": json_of_no_guess(one.no_guess),
        "never": [
            {"code": why.code, "text": why.text, "jobs": why.jobs, "first": why.first} for why in one.never
        ],
    }


def json_of_span(span: Span | None) -> dict[str, float] | None:
    """A span for programs: in how many seconds, at the tenth, the half and nine tenths of all plays."""
    if span is None:
        return None
    return {"p10_s": round(span.low_s, 3), "p50_s": round(span.middle_s, 3), "p90_s": round(span.high_s, 3)}


def json_of_no_guess(why: NoGuess | None) -> dict[str, str] | None:
    """Why there is no guess, for programs."""
    return None if why is None else {"code": why.code, "text": why.text}
