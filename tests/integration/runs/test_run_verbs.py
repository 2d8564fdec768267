"""The verbs of runs as rows: what they store and what they refuse, in the caller's transaction."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy import Engine
from sqlalchemy.orm import Session
from support.connections.kept import own_connection
from support.rows.jobs import CLEAR
from support.rows.runs import dispatcher, run_through

from queue_workflows import PayloadError, RunRefused, UnknownNode, UnknownRun
from queue_workflows.config import set_workflow_provider
from queue_workflows.engine.runs.verbs import cancel_node, cancel_run, cancel_runs, start_run, submit_input
from queue_workflows.errors import DocumentError, UnknownWorkflow
from queue_workflows.repositories import (
    InputSubmissionRepository,
    NewNodeJob,
    NodeJobRepository,
    RunRepository,
)
from queue_workflows.repositories.audit_log import AuditRepository
from queue_workflows.states import JobStatus
from queue_workflows.workflow.document.load import load_document

FILM: dict[str, Any] = {
    "name": "film",
    "inputs": {"brief": {"type": "string"}, "size": {"type": "integer", "default": 3}},
    "labels": {"team": "red", "kind": "film"},
    "nodes": [
        {"id": "plan", "module": "plan", "inputs": {"brief": {"$from": "inputs.brief"}}},
        {
            "id": "approve",
            "type": "input",
            "depends_on": ["plan"],
            "schema": {"ok": {"type": "boolean"}, "note": {"type": "string", "default": ""}},
        },
    ],
}


@pytest.fixture
def conn(qwf_dsn: str) -> Iterator[psycopg.Connection]:
    """Empty tables; each statement is seen at once."""
    with own_connection(qwf_dsn) as connection:
        connection.execute(CLEAR)
        yield connection


def started(conn: psycopg.Connection, **more: Any) -> uuid.UUID:
    return start_run(FILM, {"brief": "x"}, conn=conn, **more).id


def run_row(conn: psycopg.Connection, run_id: uuid.UUID) -> Any:
    row = RunRepository(conn).fetch(run_id)
    assert row is not None
    return row


def be(conn: psycopg.Connection, run_id: uuid.UUID, status: str, mode: str = "node") -> None:
    conn.execute(
        "UPDATE workflow_runs SET status = %(s)s, mode = %(m)s,"
        " finished_at = CASE WHEN %(s)s IN ('queued', 'running') THEN NULL ELSE now() END WHERE id = %(id)s",
        {"s": status, "m": mode, "id": run_id},
    )


def asked(conn: psycopg.Connection) -> list[tuple[Any, ...]]:
    """The requests in the outbox."""
    return conn.execute("SELECT run_id, kind, payload FROM workflow_dispatch_events ORDER BY id").fetchall()


def test_a_run_is_stored_with_its_document(conn: psycopg.Connection) -> None:
    """A snapshot that loads to the same document, inputs with defaults, labels of both."""
    run_id = started(conn, labels={"team": "blue"}, parcel_id="p7", traceparent="00-1")
    row = run_row(conn, run_id)
    document = load_document(FILM)
    assert load_document(row.spec) == document
    assert (row.workflow_name, row.mode, row.status, row.spec_hash) == (
        "film",
        "node",
        "queued",
        document.hash,
    )
    assert row.inputs == {"brief": "x", "size": 3}
    assert row.labels == {"team": "blue", "kind": "film"}
    assert (row.priority, row.parcel_id, row.traceparent, row.depth) == (5, "p7", "00-1", 0)


@pytest.fixture
def films() -> Iterator[None]:
    """A host app that knows one workflow."""
    set_workflow_provider(load_workflow={"film": FILM}.get)
    yield
    set_workflow_provider(load_workflow=None)


def test_a_workflow_by_whatever_it_is_given(conn: psycopg.Connection, films: None, tmp_path: Path) -> None:
    """A name that the host app knows, a dict, a loaded document, a file."""
    file = tmp_path / "film.yaml"
    file.write_text("nodes: [{id: plan, module: plan}]\npriority: 8\n")
    for given in ("film", FILM, load_document(FILM)):
        row = run_row(conn, start_run(given, {"brief": "x"}, conn=conn).id)
        assert row.spec_hash == load_document(FILM).hash
    assert run_row(conn, start_run(file, conn=conn).id).priority == 8
    assert run_row(conn, start_run(file, conn=conn, priority=0).id).priority == 0
    with pytest.raises(UnknownWorkflow):
        start_run("cartoon", conn=conn)
    with pytest.raises(DocumentError, match="plan"):
        start_run({"name": "film", "nodes": [{"id": "plan", "modul": "plan"}]}, conn=conn)


def test_wrong_inputs_are_refused_before_anything_is_written(conn: psycopg.Connection) -> None:
    """Missing, misspelt, of the wrong type: all of it said at once; and the transaction goes on."""
    with conn.transaction():
        with pytest.raises(PayloadError) as caught:
            start_run(FILM, {"breif": "x", "size": "big"}, conn=conn)
        for words in ("inputs.brief is missing", "did you mean 'brief'", "inputs.size must be integer"):
            assert words in str(caught.value)
        for wrong in ({"labels": ["a"]}, {"priority": 10}, {"dedupe_key": ""}):
            with pytest.raises(PayloadError):
                start_run(FILM, {"brief": "x"}, conn=conn, **wrong)
        assert conn.execute("SELECT count(*) FROM workflow_runs").fetchone() == (0,)


def test_once_for_a_key(conn: psycopg.Connection) -> None:
    """The same key starts no second run of the workflow, whatever its inputs are this time."""
    first = start_run(FILM, {"brief": "x"}, conn=conn, dedupe_key="k")
    assert first.created
    assert start_run(FILM, {"brief": "y"}, conn=conn, dedupe_key="k") == (first.id, False)
    assert start_run(FILM | {"name": "other"}, {"brief": "x"}, conn=conn, dedupe_key="k").created


def test_all_verbs_ride_the_callers_transaction(
    conn: psycopg.Connection, qwf_engine: Engine, qwf_dsn: str
) -> None:
    """On each kind of connection; rolled back, nothing was."""
    run_id = waiting(conn)
    before = asked(conn)

    def everything(handle: Any) -> None:
        start_run(FILM, {"brief": "x"}, conn=handle)
        cancel_run(run_id, conn=handle, actor="ann")
        cancel_node(run_id, "plan", conn=handle)
        submit_input(run_id, "approve", {"ok": True}, conn=handle)

    def counts() -> list[Any]:
        tables = ("workflow_runs", "workflow_dispatch_events", "workflow_input_submissions", "audit_log")
        return [conn.execute(f"SELECT count(*) FROM {table}").fetchone()[0] for table in tables]

    stored = counts()
    with psycopg.connect(qwf_dsn) as other:
        everything(other)
        other.rollback()
    with qwf_engine.connect() as connection:
        everything(connection)
        connection.rollback()
    with Session(qwf_engine) as session:
        everything(session)
        session.rollback()
    assert (counts(), asked(conn)) == (stored, before)
    with Session(qwf_engine) as session, session.begin():
        everything(session)
    # The answer writes its event itself.
    assert counts() == [stored[0] + 1, stored[1] + 3, stored[2] + 1, stored[3] + 1]


def test_a_cancel_is_an_event(conn: psycopg.Connection, qwf_dsn: str) -> None:
    """The run's row is not touched, so who holds it is not waited for; an operator is written down."""
    run_id = started(conn)
    with psycopg.connect(qwf_dsn) as holder:
        holder.execute("SELECT FROM workflow_runs WHERE id = %s FOR NO KEY UPDATE", [run_id])
        conn.execute("SET lock_timeout = '5s'")
        assert cancel_run(run_id, conn=conn, reason="too dear", actor="ann")
    assert asked(conn) == [(run_id, "cancel", {"reason": "too dear", "actor": "ann"})]
    assert run_row(conn, run_id).status == "queued"
    (entry,) = AuditRepository(conn).of("run", str(run_id))
    assert (entry.actor, entry.action, entry.reason) == ("ann", "run.cancel", "too dear")
    be(conn, run_id, "completed")
    assert not cancel_run(str(run_id), conn=conn)
    assert len(asked(conn)) == 1


