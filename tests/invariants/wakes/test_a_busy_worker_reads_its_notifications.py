"""A worker that is at one job for hours reads what it is notified of all the same.

The server keeps a notification until every listener has taken it; one that never reads fills the queue for
all databases, until NOTIFY fails for everybody.
"""

from __future__ import annotations

from pathlib import Path

import psycopg
import pytest
from support.processes.workers import running_worker, until

from queue_workflows.repositories import HeartbeatRepository, IngestJobRepository

NOTIFY = "SELECT pg_notify('ingest_job_ready', n || repeat('x', 7000)) FROM generate_series(1, %s) AS n"
ADVERTISED = """
SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND classid = 7714
    AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
"""


@pytest.mark.slow
@pytest.mark.parametrize("at_once", [1, 2])
def test_a_busy_worker_reads_and_asks_for_no_more(qwf_dsn: str, tmp_path: Path, at_once: int) -> None:
    """Far more than its socket holds: the queue is empty again, and writers need not notify for it."""
    begun = [tmp_path / f"begun {number}" for number in range(at_once)]
    with (
        psycopg.connect(qwf_dsn, autocommit=True) as conn,
        running_worker(qwf_dsn, "--concurrency", str(at_once)) as worker,
    ):
        jobs = IngestJobRepository(conn)
        until(lambda: HeartbeatRepository(conn).list(state="idle"))
        until(lambda: conn.execute(ADVERTISED).fetchone() == (1,))
        for file in begun:
            job = jobs.enqueue("deaf", queue="fetch", args={"begun": str(file)}).id
        until(lambda: all(file.exists() for file in begun))
        until(lambda: conn.execute(ADVERTISED).fetchone() == (0,))
        for _ in range(20):
            conn.execute(NOTIFY, [200])

        def is_nearly_empty() -> bool:
            # The server looks how far its listeners are when somebody notifies.
            conn.execute(NOTIFY, [5])
            (used,) = conn.execute("SELECT pg_notification_queue_usage()").fetchone()
            return used < 0.001

        # The main thread of a crew reads at once.
        assert at_once > 1 or not is_nearly_empty()
        until(is_nearly_empty)
        assert (worker.poll(), jobs.fetch(job).status) == (None, "running")
