"""When the jobs of a run waited and were at work, without their payloads: what a timeline is drawn from."""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from queue_workflows.repositories.sql import checks as check
from queue_workflows.repositories.sql.connection import Handle, Statements
from queue_workflows.repositories.sql.table import LONGEST_PAGE

# counted: how many there are, to the bound. of_run: the jobs, by the index of their nodes, none where there
# are too many. Of their errors the attempt, the worker and the moment alone. The count comes with each row,
# and alone where there is none.
TIMES: Final = """
WITH counted AS MATERIALIZED (
    SELECT count(*) AS jobs FROM (
        SELECT FROM workflow_node_jobs WHERE run_id = %(run_id)s::uuid
        ORDER BY node_id, map_index
        LIMIT %(limit)s::bigint
    ) AS few
), of_run AS MATERIALIZED (
    SELECT id, node_id, map_index, kind, queue, status, attempt, claimed_by, hold_reason, hold_key,
        past_holds, errors, run_at, created_at, started_at, finished_at
    FROM workflow_node_jobs
    WHERE run_id = %(run_id)s::uuid AND (SELECT jobs FROM counted) < %(limit)s::bigint
    ORDER BY node_id, map_index
    LIMIT %(limit)s::bigint
)
SELECT counted.jobs, id, node_id, map_index, kind, queue, status, attempt, claimed_by, hold_reason, hold_key,
    COALESCE(past_holds::text, '[]'), (
        SELECT COALESCE(json_agg(json_build_object(
            'at', entry -> 'at', 'attempt', entry -> 'attempt', 'kind', entry -> 'kind',
            'worker_id', entry -> 'worker_id'
        )), '[]')::text FROM jsonb_array_elements(errors) AS entry
    ), run_at, created_at, started_at, finished_at
FROM counted LEFT JOIN of_run ON true
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

    def of_run(self, run_id: uuid.UUID, *, most: int) -> list[JobTimes] | None:
        """The jobs of a run, the oldest first; None if there are more than that, and none of them is read."""
        params = {"run_id": run_id, "limit": check.whole("most", most, 1, LONGEST_PAGE) + 1}
        times = []
        for jobs, *row in self._sql.rows(TIMES, params):
            if jobs > most:
                return None
            if row[0] is None:
                break
            times.append(JobTimes(*row[:10], *map(_listed, row[10:12]), *row[12:]))
        return times


def _listed(text: str) -> list[dict[str, Any]]:
    """Of most jobs there is nothing to read."""
    entries: list[dict[str, Any]] = [] if text == "[]" else json.loads(text)
    return entries
