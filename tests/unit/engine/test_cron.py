"""The ticks of years, in zones with every kind of jump, against a reference that looks at every minute."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from itertools import islice, takewhile
from zoneinfo import ZoneInfo

import pytest
from cronsim import CronSim

from queue_workflows.engine.schedules.cron import last_ticks, next_tick, ticks_after

MINUTE = timedelta(minutes=1)
Wall = Callable[[datetime], bool]

# What each expression says, by hand; those of times of day apart from those of intervals.
TIMES_OF_DAY: dict[str, Wall] = {
    "30 2 * * *": lambda at: (at.hour, at.minute) == (2, 30),
    "0 0 * * *": lambda at: (at.hour, at.minute) == (0, 0),
    "0,15,45 1,2,3 * * *": lambda at: at.hour in (1, 2, 3) and at.minute in (0, 15, 45),
    "59 23 * * sun": lambda at: (at.hour, at.minute) == (23, 59) and at.isoweekday() == 7,
    "0 12 1,31 * *": lambda at: (at.hour, at.minute) == (12, 0) and at.day in (1, 31),
    "5 2 1 * mon": lambda at: (at.hour, at.minute) == (2, 5) and (at.day == 1 or at.isoweekday() == 1),
}
INTERVALS: dict[str, Wall] = {
    "*/30 * * * *": lambda at: at.minute in (0, 30),
    "7 * * * *": lambda at: at.minute == 7,
    "* 2-3 * * *": lambda at: at.hour in (2, 3),
    "*/20 0 * * *": lambda at: at.hour == 0 and at.minute in (0, 20, 40),
    "45 */6 * * 1-5": lambda at: at.minute == 45 and at.hour % 6 == 0 and at.isoweekday() <= 5,
}
# Zones, and days of their jumps: by an hour, by half an hour, at midnight, over a whole day, not at all.
ZONES = {
    "Europe/Berlin": ["2026-03-29", "2026-10-25", "1980-04-06"],
    "America/New_York": ["2026-03-08", "2026-11-01", "2007-03-11"],
    "Australia/Lord_Howe": ["2026-04-05", "2026-10-04"],
    "Asia/Kolkata": ["2026-03-29"],
    "Pacific/Apia": ["2011-12-30", "2012-04-01"],
    "America/Sao_Paulo": ["2018-11-04", "2018-02-18"],
    "Africa/Cairo": ["2026-04-24", "2026-10-30"],
    "Antarctica/Troll": ["2026-03-29", "2026-10-25"],
    "Africa/Casablanca": ["2026-02-15", "2026-03-22"],
    "UTC": ["2026-03-29"],
}
# For a year on end, one of them with a 29th of February; the days of the jumps are for all.
YEARS = [("Europe/Berlin", 2028, 2029), ("Australia/Lord_Howe", 2026, 2027), ("Pacific/Apia", 2011, 2012)]


class Reference:
    """Every minute, one after the other, with the clock on the wall beside it and what it left out before."""

    def __init__(self, zone: str, begin: datetime, end: datetime) -> None:
        info = ZoneInfo(zone)
        self.minutes: list[tuple[datetime, datetime, bool, list[datetime]]] = []
        at, reached = begin, begin.astimezone(info).replace(tzinfo=None)
        while (at := at + MINUTE) <= end:
            wall = at.astimezone(info).replace(tzinfo=None)
            left_out = [] if wall <= reached + MINUTE else list(_minutes(reached + MINUTE, wall))
            self.minutes.append((at, wall, wall > reached, left_out))
            reached = max(reached, wall)

    def ticks(self, matches: Wall, *, times_of_day: bool) -> list[datetime]:
        """When a schedule ticks by the two rules of the docs."""
        if not times_of_day:
            return [at for at, wall, _, _ in self.minutes if matches(wall)]
        return [
            at
            for at, wall, is_new, left_out in self.minutes
            if (is_new and matches(wall)) or any(map(matches, left_out))
        ]


def _minutes(begin: datetime, end: datetime) -> Iterator[datetime]:
    while begin < end:
        yield begin
        begin += MINUTE


def until(cron: str, zone: str, begin: datetime, end: datetime) -> list[datetime]:
    return list(takewhile(lambda tick: tick <= end, ticks_after(cron, zone, begin)))


def cases() -> Iterator[tuple[str, Wall, bool]]:
    for cron, matches in TIMES_OF_DAY.items():
        yield cron, matches, True
    for cron, matches in INTERVALS.items():
        yield cron, matches, False


@pytest.mark.parametrize("zone", ZONES)
def test_around_every_kind_of_jump(zone: str) -> None:
    """What is left out, what comes twice and what moves, to the minute."""
    for day in ZONES[zone]:
        begin = datetime.fromisoformat(day).replace(tzinfo=UTC) - timedelta(days=2)
        end = begin + timedelta(days=4)
        reference = Reference(zone, begin, end)
        for cron, matches, times_of_day in cases():
            expected = reference.ticks(matches, times_of_day=times_of_day)
            assert until(cron, zone, begin, end) == expected, (cron, day)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("zone", "first", "after"), YEARS)
def test_through_years(zone: str, first: int, after: int) -> None:
    """No tick more and none less, from the first day of a year to the last of one."""
    begin, end = datetime(first, 1, 1, tzinfo=UTC), datetime(after, 1, 1, tzinfo=UTC)
    reference = Reference(zone, begin, end)
    for cron, matches, times_of_day in cases():
        expected = reference.ticks(matches, times_of_day=times_of_day)
        assert until(cron, zone, begin, end) == expected, cron


@pytest.mark.parametrize("zone", ["Europe/Berlin", "Australia/Lord_Howe", "Pacific/Apia", "Africa/Cairo"])
def test_each_tick_follows_from_the_one_before(zone: str) -> None:
    """A ticker that knows the last tick only comes to the same as one that never stopped."""
    for day in ZONES[zone]:
        begin = datetime.fromisoformat(day).replace(tzinfo=UTC) - timedelta(days=2)
        for cron, _, _ in cases():
            at, one_by_one = begin, []
            for _ in range(60):
                at = next_tick(cron, zone, at)
                one_by_one.append(at)
            assert one_by_one == list(islice(ticks_after(cron, zone, begin), 60)), (cron, day)
            # From in between, too: the day is asked at every other hour.
            for number in range(48):
                moment = begin + timedelta(hours=2 * number, seconds=number % 60, microseconds=7)
                later = [tick for tick in one_by_one if tick > moment]
                if later:
                    assert next_tick(cron, zone, moment) == later[0], (cron, moment)


@pytest.mark.parametrize("zone", ["Europe/Berlin", "America/New_York", "Asia/Kolkata", "UTC"])
@pytest.mark.parametrize("cron", ["30 2 * * *", "*/30 * * * *", "15 3 29 2 *", "0 9 * * mon#1", "1 1 L * *"])
def test_where_jumps_are_of_an_hour_it_is_what_cronsim_says(zone: str, cron: str) -> None:
    """A second opinion over five years."""
    begin, end = datetime(2024, 1, 1, tzinfo=UTC), datetime(2029, 1, 1, tzinfo=UTC)
    if cron.startswith("*/"):
        begin, end = datetime(2026, 3, 1, tzinfo=UTC), datetime(2026, 4, 15, tzinfo=UTC)
    theirs = (tick.astimezone(UTC) for tick in CronSim(cron, begin.astimezone(ZoneInfo(zone))))
    assert until(cron, zone, begin, end) == list(takewhile(lambda tick: tick <= end, theirs))


def test_seconds_come_first() -> None:
    """A sixth field stands before the minutes; the clock's jumps mean the same for it."""
    begin = datetime(2026, 10, 24, 23, 59, 58, tzinfo=UTC)
    assert [tick.second for tick in islice(ticks_after("*/15 * * * * *", "Europe/Berlin", begin), 5)] == [
        *(0, 15, 30, 45, 0)
    ]
    # In the hour that comes twice: an interval comes in both, a time of day in the first.
    day = begin + timedelta(days=1)
    assert len(until("*/15 30 * * * *", "Europe/Berlin", begin, day)) == 4 * 24
    both = until("*/15 30 2 * * *", "Europe/Berlin", begin, day)
    assert [tick.isoformat() for tick in both] == [
        *("2026-10-25T00:30:00+00:00", "2026-10-25T00:30:15+00:00"),
        *("2026-10-25T00:30:30+00:00", "2026-10-25T00:30:45+00:00"),
    ]
    # In the hour that is left out: a time of day comes once when it is over.
    begin = datetime(2026, 3, 29, tzinfo=UTC)
    left_out = until("*/15 30 2 * * *", "Europe/Berlin", begin, begin + timedelta(hours=12))
    assert [tick.isoformat() for tick in left_out] == ["2026-03-29T01:00:00+00:00"]


