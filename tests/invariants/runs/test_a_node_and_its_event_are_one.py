"""The end of a node and its one dispatch event commit together or not at all."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from support.rows.jobs import Jobs, ending, jobs_of

REFUSE = """
CREATE FUNCTION pg_temp.refuse() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN RAISE EXCEPTION 'no event today'; END $$;
CREATE TRIGGER refuse BEFORE INSERT ON workflow_dispatch_events
    FOR EACH ROW EXECUTE FUNCTION pg_temp.refuse()
"""


def lapsed(jobs: Jobs, job: Any) -> object:
    """A reclaim that gives up."""
    jobs.lapse(job.id)
    return jobs.repository.reclaim(max_crashes=1, lease_s=30.0)


def cancelled(jobs: Jobs, job: Any) -> object:
    """A cancel of a job that waits."""
    jobs.repository.release(job)
    return jobs.repository.cancel(job.id)


ENDS: dict[str, Callable[[Jobs, Any], object]] = {
    "completed": lambda jobs, job: jobs.repository.complete(job, {"x": 1}),
    "skipped": lambda jobs, job: jobs.repository.end(ending(job, "skipped")),
    "failed": lambda jobs, job: jobs.repository.end(ending(job, "failed")),
    "cancelled": lambda jobs, job: jobs.repository.end(ending(job, "cancelled")),
    "awaiting_input": lambda jobs, job: jobs.repository.end(ending(job, "awaiting_input")),
    "completed and the next claimed": lambda jobs, job: jobs.repository.end_and_claim(
        [ending(job)], "cpu", worker_id="w1", lease_s=9
    ),
    "completed by the host": lambda jobs, job: jobs.repository.mark_completed(job.id),
    "failed by the host": lambda jobs, job: jobs.repository.mark_failed(job.id, "x"),
    "failed by a reclaim": lapsed,
    "failed with its worker": lambda jobs, job: jobs.repository.reclaim_worker("w1", max_crashes=1),
    "cancelled by an operator": cancelled,
}
every_end = pytest.mark.parametrize(("kind", "end"), ENDS.items(), ids=ENDS.keys())


@pytest.fixture
def jobs(qwf_dsn: str) -> Iterator[Jobs]:
    """Node jobs."""
    with jobs_of("node", qwf_dsn) as jobs:
        yield jobs


@every_end
def test_each_end_has_its_event(jobs: Jobs, kind: str, end: Callable[[Jobs, Any], object]) -> None:
    """Whoever ends a node, in whichever way: one event, of its generation and attempt."""
    (job_id,) = jobs.enqueue()
    end(jobs, jobs.one())
    assert jobs.events(job_id) == [(1, 1, kind.split(maxsplit=1)[0])]
    assert jobs.row(job_id)["status"] == kind.split(maxsplit=1)[0]


@every_end
def test_without_the_event_the_node_has_not_ended(
    qwf_dsn: str, jobs: Jobs, kind: str, end: Callable[[Jobs, Any], object]
) -> None:
    """Where the event cannot be written the status is not written either."""
    (job_id,) = jobs.enqueue()
    job = jobs.one()
    jobs.connection.execute(REFUSE)
    try:
        with pytest.raises(psycopg.errors.RaiseException, match="no event today"):
            end(jobs, job)
    finally:
        jobs.connection.execute("DROP TRIGGER refuse ON workflow_dispatch_events")
    status, finished = jobs.seen(job_id, "status", "finished_at")
    assert (status, finished) in (("running", None), ("queued", None))
    assert jobs.events(job_id) == []


@every_end
def test_a_rollback_takes_both(qwf_dsn: str, kind: str, end: Callable[[Jobs, Any], object]) -> None:
    """In a transaction that fails neither the end nor the event has happened; what the caller wrote, too."""
    with jobs_of("node", qwf_dsn, autocommit=False) as jobs:
        (job_id,) = jobs.enqueue()
        job = jobs.one()
        jobs.connection.commit()
        end(jobs, job)
        assert jobs.row(job_id)["status"] == kind.split(maxsplit=1)[0]
        assert len(jobs.events(job_id)) == 1
        jobs.connection.rollback()
        assert (jobs.row(job_id)["status"], jobs.events(job_id)) == ("running", [])


@every_end
def test_a_killed_connection_takes_both(qwf_dsn: str, kind: str, end: Callable[[Jobs, Any], object]) -> None:
    """A worker that dies between the end and its commit has ended nothing."""
    with jobs_of("node", qwf_dsn) as watcher, psycopg.connect(qwf_dsn) as dying:
        (job_id,) = watcher.enqueue()
        job = watcher.one()
        end(Jobs("node", dying), job)
        watcher.connection.execute("SELECT pg_terminate_backend(%s, 10000)", [dying.info.backend_pid])
        with pytest.raises(psycopg.OperationalError):
            dying.commit()
        assert (watcher.row(job_id)["status"], watcher.events(job_id)) == ("running", [])


def test_a_waiting_end_writes_no_event(jobs: Jobs) -> None:
    """Release, retry and hold are no ends: nobody has to act on them."""
    jobs.enqueue(3)
    held = jobs.claim(limit=3)
    jobs.repository.end_many(
        [
            ending(held[0], "queued"),
            ending(held[1], "scheduled", delay_s=1.0, counts=True),
            ending(held[2], "scheduled", delay_s=1.0, hold_reason="limit"),
        ]
    )
    assert jobs.connection.execute("SELECT count(*) FROM workflow_dispatch_events").fetchone() == (0,)