def test_many_are_cancelled_together_or_not_at_all(conn: psycopg.Connection) -> None:
    """One that is over stays; one that is unknown, or the host app's own, refuses them all."""
    open_, over, foreign = started(conn), started(conn), started(conn)
    be(conn, over, "failed")
    assert cancel_runs([open_, over], conn=conn) == {open_: "queued", over: "failed"}
    assert [run_id for run_id, *_ in asked(conn)] == [open_]
    be(conn, foreign, "running", mode="shop")
    with pytest.raises(UnknownRun):
        cancel_runs([open_, uuid.uuid4()], conn=conn)
    with pytest.raises(RunRefused, match="mode 'shop'"):
        cancel_runs([open_, foreign], conn=conn)
    assert len(asked(conn)) == 1


def test_one_node_is_cancelled(conn: psycopg.Connection) -> None:
    """By its id in the run's own document."""
    run_id = started(conn)
    assert cancel_node(f"run:{run_id}", "approve", conn=conn, reason="no need")
    assert asked(conn) == [(run_id, "cancel", {"reason": "no need", "node_id": "approve"})]
    with pytest.raises(UnknownNode, match="qwf run show"):
        cancel_node(run_id, "aprove", conn=conn)
    with pytest.raises(UnknownRun):
        cancel_node(uuid.uuid4(), "approve", conn=conn)
    conn.execute(
        "INSERT INTO workflow_nodes (run_id, node_id, state) VALUES (%s, 'plan', 'completed')", [run_id]
    )
    assert not cancel_node(run_id, "plan", conn=conn)
    be(conn, run_id, "cancelled")
    assert not cancel_node(run_id, "approve", conn=conn)
    assert len(asked(conn)) == 1


