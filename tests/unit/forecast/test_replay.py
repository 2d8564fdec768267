"""Waiting work played through a fleet: what holds of every play, and what comes of many."""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from queue_workflows.engine.forecast.history import History, TaskHistory, Trial
from queue_workflows.engine.forecast.plays import STARVED, Span, foretell
from queue_workflows.engine.forecast.replay import Arriving, Load, Played, Running, Waiting, played

KNOWN = History({"task": TaskHistory(took_s=[1.0, 2.0, 3.0, 10.0] * 10)})


@dataclass
class Fixed:
    """Durations that are said by the task's name, in turn of the rows."""

    def trial(self, task: str, _key: str | None) -> Trial:
        """As long as its task is called."""
        return Trial(float(task), fails=False)

    def rest_s(self, task: str, _key: str | None, elapsed_s: float) -> float:
        """What is left of that."""
        return max(0.0, float(task) - elapsed_s)

    def known(self, _task: str) -> TaskHistory:
        """Nothing fails."""
        return TaskHistory()


def play(load: Load) -> Played:
    return played(load, Fixed(), Random(1))


@st.composite
def loads(draw: st.DrawFn) -> Load:
    """Rows with and without keys, hosts, priorities and due times, before a fleet that can run them."""
    slots = draw(st.dictionaries(st.sampled_from("abc"), st.integers(1, 3), min_size=1))
    caps = {"k": draw(st.integers(1, 3)), "l": draw(st.integers(1, 2))}
    row = st.builds(
        Waiting,
        name=st.just(""),
        task=st.sampled_from(["1", "2", "5"]),
        priority=st.integers(4, 6),
        keys=st.sampled_from([(), ("k",), ("l",), ("k", "l")]),
        host=st.sampled_from([None, None, *slots]),
        due_s=st.sampled_from([0.0, 0.0, 0.0, 3.0]),
    )
    rows = draw(st.lists(row, max_size=25))
    lane = {at for at, one in enumerate(rows) if one.key == "k" and not one.due_s and draw(st.booleans())}
    lanes = draw(st.sampled_from([frozenset[str](), frozenset("k")]))
    return Load(rows, (), slots, caps, lanes=lanes, in_lanes=frozenset(lane if lanes else ()))


@settings(max_examples=60, deadline=None)
@given(loads())
def test_what_holds_of_every_play(load: Load) -> None:
    """All work is done once and whole, by no more than a cap or a slot allows; nothing idles beside a row."""
    found = play(load)
    spans = [
        (begin, end) for begin, end in zip(found.begins, found.ends, strict=True) if begin is not None and end
    ]
    assert [end - begin for begin, end in spans] == [float(row.task) for row in load.waiting]
    assert load.caps is not None
    for now in {begin for begin, _ in spans}:
        at_work = [row for row, span in zip(load.waiting, spans, strict=True) if span[0] <= now < span[1]]
        assert len(at_work) <= load.all_slots
        room = {key: cap - sum(key in row.keys for row in at_work) for key, cap in load.caps.items()}
        assert min(room.values()) >= 0
        if len(at_work) < load.all_slots:
            late = [
                row for row, (begin, _) in zip(load.waiting, spans, strict=True) if begin > now >= row.due_s
            ]
            free = [row for row in late if row.host is None and all(room[key] > 0 for key in row.keys)]
            assert free == []


@settings(max_examples=40, deadline=None)
@given(st.lists(st.sampled_from(["1", "2", "5", "30"]), max_size=25), st.integers(1, 4))
def test_another_worker_makes_nothing_later(tasks: list[str], slots: int) -> None:
    """Of work that needs nothing but a worker each job ends as early, and all of it in every share."""
    few, more = (Load([Waiting("", task) for task in tasks], (), {"a": n}) for n in (slots, slots + 1))
    assert all(then <= now for then, now in zip(play(more).ends, play(few).ends, strict=True))
    rows = [Waiting("", "task") for _ in tasks]
    drains = [foretell(replace(load, waiting=rows), KNOWN, rows_played=1).drain for load in (few, more)]
    if tasks:
        few_s, more_s = (drain.middle_s for drain in drains if drain is not None)
        assert more_s <= few_s


