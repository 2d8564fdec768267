"""The instants that a cron expression names in a time zone.

cronsim says which times of the wall clock match. The wall clock jumps, so what becomes of these times is
decided here, as Debian's cron does it:

- An expression with both minute and hour given (neither begins with `*`) means times of day: one that a
  jump forward leaves out comes at the first instant after the jump, once however many were left out, and one
  that a jump back repeats comes the first time only.
- Every other expression means intervals: what is left out does not come, and what is repeated comes twice.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, tzinfo
from itertools import islice, takewhile
from typing import Final, NamedTuple
from zoneinfo import ZoneInfo

from cronsim import CronSim

_SECOND: Final = timedelta(seconds=1)
_DAY: Final = timedelta(days=1)
# No clock of our time was put back by more than a day.
_LONGEST_BACK: Final = timedelta(hours=26)
_FIRST_WINDOW: Final = timedelta(minutes=1)


class _Stretch(NamedTuple):
    """A time, in naive UTC, in which the wall clock runs `offset` ahead of it and does not jump."""

    begin: datetime
    end: datetime
    offset: timedelta


def zone_of(name: str) -> tzinfo:
    """A time zone by its name; UTC needs no database of them."""
    return UTC if name == "UTC" else ZoneInfo(name)


def ticks_after(cron: str, timezone: str, after: datetime) -> Iterator[datetime]:
    """The ticks after a moment, in order, in UTC."""
    zone = zone_of(timezone)
    begin = after.astimezone(UTC).replace(tzinfo=None, microsecond=0)
    means_times_of_day = _means_times_of_day(cron)
    wall = begin + _offset(zone, begin)
    reached = wall
    if means_times_of_day:
        # What the clock already showed before it was put back has come.
        reached = max(wall, _shown_before(zone, begin) - _SECOND)
    sim = CronSim(cron, reached)
    match = _following(sim)
    reached = wall
    for stretch in _stretches(zone, begin):
        if match is None:
            return
        first = stretch.begin + stretch.offset
        if first < reached and not means_times_of_day:
            sim = CronSim(cron, first - _SECOND)
            match = _following(sim)
        elif first > reached and means_times_of_day and match is not None and match < first:
            yield stretch.begin.replace(tzinfo=UTC)
            while match is not None and match <= first:
                match = _following(sim)
        while match is not None and match < first:
            match = _following(sim)
        reached = stretch.end + stretch.offset
        while match is not None and match < reached:
            yield (match - stretch.offset).replace(tzinfo=UTC)
            match = _following(sim)


def next_tick(cron: str, timezone: str, after: datetime) -> datetime | None:
    """The first tick after a moment; None if none comes within fifty years."""
    return next(ticks_after(cron, timezone, after), None)


def is_moved(cron: str, timezone: str, tick: datetime) -> bool:
    """Whether a tick stands for times that the wall clock leaves out just before it."""
    wall = tick.astimezone(zone_of(timezone)).replace(tzinfo=None)
    return next(CronSim(cron, wall - _SECOND), None) != wall


def last_ticks(cron: str, timezone: str, since: datetime, until: datetime, count: int) -> list[datetime]:
    """The last `count` ticks after `since` and not after `until`, in order.

    Looks back in growing windows and never through more than a few times `count`, however many there are.
    """
    enough = 2 * count + 120
    too_early, window = None, _FIRST_WINDOW
    too_late = until
    while True:
        begin = max(since, until - window) if too_early is None else _between(too_early, too_late)
        ticks = takewhile(lambda tick: tick <= until, ticks_after(cron, timezone, begin))
        found = list(islice(ticks, enough + 1))
        if len(found) > enough:
            too_early = begin
        elif len(found) >= count or begin == since:
            return found[-count:]
        else:
            too_late, window = begin, window * 2


def _following(sim: CronSim) -> datetime | None:
    """The next match; None where cronsim gives up, after fifty years or at the end of the calendar."""
    try:
        return next(sim, None)
    except OverflowError:
        return None


def _between(early: datetime, late: datetime) -> datetime:
    return early + (late - early) // 2


def _means_times_of_day(cron: str) -> bool:
    fields = cron.split()
    if len(fields) not in (5, 6):
        raise ValueError(f"cron {cron!r:.80} has not five fields")
    minute, hour = fields[-5:-3]
    return not minute.startswith("*") and not hour.startswith("*")


def _offset(zone: tzinfo, at: datetime) -> timedelta:
    return at.replace(tzinfo=UTC).astimezone(zone).utcoffset() or timedelta()


def _stretches(zone: tzinfo, begin: datetime) -> Iterator[_Stretch]:
    """From a moment on without a gap; a day at most each, as no zone's clock jumps twice on one."""
    if zone is UTC:
        yield _Stretch(begin, datetime.max, timedelta())
        return
    offset = _offset(zone, begin)
    while True:
        try:
            end = begin + _DAY
            then = _offset(zone, end)
        except OverflowError:
            return
        if then != offset:
            end = _jump(zone, begin, end)
        yield _Stretch(begin, end, offset)
        begin, offset = end, then


def _jump(zone: tzinfo, before: datetime, after: datetime) -> datetime:
    """The first second with the later offset."""
    offset = _offset(zone, before)
    while after - before > _SECOND:
        middle = before + timedelta(seconds=(after - before) // _SECOND // 2)
        if _offset(zone, middle) == offset:
            before = middle
        else:
            after = middle
    return after


def _shown_before(zone: tzinfo, at: datetime) -> datetime:
    """How far the wall clock had come, at its furthest, in the day before."""
    shown = at + _offset(zone, at)
    for stretch in _stretches(zone, at - _LONGEST_BACK):
        if stretch.end > at:
            break
        shown = max(shown, stretch.end + stretch.offset)
    return shown
