"""What a job has set going in its own thread ends no thread of its worker."""

from __future__ import annotations

from pathlib import Path

import psycopg
from support.processes.workers import running_worker, until
from support.rows.jobs import CLEAR

from queue_workflows.repositories import IngestJobRepository, NewIngestJob


def test_an_exception_that_comes_late_takes_no_thread(qwf_dsn: str, tmp_path: Path) -> None:
    """Libraries that limit how long a call takes raise in its thread, also after its end; all else runs."""
    ledger = tmp_path / "ledger"
    with psycopg.connect(qwf_dsn, autocommit=True) as connection:
        connection.execute(CLEAR)
        jobs = IngestJobRepository(connection)
        late = NewIngestJob(task_name="interrupted late", queue="fetch", args={"ledger": str(ledger)})
        ids = [made.id for made in jobs.enqueue_many([late, late])]
        with running_worker(qwf_dsn, "--concurrency", "2", QWF_APP="support.tasks.concurrent_tasks"):
            until(lambda: ledger.exists() and ledger.read_text().count("raised") == 2)
            noop = NewIngestJob(task_name="noop", queue="fetch")
            ids += [made.id for made in jobs.enqueue_many([noop] * 20)]
            until(lambda: jobs.counts() == {"fetch": {"completed": len(ids)}})
