"""What `qwf deploy check` asks is read by what is open, however much is over."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest
from support.rows.jobs import CLEAR_WITH_WORKERS
from support.rows.plans import explain, rows_read

from queue_workflows.repositories.reports import open_work

STORED = (
    """
    INSERT INTO workflow_runs (id, workflow_name, spec, spec_hash, status, finished_at)
    SELECT gen_random_uuid(), 'film', '{}', 'h' || n, 'completed', now() FROM generate_series(1, 20000) AS n
    """,
    """
    INSERT INTO workflow_node_jobs (
        run_id, node_id, node_module, queue, status, claimed_by, attempt, finished_at
    )
    SELECT id, 'draw', 'draw', 'cpu', 'completed', 'w', 1, now() FROM workflow_runs
    """,
    """
    INSERT INTO ingest_jobs (task_name, queue, status, claimed_by, attempt, finished_at, limit_key)
    SELECT 'task', 'fetch', 'completed', 'w', 1, now(), 'host:a' FROM generate_series(1, 20000) AS n
    """,
    """
    INSERT INTO ingest_jobs (task_name, queue, status, run_at, limit_key)
    SELECT 'task', 'fetch', (ARRAY['queued', 'scheduled'])[1 + n % 2], now() + interval '1 h', 'host:a'
    FROM generate_series(1, 100) AS n
    """,
    """
    INSERT INTO workflow_runs (id, workflow_name, spec, spec_hash, status)
    SELECT gen_random_uuid(), 'film', '{"nodes": [{"id": "draw", "module": "draw"}]}', 'h', 'queued'
    FROM generate_series(1, 100)
    """,
)
TABLES = ("workflow_runs", "workflow_node_jobs", "ingest_jobs")
MODES = pytest.mark.parametrize("mode", ["force_custom_plan", "force_generic_plan"])
# What is open, a few times over: each statement looks at it by more than one index.
MOST_READ = 1_500


@pytest.fixture(scope="module")
def crowded(qwf_dsn: str) -> Iterator[psycopg.Connection]:
    """20,000 of each that are over, 100 jobs and 100 runs that are open."""
    with psycopg.connect(qwf_dsn, autocommit=True) as connection:
        connection.execute(CLEAR_WITH_WORKERS)
        connection.execute("SET session_replication_role = replica")
        for sql in STORED:
            connection.execute(sql)
        connection.execute("RESET session_replication_role")
        connection.execute("ANALYZE " + ", ".join(TABLES))
        yield connection
        connection.execute(CLEAR_WITH_WORKERS)


@MODES
@pytest.mark.parametrize(
    ("statement", "params"),
    [
        (open_work.TASKS, {}),
        (open_work.MODULES, {}),
        (open_work.DURABLE["ingest"], {}),
        (open_work.DURABLE["node"], {}),
        (open_work.SPAWNED, {}),
        (open_work.ARGS, {"tasks": ["task"], "most": open_work.MOST_ARGS}),
        (open_work.DOCUMENTS, {}),
        (open_work.AHEAD, {"field": "module", "names": ["draw"]}),
        (open_work.KEYS, {}),
    ],
    ids=[
        "tasks",
        "modules",
        "durable tasks",
        "durable nodes",
        "spawned",
        "args",
        "documents",
        "ahead",
        "keys",
    ],
)
def test_what_is_over_is_not_read(
    crowded: psycopg.Connection, mode: str, statement: str, params: dict[str, object]
) -> None:
    """Of 20,000 rows that are over no statement reads any."""
    assert rows_read(explain(crowded, mode, statement, params), *TABLES) < MOST_READ
