"""The roles of the docs are enough for a run from its start to its end."""

from __future__ import annotations

import pytest
from support.processes.workers import patiently, running_orchestrator, running_worker
from support.rows.runs import start

from queue_workflows.repositories import InputSubmissionRepository, RunRepository

FILM = {
    "nodes": [
        {"id": "plan", "module": "echo", "inputs": {"scenes": [1, 2]}},
        {
            "id": "draw",
            "module": "echo",
            "for_each": {"$from": "plan.scenes"},
            "inputs": {"n": {"$from": "item"}},
        },
        {"id": "ask", "type": "input", "depends_on": ["draw"]},
        {"id": "nap", "type": "wait", "seconds": 0, "depends_on": ["ask"]},
    ],
    "outputs": {"all": {"$from": "draw"}},
}


@pytest.mark.slow
def test_everybody_may_do_their_part(roles) -> None:
    """A producer starts and answers, a worker works, an orchestrator advances and prunes, all unhindered."""
    with (
        roles.connect("producer") as producer,
        roles.connect("reader") as reader,
        running_orchestrator(roles.dsn("orchestrator"), QWF_RETENTION_DAYS="0") as orchestrator,
        running_worker(roles.dsn("worker"), "--queue", "cpu") as worker,
    ):
        run_id = start(producer, FILM)
        runs = RunRepository(reader)
        parked = "SELECT 1 FROM workflow_node_jobs WHERE run_id = %s AND kind = 'input'"
        patiently(lambda: reader.execute(parked, [run_id]).fetchone())
        InputSubmissionRepository(producer).insert(run_id, "ask", {"ok": True})
        # Kept for no time at all, it is deleted as soon as somebody prunes.
        patiently(lambda: (run := runs.fetch(run_id)) is None or run.status == "completed")
        for process in (orchestrator, worker):
            process.terminate()
            assert process.wait(300) == 0
            said = process.stderr.read()
            assert "permission denied" not in said
            assert "no database" not in said
