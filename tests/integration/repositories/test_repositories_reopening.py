"""Opening a node again after a `run retry`: which rows become as new, and which stay."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from support.rows.jobs import Jobs, ending, jobs_of

from queue_workflows.repositories import NewNodeJob, RunRepository
from queue_workflows.repositories.jobs.nodes import NO_ITEM
from queue_workflows.states import JobStatus


@pytest.fixture
def jobs(qwf_dsn: str) -> Iterator[Jobs]:
    """Node jobs on an empty table."""
    with jobs_of("node", qwf_dsn) as jobs:
        yield jobs


def elements(run_id: uuid.UUID, *items: Any) -> list[NewNodeJob]:
    """The jobs of a node that goes through a list."""
    return [
        NewNodeJob(run_id=run_id, node_id="draw", queue="cpu", map_index=at, item=item)
        for at, item in enumerate(items)
    ]


def plain(run_id: uuid.UUID, **more: Any) -> list[NewNodeJob]:
    """The jobs of four nodes."""
    return [NewNodeJob(run_id=run_id, node_id=node, queue="cpu", **more) for node in "abcd"]


def ended(jobs: Jobs, make: Callable[[uuid.UUID], list[NewNodeJob]]) -> tuple[uuid.UUID, list[int]]:
    """Four jobs of a run, one in each way of ending: completed, failed, skipped, cancelled."""
    run_id = RunRepository(jobs.connection).insert("film", spec={}, spec_hash="h").id
    new = make(run_id)
    ids = [made.id for made in jobs.repository.open_many(new)]
    claimed = jobs.claim(limit=4)
    assert [job.id for job in claimed] == ids
    assert [job.item for job in claimed] == [None if one.item is NO_ITEM else one.item for one in new]
    error = {"kind": "exception", "message": "no"}
    jobs.repository.end_many(
        [
            ending(claimed[0], result={"n": 0}),
            ending(claimed[1], "failed", error=error, counts=True),
            ending(claimed[2], "skipped"),
            ending(claimed[3], "cancelled"),
        ]
    )
    return run_id, ids


def test_a_node_of_an_earlier_time_is_as_new(jobs: Jobs) -> None:
    """A new generation at the end of the queue; attempts go on counting, and past errors stay."""
    run_id, ids = ended(jobs, plain)
    again = jobs.repository.open_many(plain(run_id, inputs={"b": 2}))
    assert [(made.id, made.created) for made in again] == [(one, True) for one in ids]
    for one in ids:
        row = jobs.row(one)
        assert (row["status"], row["generation"], row["attempt"], row["failures"]) == ("queued", 2, 1, 0)
        assert row["result"] is row["finished_at"] is row["claimed_by"] is None
        assert row["inputs"] == {"b": 2}
    assert [entry["message"] for entry in jobs.row(ids[1])["errors"]] == ["no"]
    assert [job.id for job in jobs.claim(limit=4)] == ids


def test_what_is_not_over_is_left_alone(jobs: Jobs) -> None:
    """Opening a node twice changes nothing."""
    run_id, ids = ended(jobs, plain)
    jobs.repository.open_many(plain(run_id))
    before = jobs.rows()
    assert not any(made.created for made in jobs.repository.open_many(plain(run_id, priority=9)))
    assert jobs.rows() == before
    assert [row["id"] for row in before] == ids


def test_elements_with_a_result_keep_it(jobs: Jobs) -> None:
    """As long as they are the same; a skipped one has none, and stays skipped."""
    run_id, ids = ended(jobs, lambda run_id: elements(run_id, "a", {"b": 1}, None, []))
    again = jobs.repository.open_many(elements(run_id, "a", {"b": 1}, None, []))
    assert [(made.id, made.created) for made in again] == list(
        zip(ids, [False, True, False, True], strict=True)
    )
    assert jobs.seen(ids[0], "status", "generation", "result") == ("completed", 1, {"n": 0})
    assert jobs.seen(ids[1], "status", "generation", "item") == ("queued", 2, {"b": 1})
    assert jobs.seen(ids[2], "status", "generation") == ("skipped", 1)
    assert [jobs.repository.finished_beyond(run_id, "draw", start) for start in (0, 1, 3)] == [2, 1, 0]
    others = jobs.repository.open_many(elements(run_id, "other", {"b": 1}, "new", []))
    assert [made.created for made in others] == [True, False, True, False]
    assert jobs.seen(ids[2], "status", "generation", "item") == ("queued", 2, "new")


def test_a_node_may_open_parked_or_skipped(jobs: Jobs) -> None:
    """As the dispatcher finds it now, whatever it was before."""
    run_id, ids = ended(jobs, plain)
    one, other, *_ = plain(run_id)
    parked = replace(one, status=JobStatus.AWAITING_INPUT, expires_s=60)
    jobs.repository.open_many([parked, replace(other, status=JobStatus.SKIPPED)])
    assert jobs.seen(ids[0], "status", "finished_at", "result") == ("awaiting_input", None, None)
    assert jobs.row(ids[0])["expires_at"] is not None
    assert jobs.seen(ids[1], "status", "generation") == ("skipped", 2)
    assert jobs.row(ids[1])["finished_at"] is not None
