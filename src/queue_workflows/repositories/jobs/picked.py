"""Jobs that an operator has picked: how each stands, in one statement of each family."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Final, NamedTuple

from queue_workflows.repositories.sql.arrays import id_array
from queue_workflows.repositories.sql.connection import Handle, Statements
from queue_workflows.repositories.sql.families import NODE, Family

# By primary keys: of the history each month has one of ids.
PICKED_INGEST: Final = """
SELECT id, status, COALESCE(begun_generation = generation, false), NULL::uuid, NULL::text, false, NULL::text
FROM ingest_jobs_and_history WHERE id = ANY (%(ids)s::bigint[])
"""
# With the run of each: where that is over, the job would stay as it is.
PICKED_NODES: Final = """
SELECT job.id, job.status, COALESCE(job.begun_generation = job.generation, false), job.run_id, run.status,
    run.cancel_requested_at IS NOT NULL, run.mode
FROM workflow_node_jobs AS job LEFT JOIN workflow_runs AS run ON run.id = job.run_id
WHERE job.id = ANY (%(ids)s::bigint[])
"""


class PickedJob(NamedTuple):
    """How a job stands, whether it has begun in this generation, and the run of a node job."""

    id: int
    status: str
    has_begun: bool
    run_id: uuid.UUID | None
    run_status: str | None
    is_run_cancelled: bool
    run_mode: str | None


class PickedJobRepository:
    """Reads picked jobs on the caller's connection; changes nothing."""

    def __init__(self, conn: Handle) -> None:
        self._conn = conn

    def jobs(self, family: Family, ids: Sequence[int]) -> dict[int, PickedJob]:
        """What is there of these, by their ids."""
        sql = PICKED_NODES if family is NODE else PICKED_INGEST
        rows = Statements(self._conn, family.table).rows(sql, {"ids": id_array(ids)})
        return {row[0]: PickedJob(*row) for row in rows}
