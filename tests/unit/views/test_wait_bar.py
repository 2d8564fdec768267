"""Where a job's time went: each part from its row, and nothing that the row does not tell."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime, timedelta
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from queue_workflows.engine.explain.time_spent import sentence_of, spent_of
from queue_workflows.engine.explain.wait_bar import JobFacts, Pause, Segment, Served, bar_of, json_of
from queue_workflows.repositories.sql.families import GIVEN_BACK, OVER
from queue_workflows.states import JOB_TERMINAL, JobStatus

START = datetime(2026, 1, 2, 14, tzinfo=UTC)


def at(minutes: float) -> datetime:
    return START + timedelta(minutes=minutes)


def bar(**facts: Any) -> list[tuple[str, float, float, str]]:
    """The segments of a job that was created at minute 0 and is looked at in minute 60."""
    given: dict[str, Any] = {"at": at(60), "status": "queued", "created_at": at(0), "run_at": at(0)} | facts
    return [
        (one.kind, (one.start - START).total_seconds() / 60, (one.end - START).total_seconds() / 60, one.note)
        for one in bar_of(JobFacts(**given))
    ]


def failed(attempt: int, minute: float, **more: Any) -> dict[str, Any]:
    return {"attempt": attempt, "at": at(minute).isoformat(), "worker_id": "w", "kind": "exception", **more}


def held(since: float, until: float, key: str = "k", *, reason: str = "limit_full") -> dict[str, Any]:
    times = {"since": at(since).isoformat(), "until": at(until).isoformat()}
    return {"reason": reason, "key": key, **times, "attempt": 1, "times": 1}


def test_a_durable_function_that_waits_is_parked_and_not_held() -> None:
    """Nothing holds it up: it sleeps, or waits for an event or for children, as it means to."""
    facts = {"past_holds": [held(5, 20, "go", reason="event")], "attempt": 2, "started_at": at(30)}
    facts |= {"run_at": at(99), "status": "scheduled", "hold_reason": "asleep"}
    assert bar(**facts) == [
        ("queued", 0, 5, ""),
        ("parked", 5, 20, "event 'go'"),
        ("queued", 20, 30, ""),
        ("parked", 30, 60, "asleep"),
    ]


def test_a_job_that_waits_and_one_that_has_run() -> None:
    """Queued until it is claimed, and then at work."""
    assert bar() == [("queued", 0, 60, "")]
    claimed = {"started_at": at(20), "attempt": 1, "claimed_by": "w"}
    assert bar(status="running", **claimed) == [
        ("queued", 0, 20, ""),
        ("running", 20, 60, "attempt 1 on w"),
    ]
    assert bar(status="completed", finished_at=at(30), **claimed) == [
        ("queued", 0, 20, ""),
        ("running", 20, 30, "attempt 1 on w"),
        ("ended", 30, 30, "completed"),
    ]
    assert bar(status="cancelled", finished_at=at(9)) == [("queued", 0, 9, ""), ("ended", 9, 9, "cancelled")]


def test_a_node_waits_for_others_and_then_for_its_time() -> None:
    """From the start of its run."""
    facts = {"created_at": at(10), "run_at": at(25), "waits_since": at(0), "at": at(30)}
    assert bar(**facts) == [("parents", 0, 10, ""), ("due", 10, 25, ""), ("queued", 25, 30, "")]
    assert bar(**facts | {"status": "scheduled", "run_at": at(99)}) == [
        ("parents", 0, 10, ""),
        ("due", 10, 30, ""),
    ]


def test_holds_past_and_present() -> None:
    """Each for what it was; one for another thing begins where the claim was that found it."""
    facts = {"run_at": at(20), "past_holds": [held(5, 20)], "attempt": 2, "started_at": at(30)}
    assert bar(status="scheduled", hold_reason="binary_missing", hold_key="ffmpeg", **facts) == [
        ("queued", 0, 5, ""),
        ("held", 5, 20, "limit full 'k'"),
        ("queued", 20, 30, ""),
        ("held", 30, 60, "binary missing 'ffmpeg'"),
    ]


def test_a_hold_says_when_it_is_looked_at_again_and_not_when_the_job_was_due() -> None:
    """Its row has that time where the enqueue's was."""
    claimed = {"attempt": 1, "started_at": at(30), "run_at": at(40)}
    assert bar(status="scheduled", hold_reason="unknown_task", hold_key="tidy", **claimed) == [
        ("queued", 0, 30, ""),
        ("held", 30, 60, "unknown task 'tidy'"),
    ]


