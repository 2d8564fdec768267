"""A worker whose clock is an hour off reckons leases, due times and lapses by the database's clock."""

from __future__ import annotations

import os
import time
from datetime import UTC, datetime, timedelta

import pytest
from support.processes.workers import TESTS, until
from support.stages.floor import Floor

LEASE_S = 30.0
SKEWED = TESTS / "support" / "skewed_clock"


def ahead_s(floor: Floor, what: str, job: int) -> float:
    """How far ahead of the server's clock a column of a job is."""
    ((seconds,),) = floor.connection.execute(
        f"SELECT extract(epoch FROM {what} - clock_timestamp())::float8 FROM ingest_jobs WHERE id = %s", [job]
    )
    return seconds


@pytest.mark.parametrize("off_by_s", [3600, pytest.param(-3600, marks=pytest.mark.slow)])
def test_an_hour_off(floor: Floor, off_by_s: int) -> None:
    """It takes back what has lapsed and no more, begins what is due and no more, and renews by the lease."""
    lapsed, held = floor.enqueue(priority=9), floor.enqueue(priority=8)
    for worker, job in (("gone", lapsed), ("alive", held)):
        assert floor.jobs.one(worker, lease_s=1800).id == job
    floor.jobs.lapse(lapsed)
    now = datetime.now(UTC)
    due = floor.enqueue(run_at=now + timedelta(seconds=1))
    later = floor.enqueue(run_at=now + timedelta(minutes=30))
    clock = floor.repository.enqueue("clock", queue="fetch").id
    path = os.pathsep.join(map(str, (SKEWED, TESTS, os.environ.get("PYTHONPATH", ""))))
    with floor.worker(PYTHONPATH=path, CLOCK_IS_OFF_BY_S=str(off_by_s), QWF_RENEW_S="0.2") as worker:
        floor.until_completed(clock, lapsed, due)
        assert abs(floor.jobs.row(clock)["result"] - time.time() - off_by_s) < 600
        own = floor.enqueue(gated=True)
        floor.until_begun(own, 1)
        first = floor.jobs.seen(own, "lease_expires_at")
        until(lambda: floor.jobs.seen(own, "lease_expires_at") != first)
        assert 0 < ahead_s(floor, "lease_expires_at", own) <= LEASE_S
        assert abs(ahead_s(floor, "finished_at", lapsed)) < 600
        assert floor.jobs.seen(held, "status", "attempt") == ("running", 1)
        assert floor.jobs.seen(later, "status", "attempt") == ("scheduled", 0)
        floor.ledger.open_gate(own, 1)
        floor.until_completed(own)
        assert worker.poll() is None
    assert floor.jobs.seen(lapsed, "attempt", "crash_count") == (2, 1)
    assert floor.jobs.seen(own, "attempt", "crash_count") == (1, 0)
