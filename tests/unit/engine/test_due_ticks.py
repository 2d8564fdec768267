"""What becomes of the ticks that are due, by policy, with a clock that the test moves."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import islice

import pytest

from queue_workflows.engine.schedules.cron import ticks_after, zone_of
from queue_workflows.engine.schedules.due_ticks import Plan, Times, begins_at, plan, reason_of

NOON = datetime(2026, 6, 1, 12, tzinfo=UTC)
HOUR, SECOND = timedelta(hours=1), timedelta(seconds=1)


def hourly(catch_up: str, reckoned: datetime | None = NOON, cap: int = 3, cron: str = "0 * * * *") -> Times:
    return Times(cron, "UTC", catch_up, cap, since=NOON - 30 * HOUR, reckoned=reckoned)


@pytest.mark.parametrize("catch_up", ["none", "latest", "all"])
def test_what_is_not_due_is_waited_for(catch_up: str) -> None:
    """Up to the very microsecond."""
    assert plan(hourly(catch_up), NOON - timedelta(microseconds=1)) == Plan((), NOON)
    assert plan(hourly(catch_up), NOON) == Plan((NOON,), NOON + HOUR)


@pytest.mark.parametrize("catch_up", ["none", "latest", "all"])
def test_within_a_few_seconds_everything_comes(catch_up: str) -> None:
    """A ticker that was slow for a moment was not away."""
    each = hourly(catch_up, cron="* * * * * *", cap=3)
    due = plan(each, NOON + timedelta(seconds=4.9))
    assert due == Plan(tuple(NOON + number * SECOND for number in range(5)), NOON + 5 * SECOND)


@pytest.mark.parametrize("catch_up", ["none", "latest", "all"])
def test_within_a_minute_no_single_tick_is_missed(catch_up: str) -> None:
    """A stop of half a minute, as of a deployment, costs nobody his hourly job."""
    assert plan(hourly(catch_up), NOON + 59 * SECOND) == Plan((NOON,), NOON + HOUR)
    ticks = plan(hourly(catch_up, cron="* * * * * *"), NOON + 59 * SECOND).ticks
    assert ticks == tuple(NOON + number * SECOND for number in range(60 - len(ticks), 60))
    assert len(ticks) == (3 if catch_up == "all" else 1)


def test_beyond_it_the_policy_decides() -> None:
    """After five hours and a quarter: nothing, the latest, or the last of a capped number."""
    now = NOON + 5 * HOUR + timedelta(minutes=15)
    ticks = [NOON + number * HOUR for number in range(6)]
    assert plan(hourly("none"), now) == Plan((), NOON + 6 * HOUR)
    assert plan(hourly("latest"), now) == Plan((ticks[-1],), NOON + 6 * HOUR)
    assert plan(hourly("all"), now) == Plan(tuple(ticks[-3:]), NOON + 6 * HOUR)
    assert plan(hourly("all", cap=100), now) == Plan(tuple(ticks), NOON + 6 * HOUR)


def test_after_an_absence_none_still_takes_what_is_on_time() -> None:
    """The newest, if it is not older than a minute."""
    assert plan(hourly("none"), NOON + 5 * HOUR + 20 * SECOND).ticks == (NOON + 5 * HOUR,)
    each = hourly("none", cron="* * * * * *")
    assert plan(each, NOON + 5 * HOUR).ticks == (NOON + 5 * HOUR,)
    assert plan(hourly("none"), NOON + 60 * SECOND) == Plan((), NOON + HOUR)


def test_a_schedule_that_nobody_reckoned_begins_where_it_was_changed() -> None:
    """Every tick after that moment is to come, by the policy."""
    times = Times("0 * * * *", "UTC", "all", 100, since=NOON - timedelta(minutes=1))
    assert plan(times, NOON - SECOND) == Plan((), NOON)
    assert plan(times, NOON + HOUR) == Plan((NOON, NOON + HOUR), NOON + 2 * HOUR)
    assert plan(Times("0 * * * *", "UTC", "all", 100, since=NOON), NOON + SECOND) == Plan((), NOON + HOUR)


@pytest.mark.parametrize("catch_up", ["none", "latest", "all"])
@pytest.mark.parametrize("zone", ["Europe/Berlin", "Australia/Lord_Howe"])
@pytest.mark.parametrize("is_utc", [True, False], ids=["told in UTC", "told in the zone"])
def test_a_year_of_looks_inserts_each_tick_once(catch_up: str, zone: str, is_utc: bool) -> None:
    """Whenever the ticker looks within a minute of each tick, it comes to all ticks of the year in order.

    A session of the database tells its moments in a zone of its own where ours could not set it.
    """
    told = UTC if is_utc else zone_of(zone)
    begin = datetime(2026, 1, 1, tzinfo=UTC).astimezone(told)
    expected = list(islice(ticks_after("17 2 * * *", zone, begin), 365))
    times = Times("17 2 * * *", zone, catch_up, 10, since=begin)
    inserted: list[datetime] = []
    now = begin
    for number in range(365):
        seen = plan(times, now)
        assert seen.ticks == ()
        assert seen.next_at is not None
        now = (seen.next_at + timedelta(seconds=number % 60)).astimezone(told)
        seen = plan(times_from(times, seen.next_at.astimezone(told)), now)
        inserted += seen.ticks
        times = times_from(times, seen.next_at and seen.next_at.astimezone(told))
    assert inserted == expected


def times_from(times: Times, reckoned: datetime | None) -> Times:
    return Times(times.cron, times.timezone, times.catch_up, times.catch_up_cap, times.since, reckoned)


def test_jitter_is_the_same_for_everybody() -> None:
    """By the schedule and the tick alone; spread over all of its seconds, and none where none is asked."""
    ticks = [NOON + number * HOUR for number in range(200)]
    later = [begins_at("nightly", tick, 60.0) - tick for tick in ticks]
    assert later == [begins_at("nightly", tick, 60.0) - tick for tick in ticks]
    assert all(timedelta() <= each < 60 * SECOND for each in later)
    assert min(later) < 5 * SECOND
    assert max(later) > 55 * SECOND
    assert begins_at("other", NOON, 60.0) != begins_at("nightly", NOON, 60.0)
    assert begins_at("nightly", NOON, 0.0) == NOON


def test_a_job_is_told_its_tick() -> None:
    """As the docs say: the last word of the reason is the time of the tick."""
    reason = reason_of("nightly", NOON)
    assert reason == "schedule nightly at 2026-06-01T12:00:00Z"
    assert datetime.fromisoformat(reason.rsplit(" ", 1)[1]) == NOON
