"""The plans of the statements that must stay cheap however much is stored."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest
from support.rows.plans import explain

from queue_workflows.repositories.jobs import ingest, ingest_rows

FINISHED = """
INSERT INTO ingest_jobs (task_name, queue, dedupe_key, status, claimed_by, attempt, finished_at)
SELECT 'task', 'fetch', 'k' || n, 'completed', 'w', 1, now() FROM generate_series(1, 20000) AS n
"""
QUEUED = """
INSERT INTO ingest_jobs (task_name, queue, priority)
SELECT 'task', 'fetch', n % 10 FROM generate_series(1, 2000) AS n
"""
PLAN_MODES = ("force_custom_plan", "force_generic_plan")


@pytest.fixture(scope="module", params=[True, False], ids=["analyzed", "never analyzed"])
def crowded(qwf_dsn: str, request: pytest.FixtureRequest) -> Iterator[psycopg.Connection]:
    """20,000 finished jobs beside the queued ones, with and without statistics."""
    with psycopg.connect(qwf_dsn, autocommit=True) as connection:
        connection.execute("TRUNCATE ingest_jobs")
        connection.execute("ALTER TABLE ingest_jobs SET (autovacuum_enabled = off)")
        connection.execute(FINISHED)
        connection.execute(QUEUED)
        if request.param:
            connection.execute("VACUUM ANALYZE ingest_jobs")
        yield connection


@pytest.mark.parametrize("mode", PLAN_MODES)
def test_duplicates_are_looked_up_by_their_index(crowded: psycopg.Connection, mode: str) -> None:
    """Finding who has a key reads the unique index, one key or a chunk of them."""
    one = explain(crowded, mode, ingest.FIND, {"task_name": "task", "dedupe_key": "k7"})
    keys = [f"k{n}" for n in range(1, 101)]
    many = explain(crowded, mode, ingest_rows.FIND_MANY, {"task_name": ["task"] * 100, "dedupe_key": keys})
    for plan, rows in ((one, 1), (many, 100)):
        assert "uq_ingest_jobs_dedupe" in [node.get("Index Name") for node in plan]
        assert plan[0]["Actual Rows"] == rows