def test_order_and_what_runs() -> None:
    """By priority, then in order; what runs keeps its slot; a worker that stops gives it to nobody."""
    rows = [Waiting("", "2"), Waiting("", "2"), Waiting("", "2", priority=9), Waiting("", "2", due_s=0.5)]
    running = [Running("", "4", 1.0, "a"), Running("", "9", 0.0, None)]
    assert play(Load(rows, running, {"a": 2})).begins == [2.0, 3.0, 0.0, 4.0]


def test_what_comes_out_of_a_lane_is_behind_the_others() -> None:
    """When its key has room, also what found it full; a line that is long it enters near its head."""
    others, keyed = [Waiting("", "1")] * 6, Waiting("", "1", keys=("k",))
    capped = Load([keyed, keyed, *others], (), {"a": 2}, {"k": 1}, lanes=frozenset("k"))
    assert play(capped).begins[:2] == [0.0, 3.0]
    assert play(replace(capped, in_lanes=frozenset({0, 1}))).begins[:2] == [3.0, 4.0]
    far = replace(capped, waiting=[keyed, keyed, *others * 30])
    assert play(far).begins[:2] == [0.0, 1.0]


def test_what_goes_into_a_lane_leaves_a_lock_to_the_next() -> None:
    """It came back for the lock, and found its key full: another that needs the lock alone begins."""
    lock, both, key = (Waiting("", "1", keys=keys) for keys in (("l",), ("k", "l"), ("k",)))
    rows = [lock, both, replace(key, task="5"), lock]
    load = Load(rows, (), {"a": 4}, {"k": 1, "l": 1}, lanes=frozenset("k"))
    assert play(load).begins == [0.0, 5.0, 0.0, 1.0]


def test_what_fails_is_tried_again() -> None:
    """After the delay of its task, and its end is that of its last attempt."""
    task = TaskHistory(took_s=[1.0] * 20, attempts=2, failures=2, backoff_s=10.0, max_attempts=3)
    told = foretell(Load([Waiting("", "task")], (), {"a": 1}), History({"task": task}))
    (begins,) = told.begins
    assert begins == Span(0.0, 0.0, 0.0)
    assert told.drain is not None
    assert 30 < told.drain.low_s < 36


def test_what_never_runs_says_why() -> None:
    """A closed limit, a host without workers, no worker at all, and what is always passed."""
    rows = [Waiting("", "task", keys=("k",)), Waiting("", "task", host="b"), Waiting("", "task")]
    told = foretell(Load(rows, (), {"a": 1}, {"k": 0}), KNOWN)
    assert {why.code: places for why, places in told.never.items()} == {"limit_closed": [0], "no_worker": [1]}
    assert told.ends[2] is not None
    assert [why.code for why in foretell(Load(rows, (), {}), KNOWN).never] == ["no_worker"]
    crowd = Load([Waiting("", "task", priority=1)] * 3, (), {"a": 1}, arriving=[Arriving("task", 9, 9.0)])
    assert STARVED in foretell(crowd, KNOWN, rows_played=1).never


def test_what_comes_in_for_long_starves_nobody_to_whom_it_leaves_workers() -> None:
    """Of a long play with much that arrives, quick jobs take a quarter of the fleet, as of a short one."""
    history = History({"slow": TaskHistory(took_s=[60.0] * 20), "quick": TaskHistory(took_s=[0.1] * 20)})
    load = Load([Waiting("", "slow")] * 80, (), {"a": 2}, arriving=[Arriving("quick", 9, 5.0)])
    told = foretell(load, history, rows_played=1)
    assert told.never == {}
    assert told.drain is not None
    assert 2_700 < told.drain.middle_s < 3_700


def test_a_seed_tells_all() -> None:
    """The same load comes to the same, another seed to another; its range is in order."""
    load = Load([Waiting("", "task")] * 9, (), {"a": 2})
    told = [foretell(load, KNOWN, seed=seed) for seed in (1, 1, 2)]
    assert told[0] == told[1] != told[2]
    span = told[0].drain
    assert span is not None
    assert 0 < span.low_s < span.middle_s < span.high_s
