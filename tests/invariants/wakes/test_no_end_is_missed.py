"""Each that awaits a job hears of its end: callers come while jobs end, and their connection is killed."""

from __future__ import annotations

import asyncio
import threading

import psycopg
import pytest
from support.rows.jobs import jobs_of

from queue_workflows import await_for

JOBS = 300
KILL = """
SELECT pg_terminate_backend(pid) FROM pg_stat_activity
WHERE application_name LIKE 'qwf:waiter%' AND datname = current_database()
"""


@pytest.mark.parametrize("listens", ["on", "off"])
def test_callers_that_come_while_jobs_end(
    qwf_dsn: str, monkeypatch: pytest.MonkeyPatch, listens: str
) -> None:
    """Each gets the result of its own job, with announcements and without."""
    monkeypatch.setenv("QWF_LISTEN", listens)
    begun = threading.Event()
    with jobs_of("ingest", qwf_dsn) as jobs:
        ids = jobs.enqueue(JOBS)

        def work() -> None:
            begun.wait(60)
            with psycopg.connect(qwf_dsn, autocommit=True) as killer:
                claimed = jobs.repository.claim("fetch", worker_id="a:fetch:1", lease_s=600, limit=JOBS)
                for number, job in enumerate(claimed):
                    jobs.repository.complete(job, {"id": job.id})
                    if number % 75 == 40:
                        killer.execute(KILL)

        async def callers() -> list[object]:
            waits = []
            for number, job_id in enumerate(ids):
                waits.append(asyncio.create_task(await_for(job_id, 120, db_url=qwf_dsn)))
                if number == JOBS // 3:
                    begun.set()
                await asyncio.sleep(0.001)
            return await asyncio.gather(*waits)

        worker = threading.Thread(target=work)
        worker.start()
        try:
            results = asyncio.run(callers())
        finally:
            begun.set()
            worker.join()
    assert results == [{"id": job_id} for job_id in ids]
