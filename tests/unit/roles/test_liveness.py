"""Which workers are dead in truth, decided without waiting."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from queue_workflows.repositories.workers.heartbeats import Sign
from queue_workflows.roles.supervisor.liveness import Liveness, Signs

MOMENT = datetime(2026, 1, 1, tzinfo=UTC)
NEVER = float("-inf")


def begun(now: float = 100.0) -> Liveness:
    liveness = Liveness(stale_s=30, first_s=300)
    liveness.begin("w", now)
    return liveness


def signs(
    at: float, beat: float | None = None, *, flagged: bool = False, steady_since: float = NEVER
) -> Signs:
    """What is read at a time; the heartbeat as it was stored at another."""
    beats = {} if beat is None else {"w": Sign(MOMENT + timedelta(seconds=beat), flagged)}
    return Signs(at, steady_since, beats)


def test_a_worker_that_beats_lives():
    """However the server's clock stands."""
    liveness = begun()
    assert [liveness.judge(signs(at, at)) for at in range(101, 400, 7)] == [{}] * 43


def test_silence_is_killed_after_the_stale_time():
    """Counted from when the heartbeat last changed."""
    liveness = begun()
    assert liveness.judge(signs(110, 1)) == {}
    assert liveness.judge(signs(140, 1)) == {}
    assert liveness.judge(signs(140.5, 1)) == {"w": "no heartbeat for 30 s"}


def test_a_step_of_the_servers_clock_kills_nobody():
    """An hour forward or back, the heartbeat still changes."""
    liveness = begun()
    assert liveness.judge(signs(110, 1)) == {}
    assert liveness.judge(signs(115, -3600)) == {}
    assert liveness.judge(signs(144, 3600)) == {}


def test_the_first_heartbeat_has_a_bound_of_its_own():
    """A worker may import for minutes before it beats."""
    liveness = begun(100)
    assert liveness.judge(signs(400)) == {}
    assert liveness.judge(signs(401)) == {"w": "no first heartbeat within 300 s"}


def test_a_flag_of_others_is_obeyed_at_once():
    """The orchestrator saw what we would see later."""
    liveness = begun()
    assert liveness.judge(signs(110, 1)) == {}
    assert liveness.judge(signs(111, 1, flagged=True)) == {"w": "flagged dead"}


def test_after_an_outage_a_worker_has_the_stale_time_anew():
    """While it is away nobody can beat, and whoever flags workers on its return is too quick."""
    liveness = begun()
    assert liveness.judge(signs(110, 1)) == {}
    assert liveness.judge(signs(500, 1, steady_since=499, flagged=True)) == {}
    assert liveness.judge(signs(529, 1, steady_since=499, flagged=True)) == {}
    assert liveness.judge(signs(530, 1, steady_since=499, flagged=True)) == {"w": "flagged dead"}
    assert liveness.judge(signs(530, 1, steady_since=499)) == {"w": "no heartbeat for 31 s"}


def test_an_outage_is_no_part_of_the_time_to_the_first_heartbeat():
    """Without a database there is none."""
    liveness = begun(100)
    assert liveness.judge(signs(500, steady_since=450)) == {}
    assert liveness.judge(signs(751, steady_since=450)) == {"w": "no first heartbeat within 300 s"}


def test_who_has_ended_is_judged_no_more():
    """It is buried already, or being killed."""
    liveness = begun()
    liveness.end("w")
    assert liveness.judge(signs(900)) == {}
