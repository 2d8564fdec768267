"""The shipped orchestrator with shipped workers."""

from __future__ import annotations

import signal

from support.processes.workers import patiently, running_orchestrator, running_worker
from support.rows.runs import start

from queue_workflows.repositories import InputSubmissionRepository, RunRepository

FILM = {
    "inputs": {"brief": {"type": "string"}},
    "nodes": [
        {"id": "plan", "module": "echo", "inputs": {"scenes": [1, 2, 3], "brief": {"$from": "inputs.brief"}}},
        {"id": "draw", "module": "echo", "for_each": {"$from": "plan.scenes"}, "inputs": {}},
        {"id": "nap", "type": "wait", "seconds": 0.1, "depends_on": ["draw"]},
        {"id": "approve", "type": "input", "depends_on": ["nap"]},
        {"id": "publish", "module": "echo", "depends_on": ["approve"]},
    ],
    "outputs": {"all": {"$from": "draw"}, "ok": {"$from": "approve.ok"}},
}


def test_a_run_goes_from_start_to_end(qwf_dsn, conn):
    """A chain, a list, a wait and an answer, through the shipped processes; a SIGTERM ends them with 0."""
    runs = RunRepository(conn)
    with (
        running_orchestrator(qwf_dsn) as orchestrator,
        running_worker(qwf_dsn, "--queue", "cpu") as worker,
    ):
        run_id = start(conn, FILM, inputs={"brief": "canals"})
        parked = "SELECT 1 FROM workflow_node_jobs WHERE run_id = %s AND kind = 'input'"
        patiently(lambda: conn.execute(parked, [run_id]).fetchone())
        InputSubmissionRepository(conn).insert(run_id, "approve", {"ok": True})
        run = patiently(lambda: (run := runs.fetch(run_id)).finished_at and run)
        assert (run.status, run.error) == ("completed", None)
        assert run.outputs == {"all": [{}, {}, {}], "ok": True}
        for process in (orchestrator, worker):
            process.send_signal(signal.SIGTERM)
            assert process.wait(300) == 0


def test_once_ends_what_is_due(qwf_dsn, conn):
    """A wait that it parked itself, and that is over by then, is not left for the next time."""
    run_id = start(conn, {"nodes": [{"id": "nap", "type": "wait", "seconds": 0}]})
    with running_orchestrator(qwf_dsn, "--once") as orchestrator:
        assert orchestrator.wait(300) == 0
    assert RunRepository(conn).fetch(run_id).status == "completed"


def test_once_ends_when_nothing_is_left(qwf_dsn, conn):
    """What can be done now is done, and what waits is left."""
    run_id = start(conn, FILM, inputs={"brief": "canals"})
    with running_orchestrator(qwf_dsn, "--once") as orchestrator:
        assert orchestrator.wait(300) == 0
    assert RunRepository(conn).fetch(run_id).status == "running"
    assert conn.execute("SELECT node_id, status FROM workflow_node_jobs").fetchall() == [("plan", "queued")]
