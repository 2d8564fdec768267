"""A dispatcher keeps the nodes of runs that it moved last, and knows when another one has moved them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from uuid import UUID

import psycopg
import pytest
from support.connections.kept import own_connection
from support.rows.jobs import CLEAR
from support.rows.runs import dispatcher, run_through, settle, start, work

from queue_workflows.engine.runs import node_cache
from queue_workflows.engine.runs.node_cache import KeptNodes
from queue_workflows.engine.runs.retry import retry_run
from queue_workflows.engine.runs.verbs import cancel_node
from queue_workflows.repositories import RunRepository
from queue_workflows.repositories.runs.nodes import WorkflowNodeRepository
from queue_workflows.workflow.planning.progress import Counters

CHAIN = {"nodes": [{"id": f"n{at}", "module": "m", "depends_on": [f"n{at - 1}"][:at]} for at in range(6)]}
JOIN = {
    "nodes": [
        *({"id": f"n{at}", "module": "m"} for at in range(4)),
        {"id": "last", "module": "m", "depends_on": [f"n{at}" for at in range(4)]},
    ]
}


@pytest.fixture
def conn(qwf_dsn: str) -> Iterator[psycopg.Connection]:
    with own_connection(qwf_dsn) as connection:
        connection.execute(CLEAR)
        yield connection


def status(connection: psycopg.Connection, run_id: UUID) -> str:
    return RunRepository(connection).fetch(run_id).status  # type: ignore[union-attr]


def test_a_hop_waits_for_no_node(conn: psycopg.Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the next end concerns is asked for behind the commit, and not when that end comes."""
    read: list[Any] = []
    kept = WorkflowNodeRepository.read
    monkeypatch.setattr(WorkflowNodeRepository, "read", lambda *given: read.append(given[2]) or kept(*given))
    run_id = start(conn, CHAIN)
    run_through(conn, dispatcher(conn), lambda _: {})
    assert status(conn, run_id) == "completed"
    assert read == [["n0"]]  # when the run began


def test_what_another_one_moved_is_read_again(conn: psycopg.Connection, qwf_dsn: str) -> None:
    """Two take turns at one run, an end each."""
    run_id = start(conn, JOIN)
    with psycopg.connect(qwf_dsn, autocommit=True) as other:
        both = [dispatcher(conn), dispatcher(other)]
        assert both[0].dispatch(run_id)
        for at in range(4):
            assert work(conn, lambda _: {}, limit=1) == 1
            assert both[at % 2].dispatch(run_id)
        assert work(conn, lambda _: {}) == 1
        assert both[0].dispatch(run_id)
    assert status(conn, run_id) == "completed"


def test_what_people_change_is_read_again(conn: psycopg.Connection) -> None:
    """A retry writes nodes beside every dispatcher; a node that was cancelled stays so."""
    run_id = start(conn, CHAIN)
    own = dispatcher(conn)
    run_through(conn, own, lambda _: {})
    retry_run(run_id, conn=conn, from_node="n3")
    settle(own)
    cancel_node(run_id, "n5", conn=conn)
    done: list[str] = []
    run_through(conn, own, lambda job: done.append(job.node_id) or {})
    assert done == ["n3", "n4"]
    assert status(conn, run_id) == "completed"


def test_what_was_rolled_back_is_forgotten(conn: psycopg.Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch that fails when all is planned leaves nothing of its plan behind."""
    run_id = start(conn, JOIN)
    own = dispatcher(conn)
    own.dispatch(run_id)
    work(conn, lambda _: {}, limit=2)
    with monkeypatch.context() as broken:
        broken.setattr(WorkflowNodeRepository, "write", lambda *_: 1 / 0)
        own.dispatch(run_id)
    conn.execute("UPDATE workflow_dispatch_events SET next_try_at = now()")
    run_through(conn, own, lambda _: {})
    assert status(conn, run_id) == "completed"


def test_what_is_kept_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The runs that moved least lately go first, and a run of very many nodes is not kept at all."""
    monkeypatch.setattr(node_cache, "MOST_NODES", 10)
    kept = KeptNodes()
    runs = [UUID(int=number) for number in range(4)]
    rows = {f"n{number}": Counters(f"n{number}") for number in range(4)}
    for run_id in runs[:3]:
        kept.keep(run_id, "7", rows)
    kept.keep(runs[3], "7", {f"n{number}": None for number in range(11)})
    assert [kept.take(run_id, "7") for run_id in runs] == [{}, rows, rows, {}]
    kept.keep(runs[0], "7", rows)
    assert kept.take(runs[0], "8") == {}
    assert kept.take(runs[0], "7") == {}
