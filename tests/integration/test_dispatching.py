"""What the dispatcher makes of a run's events, with a worker that is a function."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from support.jobs import CLEAR
from support.runs import dispatcher, run_through, settle, start, work

from queue_workflows.repositories import InputSubmissionRepository, RunRepository


@pytest.fixture
def connection(qwf_dsn: str) -> Iterator[psycopg.Connection[Any]]:
    """Empty tables, and a connection whose every statement is seen at once."""
    with psycopg.connect(qwf_dsn, autocommit=True) as connection:
        connection.execute(CLEAR)
        yield connection


def nodes(connection: psycopg.Connection[Any], run_id: Any) -> dict[str, str]:
    """The states of a run's nodes that have a row."""
    rows = connection.execute("SELECT node_id, state FROM workflow_nodes WHERE run_id = %s", [run_id])
    return dict(rows.fetchall())


def test_a_chain_runs_to_its_outputs(connection):
    """Each node starts when the one before has completed, and the outputs are what they refer to."""
    chain = {
        "nodes": [
            {"id": "one", "module": "m"},
            {"id": "two", "module": "m", "inputs": {"n": {"$from": "one.n"}}},
            {"id": "three", "module": "m", "depends_on": ["two"]},
        ],
        "outputs": {"n": {"$from": "three.n"}},
    }
    run_id = start(connection, chain, priority=7)
    order = []

    def body(job):
        order.append(job.node_id)
        assert job.priority == 7
        return {"n": len(order)}

    run_through(connection, dispatcher(connection), body)
    run = RunRepository(connection).fetch(run_id)
    assert order == ["one", "two", "three"]
    assert (run.status, run.outputs, run.nodes_left, run.nodes_active) == ("completed", {"n": 3}, 0, 0)
    assert nodes(connection, run_id) == dict.fromkeys(order, "completed")
    assert connection.execute("SELECT kind FROM workflow_dispatch_events").fetchall() == [("run_finished",)]


def test_a_fan_out_and_in(connection):
    """One job per element, in parts; what comes after starts once, when the last has ended."""
    fan = {
        "inputs": {"many": {"type": "integer"}},
        "nodes": [
            {"id": "list", "module": "m"},
            {
                "id": "each",
                "module": "m",
                "for_each": {"$from": "list.all"},
                "inputs": {"x": {"$from": "item"}},
            },
            {"id": "sum", "module": "m", "inputs": {"all": {"$from": "each"}}},
        ],
    }
    run_id = start(connection, fan, inputs={"many": 12_000})
    items = []

    def body(job):
        if job.node_id == "list":
            return {"all": list(range(12_000))}
        if job.node_id == "each":
            items.append(job.map_index)
        return {}

    run_through(connection, dispatcher(connection), body)
    assert sorted(items) == list(range(12_000))
    assert RunRepository(connection).fetch(run_id).status == "completed"


def test_an_answer_resumes_a_parked_node(connection):
    """An answer that does not fit is refused with its error, the next one completes the node."""
    document = {
        "nodes": [
            {"id": "ask", "type": "input", "schema": {"ok": {"type": "boolean"}}},
            {"id": "go", "module": "m", "skip_if": {"$eq": [{"$from": "ask.ok"}, False]}},
        ],
        "outputs": {"ok": {"$from": "ask.ok"}},
    }
    run_id = start(connection, document)
    settling = dispatcher(connection)
    settle(settling)
    assert work(connection, lambda job: None) == 0
    answers = InputSubmissionRepository(connection)
    wrong = answers.insert(run_id, "ask", {"ok": "yes"})
    settle(settling)
    assert (answers.fetch(wrong).status, RunRepository(connection).fetch(run_id).status) == (
        "rejected",
        "running",
    )
    answers.insert(run_id, "ask", {"ok": False})
    settle(settling)
    run = RunRepository(connection).fetch(run_id)
    assert (run.status, run.outputs) == ("completed", {"ok": False})
    assert nodes(connection, run_id) == {"ask": "completed", "go": "skipped"}
