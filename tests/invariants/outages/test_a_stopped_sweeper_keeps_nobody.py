"""Who stops in the middle of a sweep, stopped, hung or cut off, keeps nobody else from sweeping."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import psycopg
import pytest
from support.rows.jobs import Jobs, jobs_of
from support.servers.statement_proxy import Moment, StatementProxy
from support.stages.floor import Floor

from queue_workflows.repositories.claims.sweep import PROMOTE, RECLAIM


@pytest.mark.parametrize("statement", [PROMOTE["ingest"], RECLAIM["ingest"]], ids=["promotion", "reclaim"])
def test_another_worker_takes_over(floor: Floor, proxy: StatementProxy, statement: str) -> None:
    """Held up between two statements of its sweep, it holds nothing: another takes the lapsed job back, and
    queues the one that is due.
    """
    job = floor.enqueue()
    floor.jobs.claim("gone")
    floor.jobs.lapse(job)
    due = floor.enqueue(run_at=datetime.now(UTC) + timedelta(seconds=0.1))
    trap = proxy.trap(statement, moment=Moment.UNSENT)
    with floor.worker(dsn=proxy.dsn):
        trap.sprung()
        with floor.worker():
            floor.until_completed(job)
            floor.until_completed(due)
    assert floor.standing(job) == ("completed", 2, 1, 0)


@pytest.mark.parametrize("family", ["node", "ingest"])
def test_sweepers_in_turn_do_not_do_it_twice(family: str, qwf_dsn: str) -> None:
    """While one is at it, those who take turns leave it alone; those who insist skip what it holds."""
    with jobs_of(family, qwf_dsn) as jobs, psycopg.connect(qwf_dsn) as connection:
        jobs.enqueue(2)
        jobs.claim("gone", limit=2)
        jobs.lapse(*(row["id"] for row in jobs.rows()))
        first = Jobs(family, connection)
        how = {"max_crashes": 9, "lease_s": 30.0}
        assert len(first.repository.reclaim(**how, in_turn=True)) == 2
        (late,) = jobs.enqueue()
        jobs.claim("gone")
        jobs.lapse(late)
        assert jobs.repository.reclaim(**how, in_turn=True) == []
        assert jobs.repository.promote(in_turn=True) == 0
        assert [each.id for each in jobs.repository.reclaim(**how)] == [late]
        connection.commit()
        assert jobs.repository.reclaim(**how, in_turn=True) == []
