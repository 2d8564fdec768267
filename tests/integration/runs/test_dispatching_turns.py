"""One turn of a dispatcher: whom it tries first, and whether it may have left something."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import closing
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest
from support.connections.kept import own_connection
from support.rows.jobs import CLEAR
from support.rows.runs import dispatcher, settings, settle, start, work

from queue_workflows.db.listen.listener import Wake
from queue_workflows.engine.runs import dispatcher as dispatching
from queue_workflows.engine.runs.dispatcher import Dispatcher, Woken
from queue_workflows.errors import ExitCode
from queue_workflows.repositories.runs.outbox import BEGUN_AT_ONCE, EVENTS_AT_ONCE
from queue_workflows.roles.orchestrator import orchestrator as orchestrating
from queue_workflows.roles.orchestrator.orchestrator import Orchestrator
from queue_workflows.workflow.planning import ends_awaited

CHAIN = {"nodes": [{"id": "a", "module": "m"}, {"id": "b", "module": "m", "depends_on": ["a"]}]}


@pytest.fixture
def conn(qwf_dsn: str) -> Iterator[psycopg.Connection]:
    with own_connection(qwf_dsn) as connection:
        connection.execute(CLEAR)
        yield connection


def nobody() -> bool:
    return False


def test_a_wake_tries_the_run_that_moved_last(conn: psycopg.Connection) -> None:
    """Before it looks for any; without a wake, and after a turn that moved several, it looks."""
    own = dispatcher(conn)
    start(conn, CHAIN)
    assert own.turn() == 1
    work(conn, lambda _: {})
    assert own.turn(nobody) == 0
    assert own.turn() == 1
    work(conn, lambda _: {})
    assert own.turn(nobody, woken=Woken.SOMEHOW) == 1
    for _ in range(2):
        start(conn, CHAIN)
    assert own.turn() == 2
    work(conn, lambda _: {})
    assert own.turn(nobody, woken=Woken.SOMEHOW) == 0
    assert own.turn(woken=Woken.SOMEHOW) == 2


@pytest.fixture
def _looks_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow the machine is."""
    monkeypatch.setattr(dispatching, "LOOK_WITHIN_S", 3600.0)


@pytest.mark.usefixtures("_looks_late")
def test_a_single_wake_that_found_its_run_is_looked_for_no_further(conn: psycopg.Connection) -> None:
    """Whoever else wrote sends a wake of his own: the next one finds nothing at that run, and all others."""
    own = dispatcher(conn)
    start(conn, CHAIN)
    assert own.turn() == 1
    # A look that found nothing does not forget which run that was.
    assert own.turn() == 0
    work(conn, lambda _: {})
    start(conn, CHAIN)
    assert own.turn(woken=Woken.ONCE) == 1
    assert own.turn(woken=Woken.ONCE) == 1
    assert own.looks_at == math.inf
    work(conn, lambda _: {})
    assert own.turn() == 2
    assert own.turn() == 0


def orchestrator(
    conn: psycopg.Connection, own: Dispatcher, listener: Any, halt: Any, ended: list[int]
) -> Orchestrator:
    """One that `listener` wakes and `halt` stops; `ended` grows with each call of the hooks."""
    return Orchestrator(
        lambda: psycopg.connect(conn.info.dsn, autocommit=True),
        settings(poll_s=3600),
        name="o",
        listener=listener,
        halt=halt,
        dispatcher=lambda _: own,
        on_news=lambda: ended.append(1),
    )


def test_the_end_of_a_run_is_told(conn: psycopg.Connection) -> None:
    """Once, and a hop is not: who calls the hooks waits for this and else for his poll."""
    own, ended = dispatcher(conn), list[int]()
    halt: Any = SimpleNamespace(urgency=0, exit_code=ExitCode.DONE)
    listener: Any = SimpleNamespace(wait=lambda _: None, is_wanted=lambda _: True)
    start(conn, CHAIN)
    told = []
    for _ in range(3):
        with closing(orchestrator(conn, own, listener, halt, ended)) as role:
            role.run(once=True)
        told.append(len(ended))
        work(conn, lambda _: {})
    assert told == [0, 0, 1]


@pytest.mark.parametrize("number", [1, 2])
def test_a_wake_may_be_for_more_runs_than_one(conn: psycopg.Connection, number: int) -> None:
    """Jobs may end in one transaction, as those of a worker of many: the others are looked for soon after.

    Where there were more wakes than one they are looked for at once.
    """
    woken = [Wake("notified", number=number), None, None]
    waits: list[float] = []
    begun = "SELECT count(*) FROM workflow_node_jobs WHERE node_id = 'b'"

    def wait(seconds: float) -> Wake | None:
        if len(waits) == 0:
            work(conn, lambda _: {})
        waits.append(seconds)
        if not woken:
            halt.urgency = 1
        return woken.pop(0) if woken else None

    halt: Any = SimpleNamespace(urgency=0, exit_code=ExitCode.DONE)
    listener: Any = SimpleNamespace(wait=wait, is_wanted=lambda _: True, must_look_again=lambda: False)
    own, ended = dispatcher(conn), list[int]()
    for _ in range(2):
        start(conn, CHAIN)
        assert own.turn() == 1
    with closing(orchestrator(conn, own, listener, halt, ended)) as role:
        role.run()
    # Woken at once, it waits no longer than it may leave the others alone, and finds the second.
    assert conn.execute(begun).fetchone() == (2,)
    assert waits[:2] == [0, 0]
    assert waits[2] >= 0
    assert (waits[2] <= dispatching.LOOK_WITHIN_S) is (number == 1)
    assert not ended


