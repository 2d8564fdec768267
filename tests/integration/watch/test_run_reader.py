"""A run as a whole: what its document says, its counters, and what workers have of it now."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import psycopg
import pytest
from support.connections.kept import own_connection
from support.rows.jobs import CLEAR
from support.rows.plans import explain

from queue_workflows.engine.runs.retry import retry_run
from queue_workflows.engine.watch.run_reader import MOST_TELLING, RunReader
from queue_workflows.engine.watch.run_view import Activity, Elements, NodeOverview, RunOverview
from queue_workflows.errors import UnknownRun
from queue_workflows.repositories import DispatchEventRepository, NewNodeJob, NodeJobRepository, RunRepository
from queue_workflows.repositories.runs import overview
from queue_workflows.repositories.runs.runs import ParentNode
from queue_workflows.states import JobStatus
from queue_workflows.workflow.document.load import Document, load_document

FILM = load_document(
    {
        "name": "film",
        "nodes": [
            {"id": "plan", "module": "planner"},
            {"id": "draw", "module": "draw", "queue": "gpu", "for_each": {"$from": "plan.scenes"}},
            {"id": "approve", "type": "input", "depends_on": ["draw"]},
            {"id": "publish", "module": "publish", "depends_on": ["approve"]},
            {"id": "tidy", "module": "tidy", "depends_on": ["publish"], "when": "all_done"},
        ],
    }
)


@pytest.fixture
def conn(qwf_dsn: str) -> Iterator[psycopg.Connection]:
    with own_connection(qwf_dsn) as connection:
        connection.execute(CLEAR)
        yield connection


def started(conn: psycopg.Connection, document: Document = FILM, **columns: Any) -> uuid.UUID:
    """A run whose row says this."""
    run = RunRepository(conn).insert(
        document.name, spec=document.snapshot(), spec_hash=document.hash, labels={"customer": "ann"}
    )
    values = {"status": "running", "started_at": "2026-01-02T14:00:00Z", **columns}
    changes = ", ".join(f"{name} = %s" for name in values)
    conn.execute(f"UPDATE workflow_runs SET {changes} WHERE id = %s", [*values.values(), run.id])
    return run.id


def touched(conn: psycopg.Connection, run: uuid.UUID, node: str, state: str, **columns: Any) -> None:
    """A node's counters."""
    values = {"run_id": run, "node_id": node, "state": state, **columns}
    names, places = ", ".join(values), ", ".join(["%s"] * len(values))
    conn.execute(f"INSERT INTO workflow_nodes ({names}) VALUES ({places})", list(values.values()))


def look(conn: psycopg.Connection, run: uuid.UUID, **more: int) -> RunOverview:
    return RunReader(run, **more).look(conn)


def states(seen: RunOverview) -> dict[str, str]:
    return {node.id: node.state for node in seen.nodes}


def test_a_run_that_nobody_has_begun(conn):
    """All its nodes wait, with the parents that the document gives them, also by references."""
    run = started(conn, status="queued", started_at=None)
    seen = look(conn, run)
    assert (seen.id, seen.workflow, seen.status, seen.started_at) == (run, "film", "queued", None)
    assert seen.labels == {"customer": "ann"}
    assert seen.nodes[:2] == (
        NodeOverview("plan", "task", (), "waiting", "planner", "cpu"),
        NodeOverview("draw", "task", ("plan",), "waiting", "draw", "gpu"),
    )
    assert set(states(seen).values()) == {"waiting"}


def test_a_run_that_is_retried_with_another_document(conn):
    """The next look is by that, though the one before saw the run go on by the old one."""
    run = started(conn, status="failed", finished_at="2026-01-02T14:05:00Z")
    reader = RunReader(run)
    assert "news" not in states(reader.look(conn))
    news = {"name": "film", "nodes": [{"id": "plan", "module": "planner"}, {"id": "news", "module": "post"}]}
    retry_run(run, conn=conn, document=news)
    assert list(states(reader.look(conn))) == ["plan", "news"]


