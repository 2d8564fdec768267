"""The low-water marks of a worker's claims."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from queue_workflows.repositories.sql.low_water_marks import PRIORITIES, UNMARKED, Marks


def got(*jobs: tuple[int, int]) -> list[Any]:
    """Claimed jobs, as (priority, position)."""
    return [
        SimpleNamespace(priority=priority, position=position, suspect=False) for priority, position in jobs
    ]


def at(marks: Marks, now: float) -> dict[int, int]:
    """The places from which on the next claim is to look, where that is not the first."""
    positions = dict(zip(PRIORITIES, marks.positions(now), strict=True))
    return {priority: position + 1 for priority, position in positions.items() if position}


def test_first_claim_looks_at_everything():
    """A worker that knows nothing yet has no marks."""
    assert Marks(1.0).positions(0.0) == UNMARKED


def test_marks_follow_what_was_claimed():
    """Each priority's is the highest position that came, where others may stand; those of others stay."""
    marks = Marks(1.0)
    marks.positions(0.0)
    marks.claimed(got((9, 4), (5, 70), (5, 60)), 3)
    assert at(marks, 0.1) == {9: 4, 5: 70}
    marks.claimed(got((5, 90)), 1)
    assert at(marks, 0.2) == {9: 4, 5: 90}


def test_short_answer_is_not_believed():
    """A marked claim that came up short is not believed; the next one looks at everything, and is."""
    marks = Marks(1.0)
    marks.positions(0.0)
    marks.claimed(got((5, 7)), 1)
    assert at(marks, 0.1) == {5: 7}
    marks.claimed(got(), 1)
    assert not marks.empty
    assert marks.positions(0.2) == UNMARKED
    marks.claimed(got(), 1)
    assert marks.empty


def test_empty_is_for_one_answer():
    """Work that came makes the belief void."""
    marks = Marks(1.0)
    marks.positions(0.0)
    marks.claimed(got(), 1)
    assert marks.empty
    marks.positions(0.5)
    marks.claimed(got((5, 8)), 1)
    assert not marks.empty


def test_short_but_not_empty_counts_as_short():
    """Fewer than asked for is short, too: below the marks there may be more."""
    marks = Marks(10.0)
    marks.positions(0.0)
    marks.claimed(got((5, 1), (5, 2)), 2)
    marks.positions(0.1)
    marks.claimed(got((5, 3)), 2)
    assert not marks.empty
    assert marks.positions(0.2) == UNMARKED


def test_once_per_poll_in_any_case():
    """Under steady load late commits and requeued rows below the mark wait for one poll interval at most."""
    marks, looked = Marks(1.0), []
    for tick in range(50):
        now = tick / 10
        if marks.positions(now) == UNMARKED:
            looked.append(now)
        marks.claimed(got((5, tick + 2)), 1)
    assert looked == [0.0, 1.0, 2.0, 3.0, 4.0]


def test_straggler_sets_its_mark_back():
    """What was requeued far below is followed by its neighbours, in order, before the rest."""
    marks = Marks(1.0)
    marks.positions(0.0)
    marks.claimed(got((5, 1000)), 1)
    marks.positions(1.5)
    marks.claimed(got((5, 10)), 1)
    assert at(marks, 1.6) == {5: 10}


def test_clock_that_went_back_looks_at_everything():
    """Whatever the clock does, the marks are not trusted for longer than the poll."""
    marks = Marks(1.0)
    marks.positions(100.0)
    marks.claimed(got((5, 9)), 1)
    assert marks.positions(40.0) == UNMARKED


def test_unsure_after_a_lost_answer():
    """Whoever does not know what became of a claim believes in no "empty", and looks at everything next."""
    marks = Marks(1.0)
    marks.positions(0.0)
    marks.claimed([], 1)
    assert marks.empty
    marks.unsure()
    assert not marks.empty
    assert marks.positions(0.1) == UNMARKED


def passing() -> Marks:
    """Those of a worker of ingest jobs that has claimed one at place 7."""
    marks = Marks(1.0, passes_by=True)
    assert marks.positions(0.0) == UNMARKED
    marks.claimed(got((5, 7)), 1)
    return marks


def test_above_a_mark_others_jobs_are_passed_by():
    """Which a negative one says; where nothing was claimed yet there is none."""
    marks = passing()
    assert marks.positions(0.1) == tuple(-6 if priority == 5 else 0 for priority in PRIORITIES)
    marks.claimed(got((5, 9)), 1)
    assert marks.reached == tuple(8 if priority == 5 else 0 for priority in PRIORITIES)


def test_nothing_is_passed_by_for_a_while_where_that_was_in_vain():
    """What a look at everything finds right after it was there all the time, and locked by nobody."""
    marks = passing()
    marks.positions(0.1)
    marks.claimed(got(), 1)
    assert marks.positions(0.2) == UNMARKED
    marks.claimed(got((5, 8)), 1)
    assert max(marks.positions(0.3)) == 7
    marks.claimed(got((5, 9)), 1)
    for now in (59.0, 59.1):
        marks.positions(now)
        marks.claimed(got((5, 10)), 1)
    assert max(marks.positions(59.2)) == 9
    marks.claimed(got((5, 11)), 1)
    for now in (60.4, 60.5):
        marks.positions(now)
        marks.claimed(got((5, 12)), 1)
    assert min(marks.positions(60.6)) == -11


def test_an_empty_queue_is_no_reason_to_ask_for_locks():
    """What comes later was not there when others were passed by."""
    marks = passing()
    for now in (0.1, 0.2):
        marks.positions(now)
        marks.claimed(got(), 1)
    assert marks.empty
    assert marks.positions(1.3) == UNMARKED
    marks.claimed(got((5, 9)), 1)
    assert min(marks.positions(1.4)) == -8
