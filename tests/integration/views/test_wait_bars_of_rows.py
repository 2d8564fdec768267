"""Wait bars of real rows: what claims, holds, ends, retries and pauses leave is what a bar shows."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

import psycopg
import pytest
from support.rows.jobs import CLEAR_WITH_WORKERS, Jobs, ending

from queue_workflows.engine.explain.wait_bar import Segment, bar_of_job
from queue_workflows.repositories.explain.explain_job import ExplainingRepository
from queue_workflows.repositories.sql.families import BY_NAME
from queue_workflows.repositories.workers.control import WorkerControlRepository


@pytest.fixture
def conn(qwf_dsn: str) -> Iterator[psycopg.Connection]:
    with psycopg.connect(qwf_dsn, autocommit=True) as connection:
        connection.execute(CLEAR_WITH_WORKERS)
        yield connection


@pytest.fixture(params=["node", "ingest"])
def jobs(conn: psycopg.Connection, request: pytest.FixtureRequest) -> Jobs:
    """The jobs of either family."""
    return Jobs(request.param, conn)


def bar(jobs: Jobs, job_id: int) -> list[Segment]:
    there = ExplainingRepository(jobs.connection).circumstances(BY_NAME[jobs.family], job_id)
    assert there is not None
    return bar_of_job(there)


def told(jobs: Jobs, job_id: int) -> list[tuple[str, str]]:
    return [(one.kind, one.note) for one in bar(jobs, job_id)]


def test_from_an_enqueue_to_an_end(jobs: Jobs) -> None:
    """Queued, put aside until it is freed, tried twice, and over."""
    (job_id,) = jobs.enqueue()
    jobs.repository.hold(jobs.one(), "unknown_task", "task", delay_s=600)
    assert told(jobs, job_id) == [("queued", ""), ("held", "unknown task 'task'")]
    jobs.repository.promote_held("unknown_task", ["task"], queue=jobs.queue)
    was = [("queued", ""), ("held", "unknown task 'task'")]
    assert told(jobs, job_id) == [*was, ("queued", "")]
    error = {"kind": "exception", "type": "ValueError", "message": "no"}
    jobs.repository.end(ending(jobs.one(), "scheduled", error=error, counts=True, delay_s=600))
    tried = [*was, ("queued", ""), ("running", "attempt 2 on w1")]
    assert told(jobs, job_id) == [*tried, ("retry", "")]
    jobs.connection.execute(
        f"UPDATE {jobs.table} SET status = 'queued', run_at = statement_timestamp() WHERE id = %s", [job_id]
    )
    claimed = jobs.one("w2")
    jobs.repository.end(ending(claimed, "completed"))
    segments = bar(jobs, job_id)
    assert [(one.kind, one.note) for one in segments][-2:] == [
        ("running", "attempt 3 on w2"),
        ("ended", "completed"),
    ]
    row = jobs.row(job_id)
    first, last = (datetime.fromisoformat(row[name]) for name in ("created_at", "finished_at"))
    assert (segments[0].start, segments[-1].end) == (first, last)


def test_a_pause_of_the_queue_and_not_of_one_of_its_hosts(jobs: Jobs) -> None:
    """It is told by whom; workers elsewhere may claim all the same where one host was paused."""
    (job_id,) = jobs.enqueue()
    control = WorkerControlRepository(jobs.connection)
    control.set("h", jobs.queue, "pause", actor="bob")
    assert told(jobs, job_id) == [("queued", "")]
    control.set("*", jobs.queue, "pause", actor="ann")
    assert told(jobs, job_id) == [("queued", ""), ("paused", "paused by ann")]
    control.clear("*", jobs.queue, actor="ann")
    assert told(jobs, job_id) == [("queued", ""), ("paused", "paused by ann"), ("queued", "")]
    jobs.connection.execute("DELETE FROM worker_control")


def test_a_job_for_later_waits_for_its_time(jobs: Jobs) -> None:
    """And not for a worker."""
    when = "now() + interval '1 h'"
    (job_id,) = jobs.enqueue()
    jobs.connection.execute(
        f"UPDATE {jobs.table} SET status = 'scheduled', run_at = {when} WHERE id = %s", [job_id]
    )
    assert told(jobs, job_id) == [("due", "")]
