"""What the overview, the map of models, previews and one limit ask is answered by index, whatever is over."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from support.rows.claim_sessions import CLEAR_LIMITS
from support.rows.jobs import CLEAR_WITH_WORKERS
from support.rows.plans import explain, rows_read

from queue_workflows.repositories import RunRepository
from queue_workflows.repositories.explain import waits
from queue_workflows.repositories.explain.explain_run import ORCHESTRATORS
from queue_workflows.repositories.limits import waiting
from queue_workflows.repositories.reports import (
    model_demand,
    next_jobs,
    overview,
    queue_depth,
    queue_statistics,
    stuck_jobs,
)
from queue_workflows.repositories.sql.arrays import texts
from queue_workflows.repositories.sql.families import INGEST as INGEST_JOBS
from queue_workflows.repositories.sql.families import NODE
from queue_workflows.repositories.workers import jobs_at_work, obedience

HISTORY = ("ingest_jobs", "workflow_node_jobs", "workflow_runs")
ENDED = 120_000
OPEN = 300
# Half a year of jobs that are over, 2,400 of them in the last hour; and some that are not.
INGEST = """
INSERT INTO ingest_jobs (task_name, queue, status, claimed_by, attempt, finished_at)
SELECT 'task', 'q' || mod(n, 7), CASE WHEN mod(n, 50) = 0 THEN 'failed' ELSE 'completed' END, 'w', 1,
    now() - CASE WHEN mod(n, 50) = 1 THEN interval '1 s' * mod(n, 3600) ELSE interval '1 min' * n END
FROM generate_series(1, %(ended)s) AS n
"""
NODES = """
INSERT INTO workflow_node_jobs (run_id, node_id, map_index, queue, status, claimed_by, attempt, finished_at)
SELECT %(run)s, 'n', n, 'gpu', 'completed', 'w', 1, now() - interval '1 min' * n
FROM generate_series(1, %(ended)s) AS n
"""
RUNS = """
INSERT INTO workflow_runs (id, workflow_name, spec, spec_hash, status, finished_at)
SELECT gen_random_uuid(), 'film', '{}', 'h', 'completed', now() FROM generate_series(1, %(ended)s)
"""
WAITING = (
    """
    INSERT INTO ingest_jobs (task_name, queue, limit_key)
    SELECT 'task', 'q' || mod(n, 7), 'host:' || mod(n, 5) FROM generate_series(1, %(open)s) AS n
    """,
    """
    INSERT INTO ingest_jobs (task_name, queue, status, hold_reason, hold_key, limit_key, run_at)
    SELECT 'task', 'q1', 'scheduled', 'limit_full', 'host:' || mod(n, 40), 'host:' || mod(n, 40),
        now() + interval '1 h' FROM generate_series(1, %(open)s) AS n
    """,
    """
    INSERT INTO ingest_jobs (task_name, queue, status, claimed_by, attempt, lease_expires_at, started_at)
    SELECT 'task', 'q1', 'running', 'w' || n, 1, now() - interval '1 s', now()
    FROM generate_series(1, %(open)s) AS n
    """,
    """
    INSERT INTO workflow_node_jobs (run_id, node_id, map_index, queue, required_model)
    SELECT %(run)s, 'm', n, 'gpu', 'model' || mod(n, 9) FROM generate_series(1, %(open)s) AS n
    """,
    """
    INSERT INTO workflow_node_jobs (run_id, node_id, map_index, queue, kind, status)
    SELECT %(run)s, 'a', n, 'cpu', 'input', 'awaiting_input' FROM generate_series(1, %(open)s) AS n
    """,
)
# Of a day, whose history is as long as the test's bound, some rows of each part.
_NOW = datetime.now(UTC)
PARTS = {
    "begins": [_NOW - timedelta(hours=hours + 1) for hours in range(24)],
    "ends": [_NOW - timedelta(hours=hours) for hours in range(24)],
    "each": 20,
}
WORKERS = texts(f"w{n}" for n in range(20))
STATEMENTS: dict[str, tuple[str, dict[str, Any]]] = {
    "facts": (overview.FACTS, {"most": 100_000, "orchestrators": ORCHESTRATORS}),
    "pace": (overview.PACE, {}),
    "workers": (obedience.STANDING, {"host_label": "*", "queue": "*"}),
    "stuck nodes": (stuck_jobs.STUCK["node"], {}),
    "stuck ingest": (stuck_jobs.STUCK["ingest"], {}),
    "one worker": (obedience.STANDING_OF, {"worker_id": "w7"}),
    "jobs at work": (jobs_at_work.AT_WORK["ingest"], {"workers": WORKERS, "limit": 10}),
    "how many at work": (jobs_at_work.COUNTED["node"], {"workers": WORKERS}),
    "next of a key": (waiting.FIRST["ingest"], {"key": "host:1", "limit": 50}),
    "models": (model_demand.QUEUED, {"most": 100_000, "models": 200}),
    "models on hold": (model_demand.HELD, {"most": 100_000}),
    "all that is open": (queue_statistics.OPEN[NODE, INGEST_JOBS], {"most": 100_000}),
    "all that ended lately": (
        queue_statistics.ALL_FINISHED[NODE, INGEST_JOBS],
        {"most": 100_000, "window_s": 3600.0},
    ),
    "what ended in parts of a day, of nodes": (waits.ENDED["node"], PARTS),
    "what ended in parts of a day": (waits.ENDED["ingest"], PARTS),
    "when nodes ran": (waits.RAN["node"], PARTS),
    "when jobs ran": (waits.RAN["ingest"], PARTS),
    "since when a queue works": (waits.AT_WORK, {}),
    "what is stored": (queue_statistics.STORED, {}),
    "what jobs meet": (next_jobs.MEETS, {"keys": texts(["host:1"]), "locks": texts(["disk"])}),
    "queue depth": (queue_depth.DEPTHS["ingest"], {"queues": texts(["q1", "q2"]), "most": 100_000}),
}


@pytest.fixture(scope="module")
def crowded(qwf_dsn: str) -> Iterator[psycopg.Connection]:
    """A history of 120,000 rows a table, and some hundred of each kind that is not over."""
    with psycopg.connect(qwf_dsn, autocommit=True) as connection:
        connection.execute(f"{CLEAR_WITH_WORKERS}; {CLEAR_LIMITS}; TRUNCATE host_hardware")
        for table in HISTORY:
            connection.execute(f"ALTER TABLE {table} SET (autovacuum_enabled = off)")
        run = RunRepository(connection).insert("film", spec={}, spec_hash="h").id
        connection.execute("SET session_replication_role = replica")
        for sql in (INGEST, NODES, RUNS, *WAITING):
            connection.execute(sql, {"ended": ENDED, "open": OPEN, "run": run})
        connection.execute("RESET session_replication_role")
        connection.execute(f"VACUUM ANALYZE {', '.join(HISTORY)}, workflow_dispatch_events, limit_slots")
        yield connection
        for table in HISTORY:
            connection.execute(f"ALTER TABLE {table} RESET (autovacuum_enabled)")


@pytest.mark.parametrize("mode", ["force_custom_plan", "force_generic_plan"])
@pytest.mark.parametrize("name", STATEMENTS)
def test_no_history_is_read_as_a_whole(crowded: psycopg.Connection, name: str, mode: str) -> None:
    """By an index, and no more rows than are open or ended in the last hour."""
    plan = explain(crowded, mode, *STATEMENTS[name])
    whole = [node["Relation Name"] for node in plan if node["Node Type"] == "Seq Scan"]
    assert not set(whole) & set(HISTORY), whole
    assert rows_read(plan, *HISTORY) < ENDED / 10
