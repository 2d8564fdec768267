"""A window is held as long as its job, however long that is, and no longer than its worker's lease."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import psycopg
import pytest
from support.connections.kept import own_connection
from support.processes.workers import patiently, running_worker
from support.tasks.window_tasks import notes

from queue_workflows import IngestJobRepository

SLOT = """
SELECT job_id, acquired_at, lease_expires_at FROM limit_slots
WHERE limit_key = 'host:a' AND lease_expires_at > '-infinity'
"""


@pytest.fixture
def conn(qwf_dsn: str) -> Any:
    with own_connection(qwf_dsn) as connection:
        connection.execute("TRUNCATE ingest_jobs, limit_slots, concurrency_limits, worker_heartbeats")
        yield connection


def slot(conn: psycopg.Connection[Any]) -> tuple[Any, ...]:
    """The slot that is held: by whom, since when, until when."""
    (held,) = conn.execute(SLOT).fetchall()
    return held


@pytest.mark.slow
def test_kill_of_the_holder_frees_the_window_at_the_end_of_its_lease(
    qwf_dsn: str, conn: psycopg.Connection[Any], tmp_path: Path
) -> None:
    """It is renewed beyond its first lease; killed, it is the next one's when the last one is over."""
    jobs, log = IngestJobRepository(conn), tmp_path / "log"
    args = {"keys": ["host:a"], "max": 1, "log": str(log), "s": 3600}
    settings = {"QWF_APP": "support.tasks.window_tasks", "QWF_LEASE_S": "8", "QWF_RENEW_S": "0.5"}
    holder = jobs.enqueue("window", queue="fetch", args=args).id
    with running_worker(qwf_dsn, "--concurrency", "1", **settings) as first:
        patiently(lambda: notes(log) == [["in", "host:a"]])
        _, taken_at, first_until = slot(conn)
        waiter = jobs.enqueue("window", queue="fetch", args={**args, "s": 0}).id
        with running_worker(qwf_dsn, "--concurrency", "1", **settings):
            patiently(lambda: jobs.fetch(waiter).status == "running")
            patiently(lambda: conn.execute("SELECT now() > %s", [first_until]).fetchone() == (True,))
            os.kill(first.pid, signal.SIGSTOP)
            held_by, held_since, until = slot(conn)
            assert (held_by, held_since) == (holder, taken_at)
            assert until > first_until
            os.kill(first.pid, signal.SIGKILL)
            patiently(lambda: jobs.fetch(waiter).status == "completed")
            assert jobs.fetch(waiter).result["entered"] >= until.timestamp()
