"""A worker that holds no job has no lease to lose: it waits for work or the operator as long as it takes."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator

import psycopg
import pytest
from support.connections.kept import own_connection
from support.processes.workers import running_worker, until

from queue_workflows.repositories import HeartbeatRepository, IngestJobRepository, WorkerControlRepository

# Each claim has to be answered within nine tenths of it, on a busy machine too.
LEASE_S = 6.0


@pytest.fixture
def conn(qwf_dsn: str) -> Iterator[psycopg.Connection]:
    """Empty tables, and a connection whose every statement the workers see at once."""
    with own_connection(qwf_dsn) as connection:
        connection.execute("TRUNCATE ingest_jobs, worker_heartbeats, worker_control")
        yield connection


def outlive_a_lease(worker: subprocess.Popen[str]) -> None:
    """Let the time pass in which the kernel's timer would end a worker that holds a job."""
    over = time.monotonic() + 1.5 * LEASE_S
    until(lambda: worker.poll() is not None or time.monotonic() > over)
    assert worker.poll() is None


@pytest.mark.slow
@pytest.mark.timed
def test_idle_and_paused_longer_than_a_lease(qwf_dsn: str, conn: psycopg.Connection) -> None:
    """Between polls that are leases apart, and paused after a claim that found nothing, the process lives."""
    jobs, beats, control = (
        kind(conn) for kind in (IngestJobRepository, HeartbeatRepository, WorkerControlRepository)
    )
    with running_worker(qwf_dsn, QWF_POLL_S="600", QWF_LEASE_S=str(LEASE_S)) as worker:
        until(lambda: beats.list(state="idle"))
        outlive_a_lease(worker)
        control.set("here", "*", "pause", actor="test")
        until(lambda: beats.list(state="paused"))
        outlive_a_lease(worker)
        control.clear("here", "*", actor="test")
        job = jobs.enqueue("note", queue="fetch")
        until(lambda: jobs.fetch(job.id).status == "completed")
        assert jobs.fetch(job.id).result["pid"] == worker.pid