def test_the_last_ticks_are_found_from_the_end() -> None:
    """Among many, few or none, dense in some month and absent in others."""
    since, until_ = datetime(2025, 12, 20, tzinfo=UTC), datetime(2026, 2, 15, 12, 0, 0, 5, tzinfo=UTC)
    for cron in ("* * * * *", "*/7 * 1-5 1 *", "0 4 * * *", "0 0 29 2 *", "30 2 29 3 *"):
        every = until(cron, "Europe/Berlin", since, until_)
        for count in (1, 300):
            assert last_ticks(cron, "Europe/Berlin", since, until_, count) == every[-count:], (cron, count)
    assert last_ticks("0 4 * * *", "UTC", until_, until_, 5) == []
    seconds = last_ticks("* * * * 1 *", "UTC", since, until_, 2)
    assert [tick.isoformat() for tick in seconds] == [
        *("2026-01-31T23:59:58+00:00", "2026-01-31T23:59:59+00:00")
    ]


def test_what_comes_seldom_is_found() -> None:
    """A 29th of February that is a Sunday, by way of 2100 and without."""
    assert next_tick("0 0 29 2 */7", "Europe/Berlin", datetime(2026, 1, 1, tzinfo=UTC)) == datetime(
        2032, 2, 28, 23, tzinfo=UTC
    )
    assert next_tick("0 0 29 2 */7", "UTC", datetime(2073, 1, 1, tzinfo=UTC)) == datetime(
        2088, 2, 29, tzinfo=UTC
    )
