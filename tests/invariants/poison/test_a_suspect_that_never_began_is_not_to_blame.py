"""A job that may have killed a worker is blamed for the next one only if its function had begun there.

A worker claims, and its lease may lapse before the answer has come: a machine with too much to do. Where no
supervisor tells what had begun, the row has to.
"""

from __future__ import annotations

import pytest
from support.processes.workers import until
from support.rows.jobs import Jobs, jobs_of
from support.servers.statement_proxy import Moment, StatementProxy
from support.stages.floor import Floor

from queue_workflows.repositories.claims.claim import CLAIM_ALONE

TERMS = {"max_crashes": 2, "lease_s": 30.0}
COUNTS = ("status", "crash_count", "suspect")
# So often is it believed of one generation.
EXCUSES = 4
UNBEGUN = "its lease lapsed before it had begun"


def lose(jobs: Jobs, job_id: int, *, have_begun: bool) -> None:
    """A worker claims the job alone, and is gone."""
    (job,) = jobs.claim("w", alone=True)
    assert job.id == job_id
    jobs.lapse(job_id, have_begun=have_begun)
    assert [each.id for each in jobs.repository.reclaim(**TERMS)] == [job_id]


@pytest.mark.parametrize("family", ["node", "ingest"])
def test_a_lapse_before_the_begin_is_excused_some_times(family: str, qwf_dsn: str) -> None:
    """Not for ever: what kills its worker before the begin can be written ends all the same."""
    with jobs_of(family, qwf_dsn) as jobs:
        (job,) = jobs.enqueue()
        lose(jobs, job, have_begun=True)
        assert jobs.seen(job, *COUNTS) == ("queued", 1, True)
        for _ in range(EXCUSES):
            lose(jobs, job, have_begun=False)
            assert jobs.seen(job, *COUNTS) == ("queued", 1, True)
            assert jobs.row(job)["errors"][-1]["message"] == UNBEGUN
        lose(jobs, job, have_begun=False)
        assert jobs.seen(job, *COUNTS) == ("failed", 2, True)


@pytest.mark.parametrize("family", ["node", "ingest"])
def test_a_lapse_after_the_begin_counts(family: str, qwf_dsn: str) -> None:
    """Of this attempt: that an earlier one had begun says nothing of it."""
    with jobs_of(family, qwf_dsn) as jobs:
        (job,) = jobs.enqueue(max_crashes=3)
        lose(jobs, job, have_begun=True)
        lose(jobs, job, have_begun=True)
        lose(jobs, job, have_begun=False)
        assert jobs.seen(job, *COUNTS) == ("queued", 2, True)
        lose(jobs, job, have_begun=True)
        assert jobs.seen(job, *COUNTS) == ("failed", 3, True)


@pytest.mark.parametrize("concurrency", ["1", "4"])
def test_a_worker_writes_that_a_suspect_begins(floor: Floor, proxy: StatementProxy, concurrency: str) -> None:
    """Killed with the answer to its claim on the way it has not; killed in the midst of the job it has."""
    job = floor.enqueue(gated=True, max_crashes=3)
    floor.connection.execute("UPDATE ingest_jobs SET suspect = true WHERE id = %s", [job])
    trap = proxy.trap(CLAIM_ALONE["ingest"], moment=Moment.UNREAD)
    with floor.worker("--concurrency", concurrency, dsn=proxy.dsn) as worker:
        until(lambda: trap.has_sprung and floor.jobs.seen(job, "status") == ("running",))
        worker.kill()
        worker.wait(150)
        trap.drop()
    floor.connection.execute("UPDATE ingest_jobs SET lease_expires_at = now() - interval '1 s'")
    assert len(floor.repository.reclaim(**TERMS)) == 1
    assert floor.jobs.seen(job, *COUNTS) == ("queued", 0, True)
    with floor.worker("--concurrency", concurrency) as worker:
        floor.until_begun(job, 2)
        worker.kill()
        worker.wait(150)
    floor.connection.execute("UPDATE ingest_jobs SET lease_expires_at = now() - interval '1 s'")
    assert len(floor.repository.reclaim(**TERMS)) == 1
    assert floor.jobs.seen(job, *COUNTS) == ("queued", 1, True)
