"""What operators ask is answered by index, however many runs, audited acts and running jobs there are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from support.rows.jobs import CLEAR_WITH_WORKERS
from support.rows.plans import explain, rows_read

from queue_workflows.repositories import audit_log
from queue_workflows.repositories.claims import operator_verbs
from queue_workflows.repositories.jobs import nodes
from queue_workflows.repositories.sql.arrays import id_array
from queue_workflows.repositories.workers import obedience

STORED = (
    """
    INSERT INTO workflow_runs (id, workflow_name, spec, spec_hash, status, finished_at)
    SELECT gen_random_uuid(), 'film', '{}', 'h', 'completed', now() FROM generate_series(1, 20000)
    """,
    """
    INSERT INTO workflow_node_jobs (run_id, node_id, queue, status, claimed_by, attempt, finished_at)
    SELECT id, 'draw', 'cpu', 'completed', 'w', 1, now() FROM workflow_runs
    """,
    """
    INSERT INTO ingest_jobs (task_name, queue, status, claimed_by, attempt, lease_expires_at, started_at)
    SELECT 'task', 'fetch', 'running', 'w' || n, 1, now() + interval '1 h', now()
    FROM generate_series(1, 5000) AS n
    """,
    """
    INSERT INTO worker_heartbeats (worker_id, host_label, queue, pid, state)
    SELECT 'w' || n, 'h' || n, 'fetch', 7, 'busy' FROM generate_series(1, 5) AS n
    """,
    """
    INSERT INTO audit_log (actor, action, subject_kind, subject_id)
    SELECT 'ann', 'job.cancel', 'ingest job', n FROM generate_series(1, 20000) AS n
    """,
    """
    INSERT INTO audit_log (actor, action, subject_kind, subject_id)
    SELECT 'ann', 'workers.pause', 'worker_control', 'h' || n || ' fetch' FROM generate_series(1, 20) AS n
    """,
)
TABLES = ("workflow_runs", "workflow_node_jobs", "ingest_jobs", "audit_log")
MODES = pytest.mark.parametrize("mode", ["force_custom_plan", "force_generic_plan"])


@pytest.fixture(scope="module", params=[True, False], ids=["analyzed", "never analyzed"])
def crowded(qwf_dsn: str, request: pytest.FixtureRequest) -> Iterator[psycopg.Connection]:
    """20,000 finished runs with a node each, 5,000 running jobs, and as many acts as runs."""
    with psycopg.connect(qwf_dsn, autocommit=True) as connection:
        connection.execute(CLEAR_WITH_WORKERS)
        for table in TABLES:
            connection.execute(f"ALTER TABLE {table} SET (autovacuum_enabled = off)")
        connection.execute("SET session_replication_role = replica")
        for sql in STORED:
            connection.execute(sql)
        connection.execute("RESET session_replication_role")
        if request.param:
            connection.execute(f"VACUUM ANALYZE {', '.join(TABLES)}")
        yield connection
        for table in TABLES:
            connection.execute(f"ALTER TABLE {table} RESET (autovacuum_enabled)")


def check_by_index(connection: psycopg.Connection, mode: str, sql: str, params: dict[str, Any]) -> None:
    """No table of those is read as a whole."""
    plan = explain(connection, mode, sql, params)
    whole = [node["Relation Name"] for node in plan if node["Node Type"] == "Seq Scan"]
    assert not set(whole) & set(TABLES), whole


@MODES
def test_what_was_done(crowded: psycopg.Connection, mode: str) -> None:
    """To a job, and to the workers of a queue."""
    ((now,),) = crowded.execute("SELECT now()")
    span = {"queue": "fetch", "since": now, "until": None, "limit": 100}
    for sql, params in (
        (audit_log.OF_SUBJECT, {"kind": "ingest job", "id": "7", "limit": 100}),
        (audit_log.OF_QUEUE, span),
        (audit_log.OF_QUEUE_LAST, {"queue": "fetch", "before": now}),
    ):
        check_by_index(crowded, mode, sql, params)


@MODES
def test_what_was_done_by_pages(crowded: psycopg.Connection, mode: str) -> None:
    """A page of acts looks at a bounded number of them, and no more; of one thing at its own."""
    asked = {"actor": "bob", "action": None, "before": 2**62, "limit": 51, "most": 1_000}
    plan = explain(crowded, mode, audit_log.PAGE, asked)
    assert "Seq Scan" not in {node["Node Type"] for node in plan}
    assert rows_read(plan, "audit_log") <= 1_000
    of_one = asked | {"kind": "ingest job", "subject": "7", "actor": "ann"}
    plan = explain(crowded, mode, audit_log.PAGE_OF_SUBJECT, of_one)
    assert "Seq Scan" not in {node["Node Type"] for node in plan}
    assert rows_read(plan, "audit_log") <= 2


@MODES
def test_who_works(crowded: psycopg.Connection, mode: str) -> None:
    """A worker's job is found by its name among all that run."""
    check_by_index(crowded, mode, obedience.STANDING, {"host_label": "*", "queue": "fetch"})


@MODES
def test_nodes_and_their_runs(crowded: psycopg.Connection, mode: str) -> None:
    """A retry looks at the runs of its nodes alone, and a key that is taken leads to its node."""
    taken = crowded.execute("SELECT id, run_id FROM workflow_node_jobs ORDER BY id LIMIT 100").fetchall()
    ids = id_array([job_id for job_id, _ in taken])
    check_by_index(crowded, mode, operator_verbs.COUNTED, {"ids": ids})
    check_by_index(crowded, mode, operator_verbs.RETRY["node"], {"ids": ids, "actor": "ann", "why": None})
    keys = {"run_id": [run for _, run in taken], "node_id": ["draw"] * 100, "map_index": [-1] * 100}
    check_by_index(crowded, mode, nodes.FIND_MANY, keys)
