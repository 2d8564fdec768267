"""When the jobs of a run waited and were at work, without their payloads: what a timeline is drawn from."""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any, Final

from queue_workflows.repositories.sql import checks as check
from queue_workflows.repositories.sql.connection import Handle, Statements
from queue_workflows.repositories.sql.table import LONGEST_PAGE

# of_run: no more jobs than that, by the index of their nodes. Of their errors the attempt, the worker and the
# moment alone.
TIMES: Final = """
WITH of_run AS MATERIALIZED (
    SELECT id, node_id, map_index, kind, queue, status, attempt, claimed_by, hold_reason, hold_key,
        past_holds, errors, run_at, created_at, started_at, finished_at
    FROM workflow_node_jobs
    WHERE run_id = %(run_id)s::uuid
    ORDER BY node_id, map_index
    LIMIT %(limit)s::bigint
)
SELECT id, node_id, map_index, kind, queue, status, attempt, claimed_by, hold_reason, hold_key,
    COALESCE(past_holds::text, '[]'), (
        SELECT COALESCE(json_agg(json_build_object(
            'at', entry -> 'at', 'attempt', entry -> 'attempt', 'kind', entry -> 'kind',
            'worker_id', entry -> 'worker_id'
        )), '[]')::text FROM jsonb_array_elements(errors) AS entry
    ), run_at, created_at, started_at, finished_at
FROM of_run
ORDER BY created_at, id
"""


@dataclass(frozen=True, slots=True)
class JobTimes:
    """A job with all the moments that its row has; `errors` have no messages."""

    id: int
    node_id: str
    map_index: int
    kind: str
    queue: str
    status: str
    attempt: int
    claimed_by: str | None
    hold_reason: str | None
    hold_key: str | None
    past_holds: list[dict[str, Any]]
    errors: list[dict[str, Any]]
    run_at: datetime
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None


class JobTimesRepository:
    """Reads the times of a run's jobs on the caller's connection; changes nothing."""

    def __init__(self, conn: Handle) -> None:
        self._sql = Statements(conn, "workflow_node_jobs")

    def of_run(self, run_id: uuid.UUID, *, limit: int) -> list[JobTimes]:
        """At most so many jobs of a run, the oldest first; of a run with more, those of some nodes."""
        params = {"run_id": run_id, "limit": check.whole("limit", limit, 1, LONGEST_PAGE)}
        names = [one.name for one in fields(JobTimes)]
        times = []
        for row in self._sql.rows(TIMES, params):
            values = dict(zip(names, row, strict=True))
            holds, errors = json.loads(values["past_holds"]), json.loads(values["errors"])
            times.append(JobTimes(**values | {"past_holds": holds, "errors": errors}))
        return times
