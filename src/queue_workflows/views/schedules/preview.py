"""The next ticks of a schedule, or of an expression that is none yet."""

from __future__ import annotations

import shlex
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from itertools import islice
from typing import Any, Final

from queue_workflows.engine.schedules.cron import is_moved, ticks_after, zone_of
from queue_workflows.engine.schedules.due_ticks import begins_at
from queue_workflows.errors import PayloadError, UnknownSchedule
from queue_workflows.repositories.schedules.schedules import (
    ScheduleRepository,
    cron_expression,
    state_of,
    time_zone,
)
from queue_workflows.repositories.schedules.ticks import TickRepository
from queue_workflows.repositories.sql import checks as check
from queue_workflows.repositories.sql.connection import Handle

USUAL: Final = 10
MOST: Final = 10_000
# Every second, minute and hour by its number takes half of it.
LONGEST_CRON: Final = 1_000
# Nearer to the ends of the calendar a time zone leads beyond them.
YEARS: Final = (1900, 9000)


@dataclass(frozen=True, slots=True)
class Tick:
    """A tick in UTC and by the zone's clocks, when its job begins, and what the clock's jumps do with it."""

    tick_at: datetime
    local: datetime
    begins_at: datetime
    remark: str | None


@dataclass(frozen=True, slots=True)
class SchedulePreview:
    """The ticks of a schedule; `name` None is an expression, `state` other than on ticks no more."""

    name: str | None
    cron: str
    timezone: str
    jitter_s: float
    state: str
    ticks: tuple[Tick, ...]


def preview_of_schedule(
    conn: Handle, name: str, *, after: datetime | None = None, count: int = USUAL
) -> SchedulePreview:
    """The ticks of the schedule after a moment, which without a zone is of the schedule's, or after now."""
    found = ScheduleRepository(conn).fetch(name)
    now = TickRepository(conn).now()
    if found is None:
        raise UnknownSchedule(name)
    return _preview(
        name, found.cron, found.timezone, found.jitter_s, state_of(found), after=after or now, count=count
    )


def preview_of_expression(
    cron: str, timezone: str = "UTC", *, after: datetime | None = None, count: int = USUAL
) -> SchedulePreview:
    """The ticks that the expression would have; asks no database."""
    return _preview(None, cron, timezone, 0.0, "on", after=after or datetime.now(UTC), count=count)


def _preview(
    name: str | None, cron: str, timezone: str, jitter_s: float, state: str, *, after: datetime, count: int
) -> SchedulePreview:
    if len(cron) > LONGEST_CRON:
        raise PayloadError(
            f"cron {cron!r:.80} has {len(cron):,} characters",
            path="cron",
            advice="write ranges, as in `0-59`",
        )
    cron_expression(cron)
    zone = zone_of(time_zone(timezone))
    since = after if after.tzinfo else after.replace(tzinfo=zone)
    found = islice(ticks_after(cron, timezone, since), check.whole("count", count, 1, MOST))
    ticks = tuple(
        Tick(
            tick,
            tick.astimezone(zone),
            begins_at(name or "", tick, jitter_s),
            _remark(cron, timezone, tick) or None,
        )
        for tick in found
    )
    return SchedulePreview(name, cron, timezone, jitter_s, state, ticks)


def _remark(cron: str, timezone: str, tick: datetime) -> str:
    """What the clock's jumps have to do with it."""
    local = tick.astimezone(zone_of(timezone))
    if is_moved(cron, timezone, tick):
        return "its time is left out; the clock jumps forward to here"
    if local.replace(fold=0).utcoffset() != local.replace(fold=1).utcoffset():
        return f"the {'second' if local.fold else 'first'} of two such times"
    return ""


def json_of(preview: SchedulePreview) -> list[dict[str, Any]]:
    """What `qwf schedule preview --json` prints."""
    return [asdict(tick) for tick in preview.ticks]


def command_of(preview: SchedulePreview, *, count: int = USUAL) -> str:
    """The command that shows it."""
    words = ["qwf", "schedule", "preview"]
    if preview.name is not None:
        words.append(preview.name)
    else:
        words += ["--cron", preview.cron, "--timezone", preview.timezone]
    words += ["--count", str(count)] if count != USUAL else []
    return shlex.join(words)