def waiting(conn: psycopg.Connection, **job: Any) -> uuid.UUID:
    """A run whose node `approve` waits for an answer."""
    run_id = started(conn)
    be(conn, run_id, "running")
    conn.execute(
        "INSERT INTO workflow_nodes (run_id, node_id, state, jobs_total, jobs_left)"
        " VALUES (%s, 'approve', 'active', 1, 1)",
        [run_id],
    )
    new = NewNodeJob(
        run_id=run_id, node_id="approve", queue="cpu", kind="input", status=JobStatus.AWAITING_INPUT, **job
    )
    NodeJobRepository(conn).insert_many([new])
    return run_id


def test_an_answer_is_stored_with_its_defaults(conn: psycopg.Connection) -> None:
    """And announced to the orchestrators by the row itself."""
    run_id = waiting(conn)
    answer = submit_input(run_id, "approve", {"ok": True}, conn=conn, submitted_by="ann")
    stored = conn.execute(
        "SELECT id, run_id, node_id, payload, submitted_by, status FROM workflow_input_submissions"
    ).fetchall()
    assert stored == [(answer, run_id, "approve", {"ok": True, "note": ""}, "ann", "pending")]
    assert asked(conn) == [(run_id, "input_submitted", {"submission_id": answer, "node_id": "approve"})]


def test_an_answer_may_come_before_its_node(conn: psycopg.Connection) -> None:
    """It is checked and kept until the node asks for it."""
    early = started(conn)
    with pytest.raises(PayloadError):
        submit_input(early, "approve", {"ok": 1}, conn=conn)
    answer = submit_input(early, "approve", {"ok": True}, conn=conn)
    orchestrator = dispatcher(conn)
    run_through(conn, orchestrator, lambda job: {})
    assert run_row(conn, early).status == "completed"
    row = InputSubmissionRepository(conn).fetch(answer)
    assert row is not None
    assert row.status == "accepted"


def test_an_answer_that_nobody_asked_for_is_refused(conn: psycopg.Connection) -> None:
    """Wrong in itself, or for a node that waits for none: nothing is stored, and the reason is said."""
    run_id = waiting(conn)
    for wrong, words in (({}, "the answer.ok is missing"), ({"ok": 1}, "boolean"), ([], "must be an object")):
        with pytest.raises(PayloadError, match=words):
            submit_input(run_id, "approve", wrong, conn=conn)
    with pytest.raises(RunRefused, match="is a task"):
        submit_input(run_id, "plan", {"ok": True}, conn=conn)
    with pytest.raises(UnknownNode):
        submit_input(run_id, "aprove", {"ok": True}, conn=conn)
    with pytest.raises(UnknownRun):
        submit_input(uuid.uuid4(), "approve", {"ok": True}, conn=conn)
    with pytest.raises(RunRefused, match="awaits no answer any more: it is expired"):
        submit_input(waiting(conn, expires_s=0), "approve", {"ok": True}, conn=conn)
    conn.execute("UPDATE workflow_nodes SET state = 'skipped' WHERE run_id = %s", [run_id])
    with pytest.raises(RunRefused, match="any more: it is skipped"):
        submit_input(run_id, "approve", {"ok": True}, conn=conn)
    be(conn, run_id, "cancelled")
    with pytest.raises(RunRefused, match="is cancelled"):
        submit_input(run_id, "approve", {"ok": True}, conn=conn)
    assert conn.execute("SELECT count(*) FROM workflow_input_submissions").fetchone() == (0,)


@pytest.mark.parametrize("run", [7, None, "film", "", b"x"])
def test_what_is_no_run_is_refused(conn: psycopg.Connection, run: Any) -> None:
    """Before anything is asked."""
    with pytest.raises(PayloadError):
        cancel_run(run, conn=conn)
