"""Ending many jobs at once and claiming as many: what a job costs does not grow with the batch."""

from __future__ import annotations

import psycopg
import pytest
from psycopg.rows import tuple_row
from support.rows.jobs import Jobs, jobs_of
from support.rows.plans import explain

from queue_workflows.db.connections.pins import PLANNER
from queue_workflows.repositories import Ending, Fence
from queue_workflows.repositories.claims import end as ends
from queue_workflows.repositories.claims.claim import claim_params
from queue_workflows.repositories.claims.end import alike_params, end_params
from queue_workflows.repositories.sql.low_water_marks import UNMARKED
from queue_workflows.states import JobStatus

BATCH = 300
PINNED = tuple(name.removeprefix("enable_") for name in PLANNER if name.startswith("enable_"))


# Whether the endings differ in their jobs alone, and what is sent for them.
ENDS = {
    "any": (ends.END_AND_CLAIM, end_params),
    "alike": (ends.END_ALIKE_AND_CLAIM, alike_params),
}
of_both_kinds = pytest.mark.parametrize("kind", ENDS)


def params_of_a_batch(jobs: Jobs, kind: str) -> dict[str, object]:
    claimed = jobs.repository.claim(jobs.queue, worker_id="h:q:1", lease_s=60, limit=BATCH)
    endings = [Ending(Fence(job.id, job.attempt, "h:q:1"), JobStatus.COMPLETED) for job in claimed]
    assert len(endings) == BATCH
    return ENDS[kind][1](jobs.repository._family, endings) | claim_params(
        jobs.queue, worker_id="h:q:1", lease_s=60.0, limit=BATCH, alone=False, positions=UNMARKED
    )


@of_both_kinds
@pytest.mark.parametrize("family", ["ingest", "node"])
def test_each_row_is_met_once(qwf_dsn: str, family: str, kind: str) -> None:
    """As a worker's plan is made, once and for any size: no row of the batch is compared with all others."""
    with jobs_of(family, qwf_dsn) as jobs:
        jobs.enqueue(2 * BATCH)
        params = params_of_a_batch(jobs, kind)
        plan = explain(jobs.connection, "force_generic_plan", ENDS[kind][0][family], params, off=PINNED)
    removed = sum(node.get("Rows Removed by Join Filter", 0) * node["Actual Loops"] for node in plan)
    assert removed <= BATCH
    rows = sum(node["Actual Rows"] * node["Actual Loops"] for node in plan)
    assert rows <= 40 * BATCH


@of_both_kinds
def test_what_was_accepted_is_told_once_and_first(qwf_dsn: str, kind: str) -> None:
    """Not with every job that is claimed: the answer would grow by the square of the batch."""
    with jobs_of("ingest", qwf_dsn) as jobs:
        jobs.enqueue(2 * BATCH)
        cursor = psycopg.Cursor(jobs.connection, row_factory=tuple_row)
        statement, params = ENDS[kind][0]["ingest"], params_of_a_batch(jobs, kind)
        rows = cursor.execute(statement.encode(), params).fetchall()
    assert len(rows) == 1 + BATCH
    assert len(rows[0][0]) == len(rows[0][1]) == BATCH
    assert set(rows[0][2:]) == {None}
    assert {(row[0], row[1]) for row in rows[1:]} == {(None, None)}