def test_nodes_are_what_their_jobs_are_at(conn):
    """A node in a worker's hands runs; one with elements counts them; a parked one says until when."""
    run = started(conn)
    jobs = NodeJobRepository(conn)
    touched(conn, run, "plan", "active")
    jobs.insert_many([NewNodeJob(run_id=run, node_id="plan", queue="cpu", node_module="planner")])
    assert states(look(conn, run))["plan"] == "queued"
    (job,) = jobs.claim("cpu", worker_id="h:cpu:1", lease_s=60)
    conn.execute(
        "UPDATE workflow_node_jobs SET progress = %s WHERE id = %s",
        [json.dumps({"fraction": 0.25, "message": "thinking", "page": 7}), job.id],
    )
    (plan, *_) = look(conn, run).nodes
    assert (plan.state, plan.attempt, plan.worker) == ("running", 1, "h:cpu:1")
    assert [one.message for one in plan.activities] == ["thinking"]
    assert (plan.fraction, plan.activities[0].index) == (0.25, -1)

    touched(
        conn, run, "draw", "active", mapped=True, jobs_total=10, jobs_left=6, jobs_completed=3, jobs_failed=1
    )
    jobs.insert_many(
        [NewNodeJob(run_id=run, node_id="draw", queue="gpu", map_index=index, item=index) for index in (7, 8)]
    )
    assert look(conn, run).nodes[1].state == "active"
    jobs.claim("gpu", worker_id="h:gpu:1", lease_s=60, limit=2)
    draw = look(conn, run).nodes[1]
    assert draw.state == "running"
    assert draw.elements == Elements(10, completed=3, failed=1, running=2)
    assert [(one.index, one.worker) for one in draw.activities] == [(7, "h:gpu:1"), (8, "h:gpu:1")]
    assert draw.fraction == pytest.approx(0.4)

    touched(conn, run, "approve", "active")
    jobs.insert_many(
        [
            NewNodeJob(
                run_id=run,
                node_id="approve",
                queue="cpu",
                kind="input",
                status=JobStatus.AWAITING_INPUT,
                expires_s=60,
            )
        ]
    )
    approve = look(conn, run).nodes[2]
    assert (approve.state, approve.type) == ("awaiting_input", "input")
    assert approve.due_at is not None


def test_why_a_node_failed_and_why_one_waits(conn):
    """The node's own error, else its job's; a hold with its key, a retry with its time."""
    run = started(conn)
    jobs = NodeJobRepository(conn)
    touched(conn, run, "plan", "failed", error=json.dumps({"type": "ValueError", "message": "no"}))
    touched(conn, run, "publish", "active")
    jobs.insert_many([NewNodeJob(run_id=run, node_id="publish", queue="cpu")])
    (job,) = jobs.claim("cpu", worker_id="w", lease_s=60)
    jobs.hold(job, "unknown_module", "publish", delay_s=600)
    seen = {node.id: node for node in look(conn, run).nodes}
    assert seen["plan"].error == "ValueError: no"
    assert (seen["publish"].state, seen["publish"].hold) == ("scheduled", "unknown_module publish")
    assert seen["publish"].due_at is not None


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        ({"stopping": "fail_fast"}, {"approve": "cancelled", "publish": "cancelled", "tidy": "waiting"}),
        ({"stopping": "cancel"}, {"approve": "cancelled", "publish": "cancelled", "tidy": "cancelled"}),
        (
            {"status": "cancelled", "finished_at": "2026-01-02T15:00:00Z"},
            {"approve": "cancelled", "publish": "cancelled", "tidy": "cancelled"},
        ),
    ],
)
def test_nodes_that_are_given_up_have_no_rows(conn, columns, expected):
    """As the planner counts them."""
    run = started(conn, **columns)
    touched(conn, run, "plan", "completed")
    assert expected.items() <= states(look(conn, run)).items()


def test_a_child_run_is_named(conn):
    """The latest one, of the node that started it."""
    document = load_document(
        {"name": "outer", "nodes": [{"id": "inner", "type": "workflow", "workflow": "film"}]}
    )
    run = started(conn, document)
    touched(conn, run, "inner", "active")
    (made,) = NodeJobRepository(conn).insert_many(
        [
            NewNodeJob(
                run_id=run, node_id="inner", queue="cpu", kind="workflow", status=JobStatus.AWAITING_INPUT
            )
        ]
    )
    parent = ParentNode(run, made.id, 1)
    children = [
        RunRepository(conn).insert("film", spec=FILM.snapshot(), spec_hash=FILM.hash, parent=parent).id
        for _ in range(2)
    ]
    (inner,) = look(conn, run).nodes
    assert inner.child_run == children[1]
    assert look(conn, children[0]).parent_run == run


def test_events_that_wait_and_that_were_given_up(conn):
    """The latter with what happened to them."""
    run = started(conn)
    events = DispatchEventRepository(conn)
    for kind in ("completed", "cancel"):
        events.insert(run, kind, node_job_id=None, generation=1, attempt=0)
    conn.execute(
        "UPDATE workflow_dispatch_events SET poisoned_at = now(), tries = 8, last_error = 'boom'"
        " WHERE kind = 'cancel'"
    )
    seen = look(conn, run)
    assert seen.events == 2
    (poisoned,) = seen.poisoned
    assert poisoned.endswith("(cancel) after 8 tries: boom")