def test_the_wait_between_two_attempts() -> None:
    """From the end of one to when the next is due, or was; of the first attempt only its end is known."""
    facts = {"errors": [failed(1, 10)], "attempt": 1, "started_at": at(5), "run_at": at(15)}
    tried = [("queued", 0, 5, ""), ("running", 5, 10, "attempt 1 on w"), ("retry", 10, 15, "")]
    assert bar(status="queued", **facts) == [*tried, ("queued", 15, 60, "")]
    again = facts | {"attempt": 2, "started_at": at(20), "claimed_by": "v"}
    assert bar(status="running", **again) == [
        ("queued", 0, 10, ""),
        ("retry", 10, 15, ""),
        ("queued", 15, 20, ""),
        ("running", 20, 60, "attempt 2 on v"),
    ]
    suspected = {"errors": [failed(1, 10, kind="suspect")], "attempt": 1, "started_at": at(5)}
    assert "retry" not in {kind for kind, *_ in bar(**suspected)}


def test_a_pause_is_shown_where_nothing_else_kept_it() -> None:
    """What runs, runs, and what is held is held, whatever was asked of the queue."""
    pauses = [Pause(at(-5), at(10), "paused by ann"), Pause(at(30), None, "off by bob")]
    claimed = {"started_at": at(40), "attempt": 1, "claimed_by": "w", "status": "running"}
    assert bar(pauses=pauses, past_holds=[held(8, 20)], run_at=at(20), **claimed) == [
        ("paused", 0, 8, "paused by ann"),
        ("held", 8, 20, "limit full 'k'"),
        ("queued", 20, 30, ""),
        ("paused", 30, 40, "off by bob"),
        ("running", 40, 60, "attempt 1 on w"),
    ]


def test_what_no_worker_works_on_is_parked() -> None:
    """A node that waits for an answer, a moment or another run."""
    assert bar(status="awaiting_input", kind="input") == [("parked", 0, 60, "")]
    assert bar(status="completed", kind="wait", finished_at=at(7)) == [
        ("parked", 0, 7, ""),
        ("ended", 7, 7, "completed"),
    ]
    assert bar(status="queued", kind="workflow") == [("queued", 0, 60, "")]


moments = st.integers(-100, 100).map(at)
errors = st.builds(
    failed,
    st.integers(1, 4),
    st.integers(-100, 100),
    kind=st.sampled_from(["x", "suspect"]),
    since=st.none() | st.integers(-100, 100).map(lambda minute: at(minute).isoformat()),
    again_s=st.none() | st.integers(0, 3600),
)
holds = st.builds(
    held,
    st.integers(-100, 100),
    st.integers(-100, 100),
    st.sampled_from(["k", "l"]),
    reason=st.sampled_from(["limit_full", GIVEN_BACK, OVER]),
)
facts_of_any_row = st.builds(
    JobFacts,
    at=moments,
    status=st.sampled_from([status.value for status in JobStatus]),
    created_at=moments,
    run_at=moments,
    started_at=st.none() | moments,
    finished_at=st.none() | moments,
    attempt=st.integers(0, 4),
    claimed_by=st.none() | st.just("w"),
    hold_reason=st.none() | st.just("limit_full"),
    hold_key=st.none() | st.just("k"),
    errors=st.lists(errors | st.just({}), max_size=4),
    past_holds=st.lists(holds, max_size=4),
    kind=st.sampled_from(["task", "input"]),
    waits_since=st.none() | moments,
    pauses=st.lists(st.builds(Pause, moments, st.none() | moments), max_size=3),
    served=st.none()
    | st.builds(Served.of, st.lists(st.tuples(moments, moments), max_size=3), moments, moments),
)


@given(facts_of_any_row)
def test_a_bar_is_a_whole_life_without_gaps(facts: JobFacts) -> None:
    """Whatever a row says, each part begins where the last one ends, and no two neighbours are alike."""
    segments = bar_of(facts)
    begin = min(facts.created_at, facts.waits_since or facts.created_at)
    end = max(begin, facts.finished_at or facts.at)
    parts = [one for one in segments if one.kind != "ended"]
    assert all(one.start < one.end for one in parts)
    assert [begin, *(one.end for one in parts)] == [*(one.start for one in parts), end]
    assert all((one.kind, one.note) != (two.kind, two.note) for one, two in itertools.pairwise(parts))
    assert sum((one.end - one.start for one in segments), timedelta()) == end - begin
    ended = [Segment("ended", end, end, facts.status)] if facts.finished_at is not None else []
    assert segments[len(parts) :] == ended
    assert len(json_of(segments)) == len(segments)
    spent = spent_of(segments, end)
    assert (spent.begin, spent.end) == (begin, end)
    assert sum((took for _, took in spent.causes), timedelta()) == spent.waited
    assert spent.worked + spent.over + spent.waited == end - begin


