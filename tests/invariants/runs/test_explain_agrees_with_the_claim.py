"""What `qwf explain` says of the queue is what the claim does: the same rows, in the same order."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
from support.rows.jobs import Jobs, jobs_of

from queue_workflows.repositories.explain.explain_job import Circumstances, ExplainingRepository
from queue_workflows.repositories.sql.families import FAMILIES


@pytest.fixture(params=["node", "ingest"])
def jobs(request: pytest.FixtureRequest, qwf_dsn: str) -> Iterator[Jobs]:
    """An empty table of each family."""
    with jobs_of(request.param, qwf_dsn) as jobs:
        yield jobs


def seen(jobs: Jobs, job_id: int) -> Circumstances:
    family = next(family for family in FAMILIES if family.name == jobs.family)
    there = ExplainingRepository(jobs.connection).circumstances(family, job_id)
    assert there is not None
    return there


def crowd(jobs: Jobs, seed: int) -> list[int]:
    """Jobs of all priorities and statuses, in an order of their own, on two queues."""
    chance = random.Random(seed)
    ids = jobs.enqueue(priorities=tuple(chance.choices((0, 4, 5, 9), k=24)))
    jobs.enqueue(6, queue="gpu" if jobs.family == "node" else "load")
    held = jobs.claim(limit=6)
    for job in held[:2]:
        jobs.repository.complete(job, {})
    jobs.repository.hold(held[2], "unknown_task", "x", delay_s=600)
    jobs.repository.release(held[3])
    jobs.repository.cancel(chance.choice([one["id"] for one in jobs.rows() if one["status"] == "queued"]))
    jobs.connection.execute(
        f"UPDATE {jobs.table} SET position = nextval('{jobs.table}_position_seq') WHERE id = ANY(%s)",
        [chance.sample(ids, 8)],
    )
    jobs.connection.execute(
        f"UPDATE {jobs.table} SET suspect = true WHERE id = ANY(%s)", [chance.sample(ids, 6)]
    )
    return ids


@pytest.mark.parametrize("seed", range(5))
def test_as_many_are_ahead_as_are_claimed_first(jobs: Jobs, seed: int) -> None:
    """Who is claimable, and its place, are the order in which a worker that is alone claims."""
    ids = crowd(jobs, seed)
    said = {job_id: seen(jobs, job_id) for job_id in ids}
    places = {job_id: there.ahead for job_id, there in said.items() if there.claimable}
    claimed = []
    while found := jobs.claim(alone=True):
        claimed.append(found[0].id)
    assert places == {job_id: place for place, job_id in enumerate(claimed)}


def test_what_is_due_is_promoted_and_what_lapsed_is_reclaimed(jobs: Jobs) -> None:
    """The sweeps take exactly those of which explain says so."""
    ids = jobs.enqueue(4)
    held = jobs.claim(limit=4)
    for job, delay_s in zip(held[:2], (0.0, 600.0), strict=True):
        jobs.repository.hold(job, "unknown_task", "x", delay_s=delay_s)
    jobs.lapse(ids[2])
    there = {job_id: seen(jobs, job_id) for job_id in ids}
    assert [(there[job_id].due, there[job_id].lapsed) for job_id in ids] == [
        (True, False),
        (False, False),
        (False, True),
        (False, False),
    ]
    jobs.repository.promote()
    jobs.repository.reclaim(max_crashes=3, lease_s=30)
    assert [jobs.row(job_id)["status"] for job_id in ids] == ["queued", "scheduled", "queued", "running"]
