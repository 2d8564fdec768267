"""What cannot be stored of a list or of a child run's inputs fails its node; it never holds up the run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from support.connections.kept import own_connection
from support.rows.jobs import CLEAR
from support.rows.runs import dispatcher, run_through, settings, settle, start

from queue_workflows.engine.runs.dispatcher import Dispatcher
from queue_workflows.engine.runs.open_nodes import ELEMENTS_AT_ONCE
from queue_workflows.engine.runs.retry import retry_run
from queue_workflows.engine.runs.verbs import cancel_run
from queue_workflows.repositories import RunRepository
from queue_workflows.states import RunStatus

LARGE = {"text": "x" * 3_000}
KID = {"name": "kid", "nodes": [{"id": "a", "module": "m"}]}


@pytest.fixture
def connection(qwf_dsn: str) -> Iterator[psycopg.Connection[Any]]:
    """Empty tables, and a connection whose every statement is seen at once."""
    with own_connection(qwf_dsn) as connection:
        connection.execute(CLEAR)
        yield connection


def end_of(connection: psycopg.Connection[Any], run_id: Any) -> tuple[str, str]:
    """How a run ended, and what it says; nothing of it is left to be tried again."""
    left = connection.execute("SELECT kind FROM workflow_dispatch_events WHERE kind <> 'run_finished'")
    assert left.fetchall() == []
    run = RunRepository(connection).fetch(run_id)
    return run.status, (run.error or {}).get("message", "")


def test_inputs_of_a_child_that_are_too_large_fail_its_node(connection):
    """Each result fits a row, and all of them together do not."""
    document = {
        "nodes": [
            {"id": "one", "module": "m"},
            {"id": "two", "module": "m"},
            {"id": "kid", "type": "workflow", "workflow": "kid",
             "inputs": {"all": [{"$from": "one"}, {"$from": "two"}]}},
        ]
    }  # fmt: skip
    run_id = start(connection, document)
    run_through(connection, dispatcher(connection, KID, payload_max_bytes=5_000), lambda _: LARGE)
    status, said = end_of(connection, run_id)
    assert status == "failed"
    assert "larger than 5,000 bytes" in said


def test_elements_that_are_too_large_fail_their_node(connection):
    """They are put together from results; the other branch goes on, and the node is not begun."""
    document = {
        "on_failure": "continue",
        "nodes": [
            {"id": "one", "module": "m"},
            {"id": "two", "module": "m"},
            {"id": "each", "module": "m", "for_each": [1, {"a": {"$from": "one"}, "b": {"$from": "two"}}, 3]},
            {"id": "other", "module": "m", "depends_on": ["one", "two"]},
        ],
    }
    run_id = start(connection, document)
    ran = []
    run_through(
        connection,
        dispatcher(connection, payload_max_bytes=5_000),
        lambda job: ran.append(job.node_id) or LARGE,
    )
    status, said = end_of(connection, run_id)
    assert (status, sorted(ran)) == ("failed", ["one", "other", "two"])
    assert "larger than 5,000 bytes" in said


@pytest.mark.parametrize("later", [ELEMENTS_AT_ONCE + 9, ELEMENTS_AT_ONCE + 11, ELEMENTS_AT_ONCE - 1])
def test_a_list_that_is_another_one_in_its_second_part_fails_its_node(connection, later):
    """The host app may answer anew; a list whose length changed would never end, or end too soon."""
    lengths = iter([ELEMENTS_AT_ONCE + 10, later])
    loaded = {"nodes": [{"id": "each", "module": "m", "for_each": {"$from": "host.list"}}]}
    run_id = start(connection, loaded)
    busy = Dispatcher(
        connection,
        settings(),
        host=lambda path, run: [0] * next(lengths),
        find_document=pytest.fail,
    )
    run_through(connection, busy, lambda _: None)
    status, said = end_of(connection, run_id)
    assert status == "failed"
    assert f"had {ELEMENTS_AT_ONCE + 10:,} elements" in said


def test_who_retries_a_parent_never_waits_for_its_child(connection, qwf_dsn):
    """The child may be ending, and waiting for the parent's row: another one is started in its place."""
    parent = {"nodes": [{"id": "kid", "type": "workflow", "workflow": "kid"}]}
    run_id = start(connection, parent)
    busy = dispatcher(connection, KID)
    settle(busy)
    cancel_run(run_id, conn=connection)
    settle(busy)
    (child,) = connection.execute(
        "SELECT id FROM workflow_runs WHERE parent_run_id = %s", [run_id]
    ).fetchone()
    assert RunRepository(connection).fetch(child).status == RunStatus.CANCELLED
    retry_run(run_id, conn=connection)
    connection.execute("SET lock_timeout = '5s'")
    with psycopg.connect(qwf_dsn) as holder:
        holder.execute("SELECT FROM workflow_runs WHERE id = %s FOR NO KEY UPDATE", [child])
        settle(busy)
        children = connection.execute(
            "SELECT status FROM workflow_runs WHERE parent_run_id = %s ORDER BY created_at", [run_id]
        ).fetchall()
        assert children == [("cancelled",), ("running",)]
    run_through(connection, busy, lambda _: None)
    assert end_of(connection, run_id) == ("completed", "")
