"""A worker that lost its job and does not know it yet cannot write over its successor."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest
from support.rows.jobs import Jobs, ending, jobs_of
from support.rows.schemas import blocked, until

from queue_workflows.errors import LeaseLost
from queue_workflows.repositories import ClaimedJob

Write = Callable[[Jobs, ClaimedJob], object]

WRITES: dict[str, Write] = {
    "complete": lambda jobs, job: jobs.repository.complete(job, {"by": "zombie"}),
    "fail": lambda jobs, job: jobs.repository.end(ending(job, "failed", counts=True, error={"kind": "x"})),
    "release": lambda jobs, job: jobs.repository.release(job),
    "hold": lambda jobs, job: jobs.repository.hold(job, "limit", "k", delay_s=1),
    "beat": lambda jobs, job: jobs.repository.beat(job.fence, {"by": "zombie"}),
    "renew": lambda jobs, job: jobs.repository.make_durable(job.fence, lease_s=3600),
    "mark": lambda jobs, job: jobs.repository.mark_completed(job.id, {"by": "zombie"}, fence=job.fence),
}
every_write = pytest.mark.parametrize("write", WRITES.values(), ids=WRITES.keys())


@pytest.fixture(params=["node", "ingest"])
def jobs(request: pytest.FixtureRequest, qwf_dsn: str) -> Iterator[Jobs]:
    """An empty table of each family."""
    with jobs_of(request.param, qwf_dsn) as jobs:
        yield jobs


def lose(jobs: Jobs) -> ClaimedJob:
    """A claim whose lease lapsed and whose job was reclaimed."""
    jobs.enqueue()
    zombie = jobs.one("zombie")
    jobs.lapse(zombie.id)
    assert [each.id for each in jobs.repository.reclaim(max_crashes=9, lease_s=30.0)] == [zombie.id]
    return zombie


@every_write
@pytest.mark.parametrize("then", ["waits", "runs", "is done"])
def test_after_the_reclaim(jobs: Jobs, write: Write, then: str) -> None:
    """Whether the job waits again, runs elsewhere or is done by now: the row stays as it is."""
    zombie = lose(jobs)
    if then != "waits":
        successor = jobs.one("successor", alone=True)
        assert (successor.id, successor.attempt) == (zombie.id, zombie.attempt + 1)
    if then == "is done":
        jobs.repository.complete(successor, {"by": "successor"})
    before = (jobs.row(zombie.id), jobs.events(zombie.id))
    if (then, write) == ("is done", WRITES["mark"]):
        assert write(jobs, zombie) is None
    else:
        with pytest.raises(LeaseLost) as lost:
            write(jobs, zombie)
        assert lost.value.job_id == zombie.id
    assert (jobs.row(zombie.id), jobs.events(zombie.id)) == before


def test_the_same_worker_is_no_exception(jobs: Jobs) -> None:
    """A worker that claimed its own lost job again has a new attempt, and the old one stays lost."""
    zombie = lose(jobs)
    again = jobs.one("zombie", alone=True)
    for write in WRITES.values():
        with pytest.raises(LeaseLost):
            write(jobs, zombie)
    assert jobs.repository.complete(again, {"by": "me"}) == "completed"


def test_what_it_claims_next_is_its_own(jobs: Jobs) -> None:
    """Ending and claiming in one: the lost job is named, the next is handed out all the same."""
    zombie = lose(jobs)
    jobs.connection.execute(f"UPDATE {jobs.table} SET status = 'scheduled'")
    (next_id,) = jobs.enqueue()
    done, claimed = jobs.repository.end_and_claim([ending(zombie)], jobs.queue, worker_id="zombie", lease_s=9)
    assert (done.statuses, done.lost) == ({}, [zombie.fence])
    assert [job.id for job in claimed] == [next_id]


@every_write
def test_it_waits_for_the_reclaim_and_loses(qwf_dsn: str, jobs: Jobs, write: Write) -> None:
    """A write that had to wait for whoever takes the job away is judged by what the row is afterwards."""
    jobs.enqueue()
    job = jobs.one("zombie")
    jobs.lapse(job.id)
    with (
        jobs_of(jobs.family, qwf_dsn, autocommit=False, clear=False) as sweeper,
        ThreadPoolExecutor(1) as threads,
    ):
        assert len(sweeper.repository.reclaim(max_crashes=9, lease_s=30.0)) == 1
        late = threads.submit(write, jobs, job)
        waiting = jobs.connection.info.backend_pid
        until(
            lambda: waiting in blocked(qwf_dsn, sweeper.connection.info.backend_pid), "the wait for the row"
        )
        sweeper.connection.commit()
        with pytest.raises(LeaseLost):
            late.result(150)
    assert jobs.seen(job.id, "status", "attempt", "result", "progress") == ("queued", 1, None, None)
    assert jobs.events(job.id) == []


def test_a_renewal_in_time_keeps_the_job(qwf_dsn: str, jobs: Jobs) -> None:
    """A sweep that meets a renewal under way passes the row by, and finds it renewed."""
    jobs.enqueue()
    job = jobs.one()
    jobs.lapse(job.id)
    with psycopg.connect(qwf_dsn) as connection:
        worker = Jobs(jobs.family, connection)
        assert list(worker.repository.renew([job.fence], lease_s=60)) == [job.id]
        assert jobs.repository.reclaim(max_crashes=9, lease_s=30.0) == []
        connection.commit()
    assert jobs.repository.reclaim(max_crashes=9, lease_s=30.0) == []
    assert jobs.repository.complete(job) == "completed"
