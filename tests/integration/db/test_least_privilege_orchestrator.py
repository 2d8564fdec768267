"""The roles of the docs are enough for a run from its start to its end."""

from __future__ import annotations

import pytest
from psycopg.errors import InsufficientPrivilege
from support.processes.workers import patiently, running_orchestrator, running_worker
from support.rows.history import by_months, over, places, settle
from support.rows.runs import start

from queue_workflows.repositories import IngestJobRepository, InputSubmissionRepository, RunRepository
from queue_workflows.repositories.reports.job_listing import JobFilter
from queue_workflows.repositories.reports.job_search import JobSearch

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


def test_an_orchestrator_moves_history_and_brings_it_back(roles) -> None:
    """By functions of the database: it makes and drops no table itself, and a reader sees both places."""
    with (
        roles.connect("orchestrator") as orchestrator,
        roles.connect("reader") as reader,
        roles.connect("worker") as worker,
    ):
        ids = over(orchestrator, 3)
        by_months(orchestrator)
        settle(orchestrator)
        assert places(reader) == ([], ids)
        assert IngestJobRepository(reader).fetch(ids[0]) is not None
        assert len(JobSearch(reader).page(JobFilter()).lines) == 3
        assert IngestJobRepository(orchestrator).retry_many(ids[:1], actor="ann") == {ids[0]: 2}
        by_months(orchestrator, False)
        settle(orchestrator)
        assert places(reader) == (ids, [])
        for statement in (
            "SELECT qwf_history_drop_month(now())",
            "SELECT * FROM qwf_history_move(NULL, now())",
            "INSERT INTO ingest_jobs_history SELECT * FROM ingest_jobs_history",
        ):
            with pytest.raises(InsufficientPrivilege):
                worker.execute(statement)
        with pytest.raises(InsufficientPrivilege):
            orchestrator.execute("DELETE FROM ingest_jobs_history")
