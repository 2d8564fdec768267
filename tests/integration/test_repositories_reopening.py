"""Opening a node again after a `run retry`: which rows become as new, and which stay."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from support.jobs import Jobs, ending, jobs_of

from queue_workflows.repositories import NewNodeJob
from queue_workflows.states import JobStatus


@pytest.fixture
def jobs(qwf_dsn: str) -> Iterator[Jobs]:
    """Node jobs on an empty table."""
    with jobs_of("node", qwf_dsn) as jobs:
        yield jobs


def elements(run_id: uuid.UUID, *items: Any) -> list[NewNodeJob]:
    return [
        NewNodeJob(run_id=run_id, node_id="draw", queue="cpu", map_index=at, item=item)
        for at, item in enumerate(items)
    ]


def opened(jobs: Jobs, *items: Any) -> tuple[uuid.UUID, list[int]]:
    """A mapped node's jobs, one in each way of ending: completed, failed, skipped, cancelled."""
    (other,) = jobs.enqueue()
    run_id = jobs.row(other)["run_id"]
    jobs.repository.complete(jobs.one())
    ids = [made.id for made in jobs.repository.open_many(elements(run_id, *items))]
    claimed = jobs.claim(limit=4)
    assert [job.id for job in claimed] == ids
    assert [job.item for job in claimed] == list(items)
    error = {"kind": "exception", "message": "no"}
    jobs.repository.end_many(
        [
            ending(claimed[0], result={"n": 0}),
            ending(claimed[1], "failed", error=error, counts=True),
            ending(claimed[2], "skipped"),
            ending(claimed[3], "cancelled"),
        ]
    )
    return uuid.UUID(run_id), ids


def test_a_node_of_an_earlier_time_is_as_new(jobs: Jobs) -> None:
    """A new generation at the end of the queue; attempts go on counting, and past errors stay."""
    run_id, ids = opened(jobs, "a", {"b": 1}, None, [])
    again = jobs.repository.open_many(elements(run_id, "a", {"b": 2}, None, []))
    assert [(made.id, made.created) for made in again] == [(one, True) for one in ids]
    for one in ids:
        row = jobs.row(one)
        assert (row["status"], row["generation"], row["attempt"], row["failures"]) == ("queued", 2, 1, 0)
        assert row["result"] is row["finished_at"] is row["claimed_by"] is None
    failed = jobs.row(ids[1])
    assert (failed["item"], [entry["message"] for entry in failed["errors"]]) == ({"b": 2}, ["no"])
    assert [job.id for job in jobs.claim(limit=4)] == ids


def test_finished_elements_can_be_kept(jobs: Jobs) -> None:
    """If they are still the same; what is not over is left alone in any case."""
    run_id, ids = opened(jobs, "a", "b", "c", "d")
    again = jobs.repository.open_many(elements(run_id, "a", "b", "new", "d"), keep=True)
    assert [(made.id, made.created) for made in again] == [
        (ids[0], False),
        (ids[1], True),
        (ids[2], True),
        (ids[3], True),
    ]
    assert jobs.seen(ids[0], "status", "generation", "result") == ("completed", 1, {"n": 0})
    assert jobs.seen(ids[2], "status", "generation", "item") == ("queued", 2, "new")
    twice = jobs.repository.open_many(elements(run_id, "a", "b", "newer", "d"))
    assert [made.created for made in twice] == [True, False, False, False]
    assert jobs.seen(ids[2], "item") == ("new",)


def test_a_node_may_open_parked_or_skipped(jobs: Jobs) -> None:
    """As the dispatcher finds it now, whatever it was before."""
    run_id, ids = opened(jobs, 1, 2, 3, 4)
    again = [
        NewNodeJob(
            run_id=run_id, node_id="draw", queue="cpu", map_index=at, item=at + 1, status=status, **more
        )
        for at, (status, more) in enumerate(
            [(JobStatus.AWAITING_INPUT, {"expires_s": 60}), (JobStatus.SKIPPED, {})]
        )
    ]
    jobs.repository.open_many(again)
    assert jobs.seen(ids[0], "status", "finished_at", "result") == ("awaiting_input", None, None)
    assert jobs.row(ids[0])["expires_at"] is not None
    assert jobs.seen(ids[1], "status", "generation") == ("skipped", 2)
    assert jobs.row(ids[1])["finished_at"] is not None


def test_surplus_elements_go(jobs: Jobs) -> None:
    """Those behind the end of a list that has become shorter."""
    run_id, ids = opened(jobs, 1, 2, 3, 4)
    assert jobs.repository.drop_beyond(run_id, "draw", 2) == 2
    assert jobs.repository.drop_beyond(run_id, "draw", 2) == 0
    assert [row["id"] for row in jobs.rows() if row["node_id"] == "draw"] == ids[:2]
