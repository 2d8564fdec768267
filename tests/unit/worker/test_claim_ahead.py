"""How far ahead a crew claims, without a clock."""

from __future__ import annotations

import pytest

from queue_workflows.roles.worker.concurrent.claim_ahead import (
    AHEAD_LEAST,
    AHEAD_MOST,
    AHEAD_S,
    AT_A_TIME,
    GIVE_BACK_AFTER_S,
    GIVE_BACK_LATEST_S,
    NEAR_S,
    ClaimAhead,
)


def at_pace(room: ClaimAhead, *, per_ms: int, seconds: float, rounds: int = 100) -> tuple[float, int]:
    """So many jobs a millisecond claimed, begun and ended, each taking so long, by threads that are busy."""
    now = 10.0
    for _ in range(rounds):
        now += 0.001
        room.handed(per_ms, now)
        free = room.free(8, 0, now)
        room.ended(per_ms, per_ms * seconds)
    return now, free


def test_nobody_claims_ahead_who_has_begun_nothing() -> None:
    """The first claim is for the free threads."""
    room = ClaimAhead(8)
    assert room.free(0, 0, 1.0) == 8
    assert room.free(5, 0, 1.1) == 3
    assert room.free(5, 3, 1.2) == 0


def test_slow_jobs_are_not_claimed_ahead() -> None:
    """However many begin at one moment: what takes half a second leaves no time for another in 20 ms."""
    room = ClaimAhead(8)
    now = 1.0
    for _ in range(20):
        room.handed(8, now)
        assert room.free(8, 0, now + 0.001) == 0
        room.ended(8, 8 * 0.5)
        assert room.free(0, 0, now + 0.5) == 8
        now += 0.5


@pytest.mark.parametrize(("per_ms", "most"), [(2, AHEAD_LEAST), (100, AHEAD_MOST)])
def test_quick_jobs_are_claimed_ahead_by_twenty_milliseconds(per_ms: int, most: int) -> None:
    """As many as were begun in that time, and never more than the cap."""
    room = ClaimAhead(8)
    _, free = at_pace(room, per_ms=per_ms, seconds=0.00001)
    assert 8 < free <= most


@pytest.mark.parametrize(("round_s", "ahead"), [(0.001, 60), (0.04, 120), (10.0, 150)])
def test_a_slow_round_lets_one_claim_further_ahead(round_s: float, ahead: int) -> None:
    """What is begun while it takes, in 20 ms at least, and no more than in 50 ms."""
    room = ClaimAhead(8)
    room.asked(round_s)
    _, free = at_pace(room, per_ms=3, seconds=0.00001)
    assert ahead - 4 <= free <= ahead + 4


def test_who_gets_little_of_the_machine_claims_no_tiny_batches() -> None:
    """As long as its jobs are short and most of its threads are free; else what it began is what counts."""
    room = ClaimAhead(8)
    room.ended(10_000, 10_000 * 0.00001)
    now = 1.0
    assert room.free(4, 0, now + 1) == 4 + AHEAD_LEAST
    assert room.free(5, 0, now + 2) == 3
    room.ended(10_000, 10_000 * 0.5)
    assert room.free(0, 0, now + 3) == 8