@pytest.mark.usefixtures("_looks_late")
def test_several_wakes_are_several_runs(conn: psycopg.Connection) -> None:
    """Also where the run that moved last moves again."""
    own = dispatcher(conn)
    start(conn, CHAIN)
    assert own.turn() == 1
    work(conn, lambda _: {})
    start(conn, CHAIN)
    assert own.turn(woken=Woken.SOMEHOW) == 2


def test_however_often_a_run_wakes_the_others_are_looked_for(conn: psycopg.Connection) -> None:
    """A wake may have been for several, or be lost."""
    length = 100
    own = dispatcher(conn)
    nodes = [{"id": f"n{i}", "module": "m", "depends_on": [f"n{i - 1}"][:i]} for i in range(length)]
    start(conn, {"nodes": nodes})
    assert own.turn() == 1
    other = start(conn, CHAIN)
    for _ in range(length):
        work(conn, lambda _: {}, limit=1)
        own.turn(woken=Woken.ONCE)
        if conn.execute("SELECT status FROM workflow_runs WHERE id = %s", [other]).fetchone() == ("running",):
            return
    raise AssertionError("the other run has not begun")


def test_only_the_end_of_a_run_is_news_for_its_hooks(conn: psycopg.Connection) -> None:
    """Who tells them is not asked to look after each hop."""
    own = dispatcher(conn)
    start(conn, CHAIN)
    told = []
    for _ in range(3):
        assert own.turn() == 1
        told.append(own.has_ended_runs)
        work(conn, lambda _: {})
    assert told == [False, False, True]
    assert (own.turn(), own.has_ended_runs) == (0, False)


def test_a_full_batch_may_have_left_something(
    conn: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of events, one of runs to begin, and a turn that was told to stop; nothing else has.

    A run is not left alone behind such a batch.
    """
    monkeypatch.setattr(ends_awaited, "LONGEST_REST_S", 360_000.0)
    monkeypatch.setattr(ends_awaited, "_QUICKEST_END_S", 3600.0)
    own = dispatcher(conn)
    elements = list(range(EVENTS_AT_ONCE + 4))
    start(conn, {"nodes": [{"id": "each", "module": "m", "for_each": {"$value": elements}}]})
    assert (own.turn(), own.has_more) == (1, False)
    while work(conn, lambda _: {}):
        pass
    assert (own.turn(), own.has_more) == (1, True)
    assert (own.turn(rests=True), own.has_more) == (1, False)
    for _ in range(BEGUN_AT_ONCE):
        start(conn, CHAIN)
    assert (own.turn(nobody), own.has_more) == (0, True)
    assert (own.turn(), own.has_more) == (BEGUN_AT_ONCE, True)
    settle(own)
    assert not own.has_more


def test_ends_that_open_nothing_are_taken_together(
    conn: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A role leaves the run alone for a moment then, but not its neighbours; without `rests` nobody waits."""
    monkeypatch.setattr(ends_awaited, "LONGEST_REST_S", 360_000.0)
    monkeypatch.setattr(ends_awaited, "_QUICKEST_END_S", 3600.0)
    own = dispatcher(conn)
    wide = [{"id": f"n{at}", "module": "m"} for at in range(8)]
    last = {"id": "z", "module": "m", "depends_on": [node["id"] for node in wide]}
    run_id = start(conn, {"nodes": [*wide, last]})
    assert own.turn(rests=True) == 1
    assert own.rest_s > 0
    for _ in range(2):
        assert work(conn, lambda _: {}, limit=1) == 1
        assert own.turn(rests=True) == own.turn(rests=True, woken=Woken.ONCE) == 0
    start(conn, CHAIN)
    assert own.turn(rests=True) == 1
    assert own.turn() == 1
    left = "SELECT parents_left FROM workflow_nodes WHERE run_id = %s AND node_id = 'z'"
    assert conn.execute(left, [run_id]).fetchone() == (6,)
    # What is left of the eight is done with the chain's job, and then the end of the run is at hand.
    assert work(conn, lambda _: {}) == 7
    assert own.turn() == 2
    assert own.rest_s == 0


def test_an_orchestrator_hears_no_wake_while_a_run_rests(
    conn: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor has it writers notify for long, as it looks by itself; with `once` nothing is waited for."""
    monkeypatch.setattr(ends_awaited, "LONGEST_REST_S", 360_000.0)
    monkeypatch.setattr(ends_awaited, "_QUICKEST_END_S", 3600.0)
    slept: list[float] = []
    withdrawn: list[bool] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        assert work(conn, lambda _: {}, limit=1) == 1
        halt.urgency = int(len(slept) == 5)

    halt: Any = SimpleNamespace(urgency=0, exit_code=ExitCode.DONE)
    listener: Any = SimpleNamespace(
        wait=lambda _: None,
        absorb=lambda withdraw: withdrawn.append(withdraw()),
        is_wanted=lambda _: not withdrawn,
    )
    wide = [{"id": f"n{at}", "module": "m"} for at in range(8)]
    last = {"id": "z", "module": "m", "depends_on": [node["id"] for node in wide]}
    run_id = start(conn, {"nodes": [*wide, last]})
    left = "SELECT parents_left FROM workflow_nodes WHERE run_id = %s AND node_id = 'z'"
    with (
        closing(orchestrator(conn, own := dispatcher(conn), listener, halt, [])) as role,
        monkeypatch.context() as at,
    ):
        at.setattr(orchestrating, "time", SimpleNamespace(monotonic=time.monotonic, sleep=sleep))
        role.run()
    assert slept == [orchestrating._DEAF_S] * 5
    assert withdrawn == [True]
    assert conn.execute(left, [run_id]).fetchone() is None
    halt.urgency = 0
    with closing(orchestrator(conn, own, listener, halt, [])) as role:
        role.run(once=True)
    assert conn.execute(left, [run_id]).fetchone() == (3,)
