"""An event of a run is acted on whenever it becomes visible, and once, by however many orchestrators."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import psycopg
import pytest
from support.connections.kept import own_connection
from support.processes.workers import patiently, running_orchestrator, running_worker
from support.rows.jobs import CLEAR
from support.rows.runs import dispatcher, run_through, settle, start, work

from queue_workflows.repositories import NodeJobRepository, RunRepository
from queue_workflows.repositories.claims.end import Ending
from queue_workflows.repositories.runs.outbox import DispatchRepository
from queue_workflows.states import JobStatus

PAIR = {
    "nodes": [
        {"id": "left", "module": "echo"},
        {"id": "right", "module": "echo"},
        {"id": "both", "module": "echo", "depends_on": ["left", "right"]},
    ]
}


@pytest.fixture
def connection(qwf_dsn: str) -> Iterator[psycopg.Connection[Any]]:
    """Empty tables, and a connection whose every statement is seen at once."""
    with own_connection(qwf_dsn) as connection:
        connection.execute(CLEAR)
        yield connection


def test_a_low_id_that_commits_late(qwf_dsn: str, connection) -> None:
    """An event whose number is passed already is found all the same: nobody reads by what was reached."""
    run_id = start(connection, PAIR)
    settling = dispatcher(connection)
    settle(settling)
    jobs = NodeJobRepository(connection)
    first, second = jobs.claim("cpu", worker_id="w", lease_s=60, limit=2)
    with psycopg.connect(qwf_dsn) as slow:
        NodeJobRepository(slow).end(Ending(first.fence, JobStatus.COMPLETED))
        jobs.end(Ending(second.fence, JobStatus.COMPLETED))
        settle(settling)
        states = "SELECT node_id FROM workflow_nodes WHERE state = 'completed'"
        assert connection.execute(states).fetchall() == [(second.node_id,)]
        slow.commit()
    run_through(connection, settling, lambda job: None)
    run = RunRepository(connection).fetch(run_id)
    assert run is not None
    assert run.status == "completed"


def test_an_event_that_comes_while_the_run_is_held(qwf_dsn: str, connection) -> None:
    """Who finds the run locked leaves it; its holder, or whoever looks next, acts on what came meanwhile."""
    run_id = start(connection, PAIR)
    with psycopg.connect(qwf_dsn, autocommit=True) as other:
        mine, theirs = dispatcher(connection), dispatcher(other)
        settle(mine)
        with psycopg.connect(qwf_dsn) as holder:
            assert DispatchRepository(holder).lock(run_id) is not None
            work(connection, lambda job: None)
            assert (mine.turn(), theirs.turn()) == (0, 0)
            holder.rollback()
        assert theirs.turn() + mine.turn() == 1
    run_through(connection, mine, lambda job: None)
    assert RunRepository(connection).fetch(run_id).status == "completed"  # type: ignore[union-attr]


@pytest.mark.parametrize("runs", [60, pytest.param(1_000, marks=pytest.mark.nightly)])
def test_two_orchestrators_share_the_runs(qwf_dsn: str, connection, runs: int) -> None:
    """Each job is made and done once, each run ends once."""
    with ExitStack() as stack:
        for number in range(2):
            stack.enter_context(running_orchestrator(qwf_dsn, QWF_HOST_LABEL=f"o{number}"))
        stack.enter_context(running_worker(qwf_dsn, "--queue", "cpu"))
        for _ in range(runs):
            start(connection, PAIR)
        over = "SELECT count(*) FROM workflow_runs WHERE status = 'completed'"
        patiently(lambda: connection.execute(over).fetchone() == (runs,))
    made = "SELECT count(*), count(DISTINCT (run_id, node_id)), max(generation), max(attempt)"
    rows = connection.execute(f"{made} FROM workflow_node_jobs").fetchone()
    assert rows is not None
    assert rows[:3] == (3 * runs, 3 * runs, 1)
    counted = connection.execute("SELECT DISTINCT state, jobs_total, jobs_completed FROM workflow_nodes")
    assert counted.fetchall() == [("completed", 1, 1)]
    kinds = "SELECT DISTINCT kind FROM workflow_dispatch_events"
    assert connection.execute(kinds).fetchall() in ([], [("run_finished",)])


def test_a_poison_event_holds_up_no_other_run(qwf_dsn: str, connection) -> None:
    """It is tried in its turn, put aside at last, and the runs beside it end meanwhile."""
    poisoned = start(connection, PAIR)
    for _ in range(3):
        DispatchRepository(connection).add_event(poisoned, "riddle")
    others = [start(connection, PAIR) for _ in range(5)]
    settling = dispatcher(connection, dispatch_max_tries=3, dispatch_backoff_s=300)
    run_through(connection, settling, lambda job: None)
    runs = RunRepository(connection)
    assert {runs.fetch(each).status for each in [poisoned, *others]} == {"completed"}  # type: ignore[union-attr]
    left = "SELECT tries, poisoned_at, last_error <> '' FROM workflow_dispatch_events WHERE kind = 'riddle'"
    assert connection.execute(left).fetchall() == [(1, None, True)] * 3
