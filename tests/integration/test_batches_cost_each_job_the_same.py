"""Ending many jobs at once and claiming as many: what a job costs does not grow with the batch."""

from __future__ import annotations

import psycopg
import pytest
from psycopg.rows import tuple_row
from support.jobs import Jobs, jobs_of
from support.plans import explain

from queue_workflows.db.pins import PLANNER
from queue_workflows.repositories import Ending, Fence
from queue_workflows.repositories import ending as ends
from queue_workflows.repositories.claiming import UNMARKED, claim_params
from queue_workflows.repositories.ending import end_params
from queue_workflows.states import JobStatus

BATCH = 300
PINNED = tuple(name.removeprefix("enable_") for name in PLANNER if name.startswith("enable_"))


def params_of_a_batch(jobs: Jobs) -> dict[str, object]:
    claimed = jobs.repository.claim(jobs.queue, worker_id="h:q:1", lease_s=60, limit=BATCH)
    endings = [Ending(Fence(job.id, job.attempt, "h:q:1"), JobStatus.COMPLETED) for job in claimed]
    assert len(endings) == BATCH
    return end_params(jobs.repository._family, endings) | claim_params(
        jobs.queue, worker_id="h:q:1", lease_s=60.0, limit=BATCH, alone=False, positions=UNMARKED
    )


@pytest.mark.parametrize("family", ["ingest", "node"])
def test_each_row_is_met_once(qwf_dsn: str, family: str) -> None:
    """As a worker's plan is made, once and for any size: no row of the batch is compared with all others."""
    with jobs_of(family, qwf_dsn) as jobs:
        jobs.enqueue(2 * BATCH)
        params = params_of_a_batch(jobs)
        plan = explain(jobs.connection, "force_generic_plan", ends.END_AND_CLAIM[family], params, off=PINNED)
    removed = sum(node.get("Rows Removed by Join Filter", 0) * node["Actual Loops"] for node in plan)
    assert removed <= BATCH
    rows = sum(node["Actual Rows"] * node["Actual Loops"] for node in plan)
    assert rows <= 40 * BATCH


def test_what_was_accepted_is_told_once(qwf_dsn: str) -> None:
    """Not with every job that is claimed: the answer would grow by the square of the batch."""
    with jobs_of("ingest", qwf_dsn) as jobs:
        jobs.enqueue(2 * BATCH)
        cursor = psycopg.Cursor(jobs.connection, row_factory=tuple_row)
        rows = cursor.execute(ends.END_AND_CLAIM["ingest"].encode(), params_of_a_batch(jobs)).fetchall()
    assert len(rows) == BATCH
    assert len(rows[0][0]) == len(rows[0][1]) == BATCH
    assert {(row[0], row[1]) for row in rows[1:]} == {(None, None)}