def test_attempts_before_the_last_one_have_their_own_time() -> None:
    """From the claim of each, and until when the next was to come; given back or failed."""
    errors = [failed(1, 10, since=at(5).isoformat(), again_s=120)]
    back = {**held(15, 20, "v", reason=GIVEN_BACK), "attempt": 2}
    facts = {"errors": errors, "past_holds": [back], "run_at": at(12), "attempt": 3, "started_at": at(30)}
    segments = bar(**facts, status="completed", claimed_by="w", finished_at=at(40))
    assert segments == [
        ("queued", 0, 5, ""),
        ("running", 5, 10, "attempt 1 on w"),
        ("retry", 10, 12, ""),
        ("queued", 12, 15, ""),
        ("running", 15, 20, "attempt 2 on v, given back"),
        ("queued", 20, 30, ""),
        ("running", 30, 40, "attempt 3 on w"),
        ("ended", 40, 40, "completed"),
    ]


def test_of_two_causes_that_overlap_one_counts() -> None:
    """What holds a job before what was asked of its queue, and both before that nobody worked there."""
    facts = {"past_holds": [held(10, 30)], "pauses": [Pause(at(0), at(20), "paused by ann", "paused", "ann")]}
    facts |= {"served": Served.of([], at(0), at(50)), "run_at": at(30)}
    assert bar(**facts) == [
        ("paused", 0, 10, "paused by ann"),
        ("held", 10, 30, "limit full 'k'"),
        ("unserved", 30, 50, ""),
        ("queued", 50, 60, ""),
    ]


def test_every_status_is_drawn() -> None:
    """With nothing but what each must have."""
    for status in JobStatus:
        over = {"finished_at": at(1)} if status in JOB_TERMINAL else {}
        assert bar(status=status.value, **over)


def test_a_job_for_later_was_not_due_whatever_came_of_it_afterwards() -> None:
    """An attempt that failed says when it was due; one that was given back or lost its worker leaves that as
    it was. Where a hold has set the time anew, or a node was opened anew, nobody failed to serve it.
    """
    claimed = {"status": "completed", "claimed_by": "w", "started_at": at(50), "finished_at": at(55)}
    unserved = {"served": Served.of([(at(31), at(55))], at(0), at(60))}
    again = failed(1, 35, since=at(31).isoformat(), again_s=0)
    lost = failed(1, 35, since=at(31).isoformat(), kind="worker_lost")
    ways: list[dict[str, Any]] = [
        {"run_at": at(35), "errors": [again | {"due": at(30).isoformat()}]},
        {"run_at": at(30), "past_holds": [held(31, 35, "v", reason=GIVEN_BACK)]},
        {"run_at": at(30), "errors": [lost]},
    ]
    for way in ways:
        told = bar(attempt=2, **claimed, **unserved, **way)
        assert told[:2] == [("due", 0, 30, ""), ("unserved", 30, 31, "")]
    at_once = bar(attempt=2, **claimed, **unserved, run_at=at(35), errors=[again])
    assert at_once[:1] == [("unserved", 0, 31, "")]
    unknown = [
        bar(attempt=2, **claimed, **unserved, run_at=at(40), past_holds=[held(31, 40)])[0],
        bar(attempt=2, **claimed, **unserved, run_at=at(40), kind="module")[0],
    ]
    note = "or not due yet: its row keeps no more when it was"
    assert unknown == [("queued", 0, 31, note), ("queued", 0, 31, note)]


def test_what_was_over_until_it_was_retried_has_waited_for_nothing() -> None:
    """It was at work before, if it was claimed, and due when it was; the retry keeps all of that."""
    over: dict[str, Any] = {
        **held(20, 40, "completed", reason=OVER),
        "worker": "v",
        "claimed": at(15).isoformat(),
    }
    over["due"] = at(10).isoformat()
    facts: dict[str, Any] = {
        "past_holds": [over],
        "run_at": at(40),
        "attempt": 2,
        "claimed_by": "w",
        "started_at": at(41),
    }
    facts |= {"status": "completed", "finished_at": at(45)}
    segments = bar(**facts)
    assert segments == [
        ("due", 0, 10, ""),
        ("queued", 10, 15, ""),
        ("running", 15, 20, "attempt 1 on v"),
        ("over", 20, 40, "completed"),
        ("queued", 40, 41, ""),
        ("running", 41, 45, "attempt 2 on w"),
        ("ended", 45, 45, "completed"),
    ]
    never_claimed = {"past_holds": [over | {"worker": None, "claimed": None, "due": at(99).isoformat()}]}
    assert bar(**facts | never_claimed)[:2] == [("due", 0, 20, ""), ("over", 20, 40, "completed")]
    facts_given = JobFacts(at=at(60), created_at=at(0), **facts)
    spent = spent_of(bar_of(facts_given), at(60))
    minutes = [one.total_seconds() / 60 for one in (spent.worked, spent.over, spent.waited)]
    assert minutes == [4, 20, 21]
    said = sentence_of(spent, is_over=True)
    assert said.endswith("it was over for 1200.0 s before it was retried")
