"""Real workers keep to the caps of windows and to rates, measured inside their jobs, and waste no time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psycopg
import pytest
from support.connections.kept import own_connection
from support.processes.workers import patiently, running_worker
from support.tasks.window_tasks import most_inside, notes

from queue_workflows import IngestJobRepository, LimitRepository, NewIngestJob

HOST, RESOLVER = "host:example.org", "resolver"
EMPTY = "TRUNCATE ingest_jobs, limit_slots, concurrency_limits, rate_limits, audit_log, worker_heartbeats"


@pytest.fixture
def conn(qwf_dsn: str) -> Any:
    with own_connection(qwf_dsn) as connection:
        connection.execute(EMPTY)
        yield connection


def results(conn: psycopg.Connection[Any]) -> list[dict[str, Any]]:
    """What the jobs returned, when all are over."""
    done = patiently(
        lambda: not conn.execute("SELECT 1 FROM ingest_jobs WHERE status <> 'completed'").fetchone()
    )
    assert done
    return [row for (row,) in conn.execute("SELECT result FROM ingest_jobs ORDER BY id")]


@pytest.mark.slow
@pytest.mark.timed
@pytest.mark.parametrize("task", ["window", "async window"])
def test_eight_at_once_between_two_caps(
    qwf_dsn: str, conn: psycopg.Connection[Any], tmp_path: Path, task: str
) -> None:
    """20 jobs of 0.5 s, half through a key with a cap of 1 and half through one with 2: 5 s and no more."""
    log = tmp_path / "log"
    limits = LimitRepository(conn)
    limits.set("host:*", 1, actor="ann")
    limits.set(RESOLVER, 2, actor="ann")
    IngestJobRepository(conn).enqueue_many(
        NewIngestJob(task_name=task, queue="fetch", args={"keys": [key], "log": str(log), "s": 0.5, "max": 8})
        for _ in range(10)
        for key in (HOST, RESOLVER)
    )
    with running_worker(qwf_dsn, "--concurrency", "8", QWF_APP="support.tasks.window_tasks"):
        entered = sorted(result["entered"] for result in results(conn))
    assert most_inside(notes(log)) == {HOST: 1, RESOLVER: 2}
    took_s = entered[-1] + 0.5 - entered[0]
    assert 5 <= took_s < 8


@pytest.mark.slow
def test_workers_share_a_rate(qwf_dsn: str, conn: psycopg.Connection[Any], tmp_path: Path) -> None:
    """At no time more than the burst and what came since, whichever worker took it."""
    per_s, burst = 20, 3
    args = {"log": str(tmp_path / "log"), "per_s": per_s, "burst": burst}
    IngestJobRepository(conn).enqueue_many(
        NewIngestJob(task_name="rated", queue="fetch", args=args) for _ in range(60)
    )
    with (
        running_worker(qwf_dsn, QWF_APP="support.tasks.window_tasks"),
        running_worker(qwf_dsn, QWF_APP="support.tasks.window_tasks"),
    ):
        entered = sorted(result["entered"] for result in results(conn))
    # A full bucket was made with the first take, after the first claim.
    (made,) = conn.execute(
        "SELECT min(extract(epoch FROM started_at))::float8 FROM ingest_jobs"
    ).fetchone() or (0.0,)
    assert all(count <= burst + per_s * (at - made) for count, at in enumerate(entered, start=1))
