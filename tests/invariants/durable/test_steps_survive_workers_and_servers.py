"""Real workers and a server that are killed, two orchestrators: each function comes to its result."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import psycopg
import pytest
from support.processes.workers import running_orchestrator, running_worker, until
from support.servers.cluster import Cluster
from support.stages.durable_kills import noted
from support.stages.durable_tasks import STEPS

from queue_workflows.db import bootstrap
from queue_workflows.repositories import NewIngestJob, enqueue_many
from queue_workflows.repositories.durable.events import emit_event

JOBS = 20
SETTINGS = {"QWF_APP": "support.stages.durable_tasks", "QWF_LEASE_S": "2"}
LEFT = "SELECT count(*) FROM ingest_jobs WHERE status <> 'completed'"
STORED = "SELECT job_id, name, attempt FROM durable_steps WHERE kind = 'step'"


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """A migrated server of the test's own."""
    with Cluster.primary() as cluster:
        bootstrap(cluster.dsn())
        yield cluster


@pytest.mark.slow
def test_whatever_dies(cluster: Cluster, tmp_path: Path):
    """A worker with all that it holds, then the server; no attempt does what one before it has stored."""
    ledger, dsn = tmp_path / "ledger", cluster.dsn()
    with psycopg.connect(dsn, autocommit=True) as conn:
        jobs = [
            NewIngestJob(task_name="survivor", queue="fetch", args={"ledger": str(ledger), "n": number})
            for number in range(JOBS)
        ]
        ids = [made.id for made in enqueue_many(jobs, conn=conn)]
        for number in range(JOBS):
            emit_event(f"go:{number}", -1, conn=conn)
    with ExitStack() as stack:
        first = stack.enter_context(running_worker(dsn, "--concurrency", "10", **SETTINGS))
        stack.enter_context(running_worker(dsn, "--concurrency", "10", **SETTINGS))
        for _ in range(2):
            stack.enter_context(running_orchestrator(dsn, **SETTINGS))
        until(lambda: len(noted(ledger)) > JOBS)
        first.kill()
        until(lambda: len(noted(ledger)) > 3 * JOBS)
        cluster.stop("immediate")
        cluster.start()
        until(lambda: _left(dsn) == 0, within_s=240)
    with psycopg.connect(dsn, autocommit=True) as conn:
        results = dict(conn.execute("SELECT id, result FROM ingest_jobs").fetchall())
        stored = {(job, name): attempt for job, name, attempt in conn.execute(STORED).fetchall()}
    expected = [*range(STEPS // 2), -1, *range(STEPS // 2, STEPS)]
    assert results == dict.fromkeys(ids, expected)
    done = [tuple(map(int, line.split())) for _, line in noted(ledger)]
    assert {(job, number) for job, _, number in done} == {(job, n) for job in ids for n in range(STEPS)}
    again = [one for one in done if one[1] > stored[one[0], f"step {one[2]}"]]
    assert again == []


def _left(dsn: str) -> int:
    with psycopg.connect(dsn, autocommit=True) as conn:
        row = conn.execute(LEFT).fetchone()
    return -1 if row is None else int(row[0])
