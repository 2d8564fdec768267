"""What a job started is a part of it: its row becomes nobody else's before all of that is dead."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from support.connections.kept import own_connection
from support.processes.programs import gone
from support.processes.workers import running_worker, until

from queue_workflows.repositories import IngestJobRepository, WorkerControlRepository

_BARRIER = 4711


@pytest.fixture
def conn(qwf_dsn: str) -> Iterator[psycopg.Connection]:
    """A connection that holds the barrier before which every end of a claim waits."""
    with own_connection(qwf_dsn) as connection:
        connection.execute("TRUNCATE ingest_jobs, worker_heartbeats, worker_control")
        connection.execute(f"""
            CREATE FUNCTION wait_at_the_barrier() RETURNS trigger LANGUAGE plpgsql AS $$
            BEGIN
                PERFORM pg_advisory_xact_lock_shared({_BARRIER});
                RETURN NEW;
            END $$;
            CREATE TRIGGER barrier BEFORE UPDATE ON ingest_jobs FOR EACH ROW
                WHEN (OLD.status = 'running' AND NEW.status <> 'running')
                EXECUTE FUNCTION wait_at_the_barrier();
            SELECT pg_advisory_lock({_BARRIER})
        """)
        yield connection
        connection.execute("SELECT pg_advisory_unlock_all()")
        connection.execute("DROP TRIGGER barrier ON ingest_jobs; DROP FUNCTION wait_at_the_barrier()")


@pytest.mark.parametrize(
    ("why", "task"),
    [("stall", "parent"), ("cancel", "parent"), ("off", "parent"), ("stop", "parent"), ("cancel", "daemon")],
)
def test_its_processes_are_dead_before_its_row_changes(
    qwf_dsn: str, conn: psycopg.Connection, tmp_path: Path, why: str, task: str
) -> None:
    """While the statement that gives the job back still waits, what the job started is gone already."""
    jobs, control, pid_file = IngestJobRepository(conn), WorkerControlRepository(conn), tmp_path / "pid"
    limit = {"stall_timeout_s": 0.5} if why == "stall" else {}
    job = jobs.enqueue(task, queue="fetch", args={"pid_file": str(pid_file)}, **limit).id
    with running_worker(qwf_dsn, "--grace", "0.2", QWF_CANCEL_GRACE_S="0.2") as worker:
        child = int(until(lambda: pid_file.exists() and pid_file.read_text()))
        if why == "cancel":
            jobs.cancel(job, actor="test")
        elif why == "off":
            control.set("here", "fetch", "off", actor="test")
        elif why == "stop":
            worker.terminate()
        until(lambda: _waiting_at_the_barrier(conn))
        assert jobs.fetch(job).status == "running"
        assert gone(child)
        conn.execute("SELECT pg_advisory_unlock(%s)", [_BARRIER])
        until(lambda: jobs.fetch(job).status != "running")


def _waiting_at_the_barrier(conn: psycopg.Connection) -> bool:
    waiting = (
        "SELECT EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND objid = %s AND NOT granted"
        " AND database = (SELECT oid FROM pg_database WHERE datname = current_database()))"
    )
    return bool(conn.execute(waiting, [_BARRIER]).fetchone()[0])
