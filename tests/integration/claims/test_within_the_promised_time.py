"""What the engine promises in seconds, read from the server's clock; a busy machine gets a second try."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import psycopg
import pytest
from support.apps.film import task
from support.processes.supervised import holder, supervisor_of
from support.processes.workers import running_orchestrator, running_worker, until

from queue_workflows import cancel_run, start_run
from queue_workflows.repositories import (
    IngestJobRepository,
    NodeJobRepository,
    RunRepository,
    WorkerControlRepository,
)

pytestmark = [pytest.mark.slow, pytest.mark.timed]

NOW = "SELECT clock_timestamp()"


def seconds(conn: psycopg.Connection, text: str, job: int, *given: object) -> float:
    """A difference of times, of the row's or given ones."""
    row = conn.execute(
        f"SELECT EXTRACT(epoch FROM {text})::float8 FROM ingest_jobs WHERE id = %s", [*given, job]
    ).fetchone()
    assert row is not None
    return float(row[0])


def test_a_running_job_learns_of_a_cancel_within_two(qwf_dsn, conn, jobs):
    """One that heeds it has ended by then."""
    job = jobs.enqueue("wait", queue="fetch", args={"s": 600}).id
    with running_worker(qwf_dsn):
        until(lambda: jobs.fetch(job).progress)
        jobs.cancel(job, actor="test")
        until(lambda: jobs.fetch(job).status == "cancelled")
    assert seconds(conn, "finished_at - cancel_requested_at", job) < 2


def test_a_running_node_learns_of_its_runs_cancel_within_two(qwf_dsn, conn, tmp_path):
    """Through an orchestrator; one that heeds it has ended by then."""
    nodes = [task("write", "polite")]
    film = {"name": "film", "inputs": {"directory": {"type": "string"}}, "nodes": nodes}
    with running_orchestrator(qwf_dsn), running_worker(qwf_dsn, "--queue", "cpu"):
        run_id = start_run(film, {"directory": str(tmp_path)}, conn=conn).id
        until((tmp_path / "write.begun").exists)
        (since,) = conn.execute(NOW).fetchone()
        cancel_run(run_id, conn=conn)
        until(lambda: RunRepository(conn).finished(run_id))
    (job,) = NodeJobRepository(conn).list(run_id=run_id)
    assert job.status == "cancelled"
    assert (job.finished_at - since).total_seconds() < 2


def test_off_stops_a_running_job_within_two(qwf_dsn, conn, jobs, tmp_path):
    """One that hears nothing is queued again by then, for whoever may work."""
    begun = tmp_path / "begun"
    job = jobs.enqueue("deaf", queue="fetch", args={"begun": str(begun)}).id
    with running_worker(qwf_dsn):
        until(begun.exists)
        (since,) = conn.execute(NOW).fetchone()
        WorkerControlRepository(conn).set("*", "fetch", "off", actor="test")
        until(lambda: jobs.fetch(job).status == "queued")
        (then,) = conn.execute(NOW).fetchone()
    assert (then - since).total_seconds() < 2


@pytest.mark.timeout(400)
def test_a_kill_minus_nine_costs_a_job_less_than_one_under_the_supervisor(qwf_dsn, conn, jobs, tmp_path):
    """The only worker of its queue dies; the spare has the job, though the lease would last an hour.

    One of several counts: what else this machine does is not the supervisor's.
    """
    assert any(_cost_of_a_kill(qwf_dsn, conn, jobs, tmp_path / str(turn)) < 1 for turn in range(8))


def _cost_of_a_kill(dsn: str, conn: psycopg.Connection, jobs: IngestJobRepository, begun: Path) -> float:
    job = jobs.enqueue("deaf", queue="fetch", args={"begun": str(begun)}).id
    with supervisor_of(
        dsn, "--worker", "fetch", env={"QWF_LEASE_S": "3600", "QWF_CANCEL_GRACE_S": "0.1"}
    ) as supervisor:
        supervisor.until("a spare stands by")
        until(begun.exists)
        pid = until(lambda: holder(conn, job))
        (killed,) = conn.execute(NOW).fetchone()
        os.kill(pid, signal.SIGKILL)
        until(lambda: jobs.fetch(job).attempt == 2)
        cost = seconds(conn, "started_at - %s", job, killed)
        jobs.cancel(job, actor="test")
        until(lambda: jobs.fetch(job).status == "cancelled")
        return cost
