"""No verb moves a job in a way that the one table of moves does not have, whatever status it finds it in."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
from support.rows.jobs import Jobs, ending, jobs_of, stale

from queue_workflows.errors import IllegalTransition, LeaseLost
from queue_workflows.repositories import ClaimedJob, NewNodeJob
from queue_workflows.repositories.claims.by_host_lock import HostLockRepository
from queue_workflows.repositories.sql.families import BY_NAME
from queue_workflows.states import INGEST_MOVES, JOB_TERMINAL, MOVES, NODE_MOVES, JobStatus, check_move

TITLES = {"node": "node job", "ingest": "ingest job"}
STATUSES = {"node": sorted(NODE_MOVES), "ingest": sorted(INGEST_MOVES)}
ENDS = sorted(JOB_TERMINAL)
Verb = Callable[[Jobs, list[int], list[ClaimedJob]], Any]


def each(call: Callable[[int], Any], ids: list[int]) -> None:
    """One by one; what is refused stays as it is."""
    for job_id in ids:
        with suppress(IllegalTransition):
            call(job_id)


def ends(status: str) -> Verb:
    return lambda jobs, ids, claims: jobs.repository.end_many([ending(one, status) for one in claims])


def ends_and_claims(jobs: Jobs, ids: list[int], claims: list[ClaimedJob]) -> None:
    for one in claims:
        jobs.repository.end_and_claim([ending(one)], jobs.queue, worker_id="w2", lease_s=30, limit=9)


def late(jobs: Jobs, ids: list[int], claims: list[ClaimedJob]) -> None:
    """Marks with every fence that a job ever had, and some that it never had."""
    for one in claims:
        for fence in (one.fence, *stale(one.fence)):
            with suppress(LeaseLost, IllegalTransition):
                jobs.repository.mark_completed(one.id, fence=fence)


def taken(jobs: Jobs) -> None:
    """Claims from a hold what another host leaves to those where its lock is free, and nobody precedes."""
    hold = "hold_reason = 'host_lock', hold_key = 'elsewhere:k', priority = 9"
    jobs.connection.execute(f"UPDATE {jobs.table} SET {hold} WHERE status = 'scheduled'")
    HostLockRepository(jobs.connection).take(
        BY_NAME[jobs.family],
        ["elsewhere:k"],
        queue=jobs.queue,
        worker_id="w2",
        lease_s=30,
        limit=9,
        alone=True,
    )


VERBS: dict[str, Verb] = {
    "claim": lambda jobs, ids, claims: jobs.claim("w2", limit=9, alone=False),
    "end_and_claim": ends_and_claims,
    **{f"end {status}": ends(status) for status in (*ENDS, "queued")},
    "hold": lambda jobs, ids, claims: jobs.repository.end_many(
        [ending(one, "scheduled", delay_s=60, hold_reason="limit", hold_key="k") for one in claims]
    ),
    "promote": lambda jobs, ids, claims: jobs.repository.promote(),
    "promote_held": lambda jobs, ids, claims: jobs.repository.promote_held("limit", ["k"], queue=jobs.queue),
    "take": lambda jobs, ids, claims: taken(jobs),
    "reclaim": lambda jobs, ids, claims: (
        jobs.lapse(*[row["id"] for row in jobs.rows() if row["status"] == "running"]),
        jobs.repository.reclaim(max_crashes=3, lease_s=30),
    ),
    "reclaim_worker": lambda jobs, ids, claims: jobs.repository.reclaim_worker("w1", max_crashes=1),
    "cancel": lambda jobs, ids, claims: jobs.repository.cancel_many(ids, actor="op"),
    "retry": lambda jobs, ids, claims: jobs.repository.retry_many(ids, actor="op"),
    "mark_completed": lambda jobs, ids, claims: each(jobs.repository.mark_completed, ids),
    "mark_failed": lambda jobs, ids, claims: each(lambda one: jobs.repository.mark_failed(one, "no"), ids),
    "mark with a fence": late,
}


def opens(**how: Any) -> Verb:
    """Opens the nodes of all jobs, as a `run retry` does."""

    def opened(jobs: Jobs, ids: list[int], claims: list[ClaimedJob]) -> None:
        again = [
            NewNodeJob(run_id=row["run_id"], node_id=row["node_id"], queue=jobs.queue, **how)
            for row in jobs.rows()
        ]
        jobs.repository.open_many(again)

    return opened


FOR_NODES: dict[str, Verb] = {
    "open": opens(),
    "open for later": opens(delay=60),
    "open skipped": opens(status=JobStatus.SKIPPED),
    "open parked": opens(status=JobStatus.AWAITING_INPUT),
    "end awaiting_input": ends("awaiting_input"),
    "mark_awaiting_input": lambda jobs, ids, claims: each(jobs.repository.mark_awaiting_input, ids),
}
CASES = [(family, name) for family in STATUSES for name in VERBS] + [("node", name) for name in FOR_NODES]


@pytest.fixture
def jobs(request: pytest.FixtureRequest, qwf_dsn: str) -> Iterator[Jobs]:
    """An empty table of the family."""
    with jobs_of(request.param, qwf_dsn) as jobs:
        yield jobs


def one_in_each_status(jobs: Jobs) -> tuple[list[int], list[ClaimedJob]]:
    """A job in every status of its family, each claimed once on its way; the scheduled one is due."""
    statuses = STATUSES[jobs.family]
    ids = jobs.enqueue(len(statuses))
    claims = jobs.claim(limit=len(ids))
    for one, status in zip(claims, statuses, strict=True):
        if status == "scheduled":
            jobs.repository.hold(one, "limit", "k", delay_s=0.001)
        elif status != "running":
            jobs.repository.end(ending(one, status))
    assert [row["status"] for row in jobs.rows()] == statuses
    return ids, claims


@pytest.mark.parametrize(("jobs", "name"), CASES, indirect=["jobs"])
def test_every_move_is_in_the_table(jobs: Jobs, name: str) -> None:
    """What a verb does to a job in each status is a legal move or nothing, and it does move something."""
    ids, claims = one_in_each_status(jobs)
    before = [row["status"] for row in jobs.rows()]
    (VERBS | FOR_NODES)[name](jobs, ids, claims)
    moves = [
        (old, new)
        for old, new in zip(before, (row["status"] for row in jobs.rows()), strict=True)
        if old != new
    ]
    assert moves
    for old, new in moves:
        check_move(TITLES[jobs.family], old, new)


def test_the_table_has_every_family() -> None:
    """A family that is not walked here, or beside its own verbs as runs, nodes and binaries, is a hole."""
    assert set(MOVES) == {*TITLES.values(), "run", "node", "binary"}
