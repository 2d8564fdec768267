"""What retention deletes, in parts that hold no lock for long. Several may prune at once."""

from __future__ import annotations

import uuid
from collections.abc import Collection
from datetime import datetime
from typing import Any, Final

from queue_workflows.repositories.sql.connection import Handle, Statements

# Literals, so that a generic plan knows how few rows these are.
RUNS_AT_ONCE: Final = 100
JOBS_AT_ONCE: Final = 2_000

# Deleting a run deletes those below it, whatever they are at: so these go first, each when it is old itself.
# One look into the index of children, where EXISTS may read the whole table.
_IS_LOWEST: Final = """(
    SELECT child.id FROM workflow_runs AS child WHERE child.parent_run_id = run.id LIMIT 1
) IS NULL"""
# A key outlives its run, so that it is not started again too soon.
OLD_RUNS: Final = f"""
SELECT id FROM workflow_runs AS run
WHERE finished_at < statement_timestamp() - make_interval(secs => %(kept_s)s::float8)
    AND (dedupe_key IS NULL OR finished_at
        < statement_timestamp() - make_interval(secs => %(kept_s)s::float8 + %(ttl_s)s::float8))
    AND id <> ALL (%(but)s::uuid[]) AND {_IS_LOWEST}
ORDER BY finished_at
LIMIT {RUNS_AT_ONCE}
"""  # noqa: S608 - fragments of our own
# Of rows that are looked up by their ids, where the planner might else read all that is over.
_IS_OLD: Final = """COALESCE(
    finished_at < statement_timestamp() - make_interval(secs => %(kept_s)s::float8), false
)"""
# old: those of these runs that still are to go, held so that nobody retries one while its jobs are deleted.
# found: some of their jobs, so that a run of a hundred thousand is not deleted by one statement.
DELETE_JOBS: Final = f"""
WITH old AS MATERIALIZED (
    SELECT id FROM workflow_runs
    WHERE id = ANY (%(run_ids)s::uuid[]) AND {_IS_OLD}
    FOR NO KEY UPDATE SKIP LOCKED
), found AS MATERIALIZED (
    SELECT id FROM workflow_node_jobs
    WHERE run_id = ANY (ARRAY(SELECT id FROM old))
    LIMIT {JOBS_AT_ONCE}
    FOR UPDATE SKIP LOCKED
)
DELETE FROM workflow_node_jobs WHERE id = ANY (ARRAY(SELECT id FROM found)) RETURNING id
"""  # noqa: S608 - a number of our own
# Only while it is over for so long: an operator may have retried it since it was found.
DELETE_RUN: Final = f"""
DELETE FROM workflow_runs AS run
WHERE id = %(run_id)s::uuid AND {_IS_OLD} AND {_IS_LOWEST}
RETURNING id
"""  # noqa: S608 - fragments of our own
# old: what nobody needs any more. With a key the row stays for a while, without what it was about.
DELETE_INGEST: Final = f"""
WITH old AS MATERIALIZED (
    SELECT id FROM ingest_jobs
    WHERE finished_at < statement_timestamp() - make_interval(secs => %(kept_s)s::float8)
        AND (dedupe_key IS NULL OR finished_at
            < statement_timestamp() - make_interval(secs => %(kept_s)s::float8 + %(ttl_s)s::float8))
    ORDER BY finished_at
    LIMIT {JOBS_AT_ONCE}
    FOR UPDATE SKIP LOCKED
)
DELETE FROM ingest_jobs WHERE id = ANY (ARRAY(SELECT id FROM old)) RETURNING id
"""  # noqa: S608 - a number of our own
STRIP_INGEST: Final = f"""
WITH old AS MATERIALIZED (
    SELECT id FROM ingest_jobs
    WHERE finished_at < statement_timestamp() - make_interval(secs => %(kept_s)s::float8)
        AND dedupe_key IS NOT NULL
        AND (args <> '{{}}' OR result IS NOT NULL OR errors <> '[]' OR progress IS NOT NULL)
    ORDER BY finished_at
    LIMIT {JOBS_AT_ONCE}
    FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE ingest_jobs SET args = '{{}}', result = NULL, errors = '[]', progress = NULL
WHERE id = ANY (ARRAY(SELECT id FROM old)) RETURNING id
"""  # noqa: S608 - a number of our own
# Which of these are still there, and whether what they were about is to go.
STANDING_RUNS: Final = """
SELECT id, finished_at IS NOT NULL
    AND finished_at < statement_timestamp() - make_interval(secs => %(kept_s)s::float8)
    AND (dedupe_key IS NULL OR finished_at
        < statement_timestamp() - make_interval(secs => %(kept_s)s::float8 + %(ttl_s)s::float8))
FROM workflow_runs WHERE id = ANY (%(run_ids)s::uuid[])
"""
STANDING_INGEST: Final = """
SELECT id, created_at, finished_at IS NOT NULL
    AND finished_at < statement_timestamp() - make_interval(secs => %(kept_s)s::float8)
FROM ingest_jobs WHERE id = ANY (%(job_ids)s::bigint[])
"""


class PruningRepository:
    """On the caller's connection, each statement a transaction of its own."""

    def __init__(self, conn: Handle, *, kept_s: float, ttl_s: float) -> None:
        self._sql = Statements(conn, "workflow_runs")
        self._times: dict[str, Any] = {"kept_s": kept_s, "ttl_s": ttl_s}

    def old_runs(self, but: Collection[uuid.UUID]) -> list[uuid.UUID]:
        """Runs that are to go and have none below them, the oldest first, without some."""
        return [row[0] for row in self._sql.rows(OLD_RUNS, {**self._times, "but": list(but)})]

    def delete_jobs(self, run_ids: Collection[uuid.UUID]) -> int:
        """Delete some of the jobs of these runs that are still to go; how many, none when all are gone."""
        return len(self._sql.rows(DELETE_JOBS, {**self._times, "run_ids": list(run_ids)}))

    def delete_run(self, run_id: uuid.UUID) -> bool:
        """Delete a run that is over and has none below it, with all that belongs to it."""
        return bool(self._sql.rows(DELETE_RUN, {**self._times, "run_id": run_id}))

    def delete_ingest(self) -> int:
        """Delete old ingest jobs, at most `JOBS_AT_ONCE`; how many."""
        return len(self._sql.rows(DELETE_INGEST, self._times))

    def strip_ingest(self) -> int:
        """Empty old ingest jobs that stay for their key, at most `JOBS_AT_ONCE`; how many."""
        return len(self._sql.rows(STRIP_INGEST, self._times))

    def standing_runs(self, run_ids: Collection[uuid.UUID]) -> dict[uuid.UUID, bool]:
        """Which of these runs are there, and whether each is to go."""
        rows = self._sql.rows(STANDING_RUNS, {**self._times, "run_ids": list(run_ids)})
        return {row[0]: row[1] for row in rows}

    def standing_ingest(self, job_ids: Collection[int]) -> dict[tuple[int, datetime], bool]:
        """Which of these ingest jobs are there, by when they were made, and whether each is to go."""
        rows = self._sql.rows(STANDING_INGEST, {**self._times, "job_ids": list(job_ids)})
        return {(job_id, created_at): is_old for job_id, created_at, is_old in rows}
