"""A job that cannot run here and now is out of the way of all behind it."""

from __future__ import annotations

import pytest
from support.jobs import jobs_of

from queue_workflows.repositories import Marks


@pytest.mark.parametrize("family", ["node", "ingest"])
def test_those_behind_run_in_their_order(family: str, qwf_dsn: str) -> None:
    """The head is on hold, everybody behind is claimed; freed, it is first in line again."""
    with jobs_of(family, qwf_dsn) as jobs:
        head, *others = jobs.enqueue(6)
        jobs.repository.hold(jobs.one(), "host_lock", "gpu0", delay_s=3600)
        marks, ran = Marks(3600.0), []
        for tick in range(4):
            claimed = jobs.claim(positions=marks.positions(float(tick)))
            marks.claimed(claimed, 1)
            ran += [job.id for job in claimed]
        assert ran == others[:4]
        assert jobs.repository.promote_held("host_lock", ["gpu0"]) == 1
        assert [job.id for job in jobs.claim(limit=9)] == [head, others[4]]


@pytest.mark.parametrize("family", ["node", "ingest"])
def test_a_thousand_on_hold_cost_a_claim_nothing(family: str, qwf_dsn: str) -> None:
    """Held rows are not in the index that a claim walks."""
    with jobs_of(family, qwf_dsn) as jobs:
        jobs.enqueue(1000)
        for job in jobs.claim(limit=1000):
            jobs.repository.hold(job, "limit", "k", delay_s=3600)
        (last,) = jobs.enqueue()
        jobs.connection.execute(f"VACUUM {jobs.table}")
        walked = f"SELECT idx_tup_read FROM pg_stat_user_indexes WHERE indexrelname = 'ix_{jobs.table}_claim'"
        flush = "SELECT pg_stat_force_next_flush(), pg_stat_clear_snapshot()"
        jobs.connection.execute(flush)
        (before,) = jobs.connection.execute(walked).fetchone()
        assert [job.id for job in jobs.claim()] == [last]
        jobs.connection.execute(flush)
        (after,) = jobs.connection.execute(walked).fetchone()
        assert after - before <= 2
