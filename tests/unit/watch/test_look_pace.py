"""What comes past a proxy is found within a few hundredths of a second, and idling stays cheap."""

from __future__ import annotations

from itertools import pairwise
from random import Random
from statistics import median

import pytest

from queue_workflows.roles.look_pace import FIRST_LOOK_S, LookPace

POLL_S = 1.0


def looks(pace: LookPace, until: float, *, others: int = 0) -> list[float]:
    """When a loop looks that never finds anything, up to this time."""
    times, now = [], 0.0
    while (now := now + min(POLL_S, pace.pause(now, hears=False, others=others))) < until:
        times.append(now)
    return times


@pytest.mark.parametrize("gap_s", [0.3, 1.0, 4.0])
def test_a_start_is_soon(gap_s: float) -> None:
    """In the median it is within 30 ms, of a job that comes up to that many seconds after the last."""
    chance = Random(7)
    waits = []
    for _ in range(200):
        comes = chance.uniform(0, gap_s)
        waits.append(next(at for at in looks(LookPace(0.0), comes + 2 * POLL_S) if at >= comes) - comes)
    assert median(waits) < 0.03


def test_idle_it_only_polls() -> None:
    """Half a minute after the last job, and some 270 looks, nothing but the poll is left."""
    times = looks(LookPace(0.0), 90.0)
    assert len([at for at in times if at < 1]) < 70
    assert len([at for at in times if at < 30]) < 280
    late = [at for at in times if at > 30]
    assert {round(after - before, 9) for before, after in pairwise(late)} == {POLL_S}


def test_many_share_the_looks() -> None:
    """All of them look 200 times a second at most; of more than that, each polls and no more."""
    for workers in (1, 4, 20, 100, 500):
        each = len(looks(LookPace(0.0), 5.0, others=workers - 1)) / 5.0
        assert each * workers <= max(201, workers / POLL_S)


def test_what_was_found_begins_it_anew() -> None:
    """After a job the loop looks as soon as at its start."""
    pace, fresh = LookPace(0.0), LookPace(100.0)
    looks(pace, 100.0)
    assert pace.pause(100.0, hears=False) > POLL_S
    pace.found(100.0)
    assert pace.pause(100.2, hears=False) == fresh.pause(100.2, hears=False)


def test_where_wakes_come_each_pause_is_twice_the_last() -> None:
    """What may still commit without a wake is looked for as long as a writer of before may run."""
    pace = LookPace(0.0)
    assert [pace.pause(0.0, hears=True) for _ in range(3)] == [FIRST_LOOK_S * times for times in (1, 2, 4)]
    pace.found(0.0)
    assert pace.pause(0.0, hears=True) == FIRST_LOOK_S


def test_another_wait_is_no_news() -> None:
    """Past a proxy the looks stay as rare as they had become; where wakes come they begin anew."""
    pace = LookPace(0.0)
    assert pace.pause(60.0, hears=False) > POLL_S
    pace.pause(60.0, hears=True)
    pace.idles()
    assert pace.pause(60.0, hears=False) > POLL_S
    assert pace.pause(60.0, hears=True) == FIRST_LOOK_S