def test_of_a_large_run_what_tells_and_counts(conn):
    """Never all rows: the failed and the active nodes, and the run's own counters."""
    many = load_document({"name": "many", "nodes": [{"id": f"n{n}", "module": "m"} for n in range(100)]})
    run = started(conn, many, nodes_left=30, nodes_active=2, nodes_failed=60)
    for number in range(70):
        touched(conn, run, f"n{number}", "failed" if number < 60 else "completed")
    for number in (70, 71):
        touched(conn, run, f"n{number}", "active")
    seen = look(conn, run, most_nodes=99)
    assert seen.counts == {"over": 10, "failed": 60, "active": 2, "waiting": 28}
    assert len(seen.nodes) == MOST_TELLING
    assert set(states(seen).values()) <= {"failed", "active"}
    assert len(look(conn, run, most_nodes=100).nodes) == 100


def test_a_run_of_the_host_apps_own_mode(conn):
    """Its jobs are all that is known: nodes without edges, counted."""
    run = RunRepository(conn).insert("pipeline", spec={"steps": [1, 2]}, spec_hash="x", mode="hooks").id
    jobs = NodeJobRepository(conn)
    jobs.insert_many(
        [
            NewNodeJob(run_id=run, node_id="first", queue="cpu"),
            *(NewNodeJob(run_id=run, node_id="many", queue="gpu", map_index=n) for n in range(3)),
        ]
    )
    (job,) = jobs.claim("gpu", worker_id="w", lease_s=60)
    seen = look(conn, run)
    assert states(seen) == {"first": "queued", "many": "running"}
    assert seen.nodes[1].elements == Elements(3, running=1)
    assert seen.nodes[1].activities[0] == Activity(0, "w", 1, seen.nodes[1].activities[0].started_at)
    assert job.map_index == 0


def test_a_document_that_this_version_cannot_read(conn):
    """The run is shown all the same, by its rows."""
    run = RunRepository(conn).insert("odd", spec={"nodes": [{"nonsense": 1}]}, spec_hash="x").id
    touched(conn, run, "a", "completed")
    assert states(look(conn, run)) == {"a": "completed"}


def test_in_brief_what_is_over_is_told_without_its_job(conn):
    """Its state and times are there all the same, and of what is at something everything is."""
    run = started(conn)
    jobs = NodeJobRepository(conn)
    touched(conn, run, "plan", "completed", started_at="2026-01-02T14:00:00Z")
    touched(conn, run, "publish", "active")
    jobs.insert_many([NewNodeJob(run_id=run, node_id=node, queue="cpu") for node in ("plan", "publish")])
    jobs.claim("cpu", worker_id="w", lease_s=60, limit=2)
    conn.execute(
        "UPDATE workflow_node_jobs SET status = 'queued', claimed_by = NULL, lease_expires_at = NULL"
    )
    whole = {node.id: node for node in look(conn, run).nodes}
    brief = {node.id: node for node in look(conn, run, brief_above=4).nodes}
    assert (whole["plan"].attempt, brief["plan"].attempt) == (1, 0)
    assert replace(whole["plan"], attempt=0) == brief["plan"]
    assert whole["publish"] == brief["publish"]
    assert (brief["publish"].state, brief["publish"].attempt) == ("queued", 1)
    assert look(conn, run, brief_above=5).nodes == tuple(whole.values())


def test_a_run_that_is_not_there(conn):
    """Is an error that says so."""
    with pytest.raises(UnknownRun):
        look(conn, uuid.uuid4())


@pytest.mark.slow
@pytest.mark.parametrize("sql", [overview.NODES, overview.RUNNING, overview.EVENTS, overview.POISONED])
def test_looking_costs_nothing_that_grows_with_elements(conn, sql):
    """With 50,000 elements in the run, and as many elsewhere, no statement reads the jobs as a whole."""
    run, other = started(conn), started(conn)
    conn.execute("ALTER TABLE workflow_node_jobs SET (autovacuum_enabled = off)")
    for each in (run, other):
        touched(conn, each, "draw", "active", mapped=True)
        conn.execute(
            "INSERT INTO workflow_node_jobs (run_id, node_id, map_index, queue, status, claimed_by, attempt,"
            " finished_at) SELECT %s, 'draw', n, 'gpu', 'completed', 'w', 1, now()"
            " FROM generate_series(0, 49999) AS n",
            [each],
        )
    conn.execute("ANALYZE workflow_node_jobs, workflow_nodes, workflow_runs, workflow_dispatch_events")
    params = {"run_id": run, "most": 1000, "states": None, "brief": False}
    plan = explain(conn, "force_custom_plan", sql, {key: params[key] for key in params if f"({key})" in sql})
    jobs = [node for node in plan if node.get("Relation Name") == "workflow_node_jobs"]
    assert all(node["Node Type"] != "Seq Scan" for node in jobs)
    if sql == overview.RUNNING:
        assert {node["Index Name"] for node in plan if "Index Name" in node} == {
            "ix_workflow_node_jobs_running"
        }
    conn.execute("ALTER TABLE workflow_node_jobs RESET (autovacuum_enabled)")
