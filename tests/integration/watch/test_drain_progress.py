"""What became of a queue's jobs since a moment, and what is left of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime

import psycopg
import pytest
from support.connections.kept import own_connection
from support.rows.jobs import CLEAR, Jobs, ending
from support.rows.plans import explain

from queue_workflows.repositories.reports import drain_progress
from queue_workflows.repositories.reports.drain_progress import OutcomeRepository, Outcomes
from queue_workflows.repositories.sql.families import BY_NAME


@pytest.fixture
def conn(qwf_dsn: str) -> Iterator[psycopg.Connection]:
    with own_connection(qwf_dsn) as connection:
        connection.execute(CLEAR)
        yield connection


def test_each_job_is_counted_once(conn):
    """Those of other queues and times not at all."""
    jobs, repository = Jobs("ingest", conn), OutcomeRepository(conn, BY_NAME["ingest"])
    jobs.enqueue(2)
    jobs.repository.end_many([ending(job, "completed") for job in jobs.claim(limit=2)])
    since = repository.now()
    jobs.enqueue(9)
    held = jobs.claim(limit=7)
    jobs.repository.end_many([ending(held[0], "completed"), ending(held[1], "skipped")])
    failure = {"kind": "x", "message": "y"}
    jobs.repository.end(ending(held[2], "failed", error=failure, counts=True))
    jobs.repository.end(ending(held[3], "scheduled", error=failure, counts=True, delay_s=600.0))
    jobs.repository.hold(held[4], "unknown_task", "draw", delay_s=600)
    jobs.repository.hold(held[5], "limit_full", "host:a", delay_s=600)
    jobs.enqueue(1, delay=600)
    jobs.enqueue(3, queue="load")
    Jobs("node", conn).enqueue(4)
    ended = Counter({"completed": 1, "skipped": 1, "failed": 1})
    assert repository.read("fetch", since) == Outcomes(queued=2, running=1, laned=1, ended=ended)
    assert repository.read("fetch", since, put_off=True).put_off == Counter(
        {"retry": 1, "unknown_task": 1, "limit_full": 1, "later": 1}
    )
    assert repository.read("load", since) == Outcomes(queued=3)


def test_what_is_long_over_costs_nothing(conn):
    """With 50,000 old rows nothing reads the table as a whole."""
    conn.execute("ALTER TABLE ingest_jobs SET (autovacuum_enabled = off)")
    conn.execute(
        "INSERT INTO ingest_jobs (task_name, queue, status, claimed_by, attempt, finished_at)"
        " SELECT 'task', 'fetch', 'completed', 'w', 1, now() - interval '1 y' FROM generate_series(1, 50000)"
    )
    Jobs("ingest", conn).enqueue(100)
    conn.execute("ANALYZE ingest_jobs")
    params = {"queue": "fetch", "since": datetime.now(UTC)}
    plan = explain(conn, "force_custom_plan", drain_progress.OUTCOMES["ingest"], params)
    conn.execute("ALTER TABLE ingest_jobs RESET (autovacuum_enabled)")
    assert "Seq Scan" not in [node["Node Type"] for node in plan]