def test_who_runs_dry_soon_claims_large_batches() -> None:
    """Each batch was begun before the next one came, so that one is twice as large, up to the cap."""
    room = ClaimAhead(8)
    now, claims = 1.0, list[int]()
    for _ in range(6):
        claims.append(room.free(0, 0, now))
        room.handed(claims[-1], now)
        now += 0.06
        room.ended(claims[-1], claims[-1] * 0.0001)
    assert claims == [8, 8 + AHEAD_LEAST, 140, 404, *[(8 + AHEAD_MOST) // 2] * 2]


def test_who_has_jobs_waiting_claims_no_more_than_it_begins() -> None:
    """A thread that is about to take one has not run dry."""
    room = ClaimAhead(8)
    room.ended(32, 32 * 0.0001)
    assert room.free(0, 0, 1.0) == 8 + AHEAD_LEAST
    room.handed(100, 1.0)
    assert room.free(0, 40, 1.06) == 8 - 40 + 60


def test_the_first_that_end_say_how_long_jobs_take() -> None:
    """Quick jobs are claimed ahead from the second claim on, and slow ones are not, however many came."""
    room = ClaimAhead(8)
    assert room.free(0, 0, 1.0) == 8
    room.handed(8, 1.0)
    room.ended(8, 8 * 0.0001)
    assert room.free(0, 0, 1.06) == 8 + AHEAD_LEAST
    room.ended(64, 64 * 0.5)
    assert room.free(0, 0, 1.12) == 8


def test_who_may_have_all_claims_half_of_it_at_a_time() -> None:
    """The other half is there to be run meanwhile: together they are no more than the cap."""
    room = ClaimAhead(8)
    now, free = at_pace(room, per_ms=100, seconds=0.00001)
    assert free == (8 + AHEAD_MOST) // 2
    assert room.free(0, 0, now, unread=free) == free
    assert room.free(0, 300, now, unread=free) == 0


def test_a_worker_that_gets_stuck_claims_nothing_ahead() -> None:
    """What it did before says nothing once it begins nothing any more."""
    room = ClaimAhead(8)
    now, free = at_pace(room, per_ms=10, seconds=0.0001)
    assert free > 8
    assert room.free(8, 20, now + 0.1) == 0


def test_what_waits_too_long_is_given_back() -> None:
    """By the time of the claim that brought the first of those that wait."""
    room = ClaimAhead(2)
    room.handed(10, 1.0)
    room.handed(5, 1.05)
    assert room.give_back_at(15) == 1.0 + GIVE_BACK_AFTER_S
    assert room.give_back_at(6) == 1.0 + GIVE_BACK_AFTER_S
    assert room.give_back_at(5) == 1.05 + GIVE_BACK_AFTER_S
    room.taken_back(5)
    assert room.give_back_at(0) is None
    assert room.free(0, 0, 2.0) == 2


def test_what_waits_for_a_processor_is_kept_while_some_begin() -> None:
    """Behind quick jobs; 20 ms without one that begins, or 250 ms in all, and it goes to who has time."""
    room = ClaimAhead(8)
    room.ended(10_000, 10_000 * 0.0001)
    room.handed(200, 1.0)
    now = 1.0 + GIVE_BACK_AFTER_S
    assert room.give_back_at(200) == now
    assert room.keeps(200, now)
    assert room.give_back_at(190) == now + AHEAD_S
    assert room.keeps(190, now + AHEAD_S)
    assert not room.keeps(190, now + 2 * AHEAD_S)
    assert room.keeps(180, now + 2 * AHEAD_S)
    assert not room.keeps(150, 1.0 + GIVE_BACK_LATEST_S)


def test_what_waits_behind_slow_jobs_is_given_back_at_once() -> None:
    """Each of eight threads would need 100 ms and more for its share."""
    room = ClaimAhead(8)
    room.ended(10_000, 10_000 * 0.0041)
    room.handed(200, 1.0)
    assert not room.keeps(200, 1.0 + GIVE_BACK_AFTER_S)
    assert room.keeps(100, 1.0 + GIVE_BACK_AFTER_S)


def test_who_pauses_between_rounds_claims_as_much_again() -> None:
    """What it began since the last claim but one counts, however long ago that was, up to 100 ms."""
    room = ClaimAhead(8)
    room.ended(10_000, 10_000 * 0.00001)
    now = 1.0
    for _ in range(3):
        room.free(0, 0, now)
        room.handed(204, now)
        now += 0.08
    assert room.free(8, 100, now) == 204 + 104 - 100
    assert room.free(8, 100, now + 0.1) == 0


def test_what_has_ended_unseen_takes_no_place() -> None:
    """Jobs in hand beyond the threads are over by now."""
    room = ClaimAhead(8)
    assert room.free(200, 0, 1.0) == room.free(8, 0, 1.0)


def test_few_places_are_worth_no_claim_while_all_threads_have_work() -> None:
    """But any are as soon as some thread might get none."""
    room = ClaimAhead(8)
    assert room.is_little(8, 8, 204)
    assert not room.is_little(102, 8, 204)
    assert not room.is_little(1, 8, 7)


def test_of_hundreds_a_fiftieth_is_claimed_for() -> None:
    """Some of them end all the time; where few run, each free place is worth a claim."""
    room = ClaimAhead(2000)
    assert room.is_little(39, 1961, 0)
    assert not room.is_little(40, 1960, 0)
    assert not room.is_little(1, 99, 0)


@pytest.mark.parametrize(("round_trip_s", "times"), [(0.0, 1), (NEAR_S, 1), (2 * NEAR_S, 2), (1.0, 5)])
def test_a_server_that_is_far_away_lets_one_claim_further_ahead(round_trip_s: float, times: int) -> None:
    """In proportion to the round trip, as far as the setting has it; half of it at a time."""
    room = ClaimAhead(8, 5 * AHEAD_MOST)
    room.is_at(round_trip_s)
    room.asked(round_trip_s)
    now, free = at_pace(room, per_ms=200, seconds=0.00001, rounds=1000)
    assert free == (8 + times * AHEAD_MOST) // 2 <= max(room.at_a_time, AT_A_TIME)
    assert room.free(0, 0, now, unread=free) == free
    assert room.free(0, times * AHEAD_MOST - free, now, unread=free) <= 8


def test_far_away_too_it_is_what_is_begun_in_a_round() -> None:
    """A round trip of 40 ms is no reason to claim more than 40 ms of jobs, nor any that are slow."""
    room = ClaimAhead(8, 5 * AHEAD_MOST)
    room.is_at(0.04)
    room.asked(0.04)
    _, free = at_pace(room, per_ms=3, seconds=0.00001)
    assert 116 <= free <= 124
    room.ended(10_000, 10_000 * 0.5)
    assert room.free(0, 0, 20.0) == 8


@pytest.mark.parametrize("most", [0, 5])
@pytest.mark.parametrize("round_trip_s", [0.0, 1.0])
def test_no_more_is_claimed_ahead_than_is_set(most: int, round_trip_s: float) -> None:
    """Near or far; each free thread gets its job all the same."""
    room = ClaimAhead(8, most)
    room.is_at(round_trip_s)
    now, _ = at_pace(room, per_ms=100, seconds=0.00001)
    assert room.free(0, 0, now) == 8
    assert room.free(8, 0, now) == most


def test_what_waits_far_away_is_given_back_later() -> None:
    """What came with a round trip waits for those before it, which is longer where it came from further."""
    room = ClaimAhead(2, 1000)
    room.is_at(0.05)
    room.handed(10, 1.0)
    assert room.give_back_at(10) == pytest.approx(1.2)
    room.is_at(0.001)
    assert room.give_back_at(10) == 1.0 + GIVE_BACK_AFTER_S


def test_one_that_is_set_to_few_overlaps_as_well() -> None:
    """It claims half of what it may have while the other half is run, however little that is."""
    room = ClaimAhead(8, 100)
    now, _ = at_pace(room, per_ms=100, seconds=0.00001)
    assert room.free(8, 0, now) == (8 + 100) // 2


@pytest.mark.parametrize(("round_trip_s", "at_a_time"), [(0.0, AT_A_TIME), (0.1, (5_000 + 2_000) // 2)])
def test_near_the_server_no_more_is_claimed_at_a_time(round_trip_s: float, at_a_time: int) -> None:
    """However many threads there are: the first of it is to begin soon."""
    room = ClaimAhead(5_000, 2_000)
    room.is_at(round_trip_s)
    assert room.at_a_time == at_a_time


def test_a_slow_network_keeps_no_job_for_seconds() -> None:
    """Others may be near, and idle."""
    room = ClaimAhead(8, 2_000)
    room.is_at(1.0)
    room.handed(100, 10.0)
    assert room.give_back_at(100) == pytest.approx(10.4)
