"""Retention deletes runs and ingest jobs side by side: a backlog of one kind keeps nothing of the other."""

from __future__ import annotations

import psycopg
from support.rows.jobs import CLEAR
from support.rows.runs import dispatcher, run_through, settings, start

from queue_workflows.engine.upkeep.retention import EVERY_S, Pruning
from queue_workflows.repositories.retention import JOBS_AT_ONCE

OLD = """
INSERT INTO ingest_jobs (task_name, queue, status, finished_at)
SELECT 't', 'fetch', 'completed', now() - interval '1 year' FROM generate_series(1, %s)
"""


def test_runs_go_while_ingest_jobs_are_behind(qwf_dsn: str) -> None:
    """With every part of them full, an old run is gone after two parts, its jobs first."""
    with psycopg.connect(qwf_dsn, autocommit=True) as connection:
        connection.execute(CLEAR)
        start(connection, {"nodes": [{"id": "one", "module": "m"}]})
        run_through(connection, dispatcher(connection), lambda job: {})
        connection.execute("UPDATE workflow_runs SET finished_at = now() - interval '1 year'")
        connection.execute(OLD, [3 * JOBS_AT_ONCE])
        pruning = Pruning(settings())
        for left in (1, 0):
            assert pruning.prune(connection) < EVERY_S
            assert connection.execute("SELECT count(*) FROM workflow_runs").fetchone() == (left,)
        assert connection.execute("SELECT count(*) FROM ingest_jobs").fetchone() == (JOBS_AT_ONCE,)
