"""A job that cannot run here and now is out of the way of all behind it."""

from __future__ import annotations

import pytest
from support.rows.jobs import Jobs, jobs_of
from support.rows.plans import explain

from queue_workflows.repositories import Marks
from queue_workflows.repositories.claims.claim import CLAIM, claim_params
from queue_workflows.repositories.sql.low_water_marks import UNMARKED


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
        assert jobs.repository.promote_held("host_lock", ["gpu0"], queue=jobs.queue) == 1
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


def pages_of_a_claim(jobs: Jobs) -> int:
    """How many pages of tables and indexes a claim touches."""
    params = claim_params("fetch", worker_id="w1", lease_s=30, limit=1, alone=True, positions=UNMARKED)
    # Once for the hint bits that the first reader of fresh rows sets.
    for _ in range(2):
        plan = explain(
            jobs.connection, "force_generic_plan", CLAIM["ingest"], {**params, "relaxed": True}, ("seqscan",)
        )
    return int(plan[0]["Shared Hit Blocks"] + plan[0]["Shared Read Blocks"])


@pytest.mark.parametrize(
    "behind",
    [
        20_000,
        pytest.param(100_000, marks=pytest.mark.slow),
        pytest.param(300_000, marks=pytest.mark.nightly),
    ],
)
def test_what_stands_behind_a_held_head_costs_a_claim_nothing(qwf_dsn: str, behind: int) -> None:
    """With the head on hold, a claim touches as many pages before a crowd as before a handful."""
    with jobs_of("ingest", qwf_dsn) as jobs:
        (head,) = jobs.enqueue()
        jobs.repository.hold(jobs.one(), "host_lock", "gpu0", delay_s=3600)
        (second,) = jobs.enqueue()
        pages = []
        for count in (100, behind):
            jobs.connection.execute(
                "INSERT INTO ingest_jobs (task_name, queue)"
                " SELECT 'task', 'fetch' FROM generate_series(1, %s)",
                [count],
            )
            jobs.connection.execute("VACUUM ANALYZE ingest_jobs")
            pages.append(pages_of_a_claim(jobs))
        print(f"{pages[0]} pages with 100 behind, {pages[1]} with {behind:,}")
        # A level more in each index that is walked, for each of the ten priorities, and nothing else.
        assert pages[1] <= pages[0] + 30
        assert jobs.seen(head, "status") == ("scheduled",)
        assert jobs.one().id == second
