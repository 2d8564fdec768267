"""What a task says of all its jobs, written into the rows of those that were enqueued without it.

A producer that does not know the task cannot say its key or its lock. What is declared in the database fills
them in as the row is inserted (`qwf_declared_options`); the rest is done here, by the worker that claims the
job and knows its task, before it takes slots and locks, so that no job runs outside of its limit.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Final, NamedTuple

from queue_workflows.repositories.sql.arrays import id_array
from queue_workflows.repositories.sql.claimed_job import Fence
from queue_workflows.repositories.sql.connection import Handle, Statements
from queue_workflows.repositories.sql.families import INGEST, per_family

# given: the fences, each with the key and the lock that its job has from now on.
FILL: Final = per_family("""
WITH given AS MATERIALIZED (
    SELECT given.*, 'running' AS held FROM jsonb_to_recordset(%(options)s::jsonb) AS given (
        id bigint, attempt integer, claimed_by text, limit_key text, host_lock text
    )
)
UPDATE {table} AS job SET limit_key = given.limit_key, host_lock = given.host_lock
FROM given
WHERE {fence}
RETURNING job.id
""")[INGEST.name]


class Options(NamedTuple):
    """The key and the lock of a claimed job."""

    fence: Fence
    limit_key: str | None
    host_lock: str | None


def fill_options(conn: Handle, options: Sequence[Options]) -> set[int]:
    """Write them into the rows; the ids of the jobs that are still held."""
    words = [
        {**fence._asdict(), "id": fence.job_id, "limit_key": key, "host_lock": lock}
        for fence, key, lock in options
    ]
    params = {"ids": id_array(fence.job_id for fence, _, _ in options), "options": json.dumps(words)}
    return {job_id for (job_id,) in Statements(conn, INGEST.table).rows(FILL, params)}
