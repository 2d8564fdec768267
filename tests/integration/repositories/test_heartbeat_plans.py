"""The plans of the sweeps over silent workers: each looks up what a worker holds, however much has ended."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest
from support.rows.plans import explain, rows_read

from queue_workflows.db.connections.pins import PLANNER
from queue_workflows.repositories import RunRepository
from queue_workflows.repositories.workers import heartbeats

TABLES = ("ingest_jobs", "workflow_node_jobs")
BEATS = """
INSERT INTO worker_heartbeats (worker_id, host_label, queue, pid, state, started_at, last_seen)
SELECT 'w' || n, 'here', 'fetch', 1, 'busy', now(),
    now() - CASE WHEN mod(n, 10) = 0 THEN interval '2 days' ELSE '0' END
FROM generate_series(1, 3000) AS n
"""
# Beside the ended ones, every twentieth worker still holds a job.
ENDED = 100_000
STORED = {
    "ingest_jobs": """
        INSERT INTO ingest_jobs
            (task_name, queue, status, claimed_by, attempt, finished_at, lease_expires_at)
        SELECT 'task', 'fetch', CASE WHEN n <= 150 THEN 'running' ELSE 'completed' END,
            'w' || CASE WHEN n <= 150 THEN n * 20 ELSE mod(n, 3000) END, 1,
            CASE WHEN n > 150 THEN now() END, CASE WHEN n <= 150 THEN now() END
        FROM generate_series(1, %(count)s) AS n
    """,
    "workflow_node_jobs": """
        INSERT INTO workflow_node_jobs
            (run_id, node_id, map_index, queue, status, claimed_by, attempt, finished_at, lease_expires_at)
        SELECT %(run)s, 'n', n, 'cpu', CASE WHEN n <= 150 THEN 'running' ELSE 'completed' END,
            'w' || CASE WHEN n <= 150 THEN n * 20 + 1 ELSE mod(n, 3000) END, 1,
            CASE WHEN n > 150 THEN now() END, CASE WHEN n <= 150 THEN now() END
        FROM generate_series(1, %(count)s) AS n
    """,
}
AS_A_WORKER = tuple(name.removeprefix("enable_") for name in PLANNER if name.startswith("enable_"))


@pytest.fixture(scope="module", params=["analyzed", "never analyzed"])
def crowded(qwf_dsn: str, request: pytest.FixtureRequest) -> Iterator[psycopg.Connection]:
    """3,000 workers, a tenth of them silent for long, of whom every other one holds a job."""
    with psycopg.connect(qwf_dsn, autocommit=True) as connection:
        run = RunRepository(connection).insert("film", spec={}, spec_hash="h").id
        connection.execute("TRUNCATE ingest_jobs, workflow_node_jobs, worker_heartbeats CASCADE")
        connection.execute("SET session_replication_role = replica")
        for table in TABLES:
            connection.execute(f"ALTER TABLE {table} SET (autovacuum_enabled = off)")
            connection.execute(STORED[table], {"run": run, "count": ENDED})
        connection.execute(BEATS)
        connection.execute("RESET session_replication_role")
        if request.param == "analyzed":
            connection.execute("VACUUM ANALYZE ingest_jobs, workflow_node_jobs, worker_heartbeats")
        yield connection
        for table in TABLES:
            connection.execute(f"ALTER TABLE {table} RESET (autovacuum_enabled)")


@pytest.mark.parametrize("off", [(), AS_A_WORKER], ids=["as it likes", "as a worker"])
@pytest.mark.parametrize("mode", ["force_custom_plan", "force_generic_plan"])
@pytest.mark.parametrize(
    ("sql", "found"), [(heartbeats.FLAG_DEAD, 150), (heartbeats.FORGET, 150)], ids=["flag", "forget"]
)
def test_what_a_worker_holds_is_read_by_index(
    crowded: psycopg.Connection, sql: str, found: int, mode: str, off: tuple[str, ...]
) -> None:
    """Of the jobs only those that run are read, by whom they run for; nothing that has ended."""
    plan = explain(crowded, mode, sql, {"older_than_s": 3600.0}, off)
    assert plan[0]["Actual Rows"] == found
    for table in TABLES:
        used = {node.get("Index Name") for node in plan if table in node.get("Index Name", "")}
        assert used == {f"ix_{table}_running"}
        whole = [node for node in plan if node["Node Type"] == "Seq Scan"]
        assert table not in [node["Relation Name"] for node in whole]
        assert rows_read(plan, table) <= 150
