"""What retention deletes, in parts that hold no lock for long. Several may prune at once.

A part begins where the one before it ended, and so reads what it prunes and little else. For each family
`retention_marks` says how far that is; what a part has left behind, because somebody held it, goes at
the latest when its dedupe key would: the looks for that begin at the oldest row.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection
from datetime import datetime
from typing import Any, Final, NamedTuple

from queue_workflows.repositories.sql.arrays import id_array
from queue_workflows.repositories.sql.connection import Handle, Statements
from queue_workflows.repositories.sql.families import Family
from queue_workflows.settings import DAY_S, Settings

# Literals, so that a generic plan knows how few rows these are.
RUNS_AT_ONCE: Final = 100
JOBS_AT_ONCE: Final = 2_000

# mark: how far a family has been pruned. old, keyless: the moments before which whatever ended is to go, and
# what has no key; an hour old at least, as what has ended may be committed later.
MOMENTS: Final = """
SELECT (SELECT seen_before FROM retention_marks WHERE family = %(family)s::text),
    statement_timestamp() - make_interval(secs => GREATEST(%(kept_s)s::float8, 3600)),
    statement_timestamp() - make_interval(secs => GREATEST(%(kept_s)s::float8 + %(ttl_s)s::float8, 3600))
"""
# Never back: another process may have come further.
MOVE_MARK: Final = """
INSERT INTO retention_marks AS mark (family, seen_before)
VALUES (%(family)s::text, LEAST(%(before)s::timestamptz, statement_timestamp() - interval '1 hour'))
ON CONFLICT (family) DO UPDATE SET seen_before = excluded.seen_before
WHERE mark.seen_before < excluded.seen_before
RETURNING family
"""
# Deleting a run deletes those below it, whatever they are at: so these go first, each when it is old itself.
# One look into the index of children, where EXISTS may read the whole table.
IS_LOWEST: Final = """(
    SELECT child.id FROM workflow_runs AS child WHERE child.parent_run_id = run.id LIMIT 1
) IS NULL"""
# In the order of the index, from a moment on.
_SINCE: Final = "finished_at >= COALESCE(%(since)s::timestamptz, '-infinity')"
# A key outlives its run, so that it is not started again too soon.
OLD_RUNS: Final = f"""
SELECT id, finished_at, parent_run_id FROM workflow_runs AS run
WHERE {_SINCE}
    AND finished_at < statement_timestamp() - make_interval(secs => %(kept_s)s::float8 + %(ttl_s)s::float8)
    AND id <> ALL (%(but)s::uuid[]) AND {IS_LOWEST}
ORDER BY finished_at
LIMIT {RUNS_AT_ONCE}
"""  # noqa: S608 - fragments of our own
OLD_RUNS_WITHOUT_KEY: Final = f"""
SELECT id, finished_at, parent_run_id FROM workflow_runs AS run
WHERE {_SINCE} AND finished_at < statement_timestamp() - make_interval(secs => %(kept_s)s::float8)
    AND dedupe_key IS NULL AND id <> ALL (%(but)s::uuid[]) AND {IS_LOWEST}
ORDER BY finished_at
LIMIT {RUNS_AT_ONCE}
"""  # noqa: S608 - fragments of our own
# Runs that waited for those below them: as many as are asked for, since nobody asks again for one left out.
OLD_PARENTS: Final = f"""
SELECT id, finished_at, parent_run_id FROM workflow_runs AS run
WHERE id = ANY (%(run_ids)s::uuid[]) AND id <> ALL (%(but)s::uuid[]) AND {IS_LOWEST} AND COALESCE(
    finished_at < statement_timestamp() - make_interval(secs => %(kept_s)s::float8
        + CASE WHEN dedupe_key IS NULL THEN 0 ELSE %(ttl_s)s::float8 END), false)
"""  # noqa: S608 - a fragment of our own
# Of rows that are looked up by their ids, where the planner might else read all that is over.
_IS_OLD: Final = """COALESCE(
    finished_at < statement_timestamp() - make_interval(secs => %(kept_s)s::float8), false
)"""
# old: those of these runs that still are to go, held so that nobody retries one while its jobs are deleted.
# found: some of their jobs, so that a run of a hundred thousand is not deleted by one statement. steps: what
# durable functions among them did.
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
), steps AS (
    DELETE FROM durable_steps WHERE job_family = 'node' AND job_id = ANY (ARRAY(SELECT id FROM found))
)
DELETE FROM workflow_node_jobs WHERE id = ANY (ARRAY(SELECT id FROM found)) RETURNING id
"""  # noqa: S608 - a number of our own
# Only while it is over for so long: an operator may have retried it since it was found.
DELETE_RUN: Final = f"""
DELETE FROM workflow_runs AS run
WHERE id = %(run_id)s::uuid AND {_IS_OLD} AND {IS_LOWEST}
RETURNING id
"""  # noqa: S608 - fragments of our own
# gone, found: jobs of this statement. steps: what is stored of durable functions goes with their jobs.
_STEPS_OF: Final = """steps AS (
    DELETE FROM durable_steps WHERE job_family = 'ingest' AND job_id = ANY (ARRAY(SELECT id FROM gone))
)"""
# A durable function that is not over may yet ask what became of a job that it spawned.
_IS_NOT_AWAITED: Final = """NOT EXISTS (
        SELECT FROM durable_steps AS step
        JOIN ingest_jobs AS parent ON parent.id = step.job_id AND step.job_family = 'ingest'
        WHERE step.child_id = ingest_jobs.id AND parent.finished_at IS NULL
    ) AND NOT EXISTS (
        SELECT FROM durable_steps AS step
        JOIN workflow_node_jobs AS parent ON parent.id = step.job_id AND step.job_family = 'node'
        WHERE step.child_id = ingest_jobs.id AND parent.finished_at IS NULL
    )"""
# old: the first of what nobody needs any more, whether it has a key or not.
DELETE_INGEST: Final = f"""
WITH old AS MATERIALIZED (
    SELECT id FROM ingest_jobs
    WHERE {_SINCE}
        AND finished_at < statement_timestamp()
            - make_interval(secs => %(kept_s)s::float8 + %(ttl_s)s::float8)
        AND {_IS_NOT_AWAITED}
    ORDER BY finished_at
    LIMIT {JOBS_AT_ONCE}
    FOR UPDATE SKIP LOCKED
), gone AS (
    DELETE FROM ingest_jobs WHERE id = ANY (ARRAY(SELECT id FROM old)) RETURNING id, finished_at
), {_STEPS_OF}
SELECT id, finished_at FROM gone
"""  # noqa: S608 - fragments of our own
# What that statement would delete, and some of it, where something refers to one of the others.
OLDEST_INGEST: Final = f"""
SELECT id, finished_at, dedupe_key IS NOT NULL FROM ingest_jobs
WHERE {_SINCE}
    AND finished_at < statement_timestamp() - make_interval(secs => %(kept_s)s::float8 + %(ttl_s)s::float8)
ORDER BY finished_at
LIMIT {JOBS_AT_ONCE}
"""  # noqa: S608 - fragments of our own
DELETE_OLDEST_INGEST: Final = f"""
WITH old AS MATERIALIZED (
    SELECT id FROM ingest_jobs
    WHERE id = ANY (%(job_ids)s::bigint[]) AND COALESCE(finished_at < statement_timestamp()
        - make_interval(secs => %(kept_s)s::float8 + %(ttl_s)s::float8), false)
    FOR UPDATE SKIP LOCKED
), gone AS (
    DELETE FROM ingest_jobs WHERE id = ANY (ARRAY(SELECT id FROM old)) RETURNING id
), {_STEPS_OF}
SELECT id FROM gone
"""  # noqa: S608 - fragments of our own
# By the sizes as they are stored, so that nothing large is read: an empty object or array has no more.
IS_FULL: Final = """(
    pg_column_size(args) > 8 OR result IS NOT NULL OR pg_column_size(errors) > 8 OR progress IS NOT NULL
)"""
# What has no key, and what has one and is still whole; what a parent kept goes when its key would.
OLD_INGEST: Final = f"""
SELECT id, finished_at, dedupe_key IS NOT NULL FROM ingest_jobs
WHERE {_SINCE} AND finished_at < statement_timestamp() - make_interval(secs => %(kept_s)s::float8)
    AND (dedupe_key IS NULL OR {IS_FULL}) AND {_IS_NOT_AWAITED}
ORDER BY finished_at
LIMIT {JOBS_AT_ONCE}
"""  # noqa: S608 - fragments of our own
DELETE_OLD_INGEST: Final = f"""
WITH old AS MATERIALIZED (
    SELECT id FROM ingest_jobs
    WHERE id = ANY (%(job_ids)s::bigint[]) AND dedupe_key IS NULL AND {_IS_OLD}
    FOR UPDATE SKIP LOCKED
), gone AS (
    DELETE FROM ingest_jobs WHERE id = ANY (ARRAY(SELECT id FROM old)) RETURNING id
), {_STEPS_OF}
SELECT id FROM gone
"""  # noqa: S608 - fragments of our own
# With a key the row stays for a while, without what it was about. Nothing of that is in an index.
STRIP_INGEST: Final = f"""
WITH old AS MATERIALIZED (
    SELECT id FROM ingest_jobs
    WHERE id = ANY (%(job_ids)s::bigint[]) AND dedupe_key IS NOT NULL AND {_IS_OLD}
    FOR NO KEY UPDATE SKIP LOCKED
), gone AS (
    UPDATE ingest_jobs SET args = '{{}}', result = NULL, errors = '[]', progress = NULL
    WHERE id = ANY (ARRAY(SELECT id FROM old)) RETURNING id
), {_STEPS_OF}
SELECT id FROM gone
"""  # noqa: S608 - fragments of our own
# Events that no durable function has taken for so long.
DELETE_EVENTS: Final = f"""
WITH old AS MATERIALIZED (
    SELECT id FROM durable_events
    WHERE emitted_at < statement_timestamp() - make_interval(secs => GREATEST(%(kept_s)s::float8, 3600))
    ORDER BY emitted_at
    LIMIT {JOBS_AT_ONCE}
    FOR UPDATE SKIP LOCKED
)
DELETE FROM durable_events WHERE id = ANY (ARRAY(SELECT id FROM old)) RETURNING id
"""  # noqa: S608 - a number of our own
# walked: some steps of a family, by their jobs. orphans: of these the jobs that are nowhere, as code that
# knew no steps has deleted them; each looked up by its id, where EXISTS may read the whole table.
DELETE_ORPHAN_STEPS: Final = f"""
WITH walked AS MATERIALIZED (
    SELECT job_id FROM durable_steps
    WHERE job_family = %(family)s::text AND job_id > %(after)s::bigint
    ORDER BY job_id
    LIMIT {JOBS_AT_ONCE}
), orphans AS MATERIALIZED (
    SELECT job_id FROM (SELECT DISTINCT job_id FROM walked) AS step
    WHERE CASE %(family)s::text
        WHEN 'node' THEN (SELECT job.id FROM workflow_node_jobs AS job WHERE job.id = step.job_id LIMIT 1)
        ELSE (SELECT job.id FROM ingest_jobs_and_history AS job WHERE job.id = step.job_id LIMIT 1)
    END IS NULL
), gone AS (
    DELETE FROM durable_steps
    WHERE job_family = %(family)s::text AND job_id = ANY (ARRAY(SELECT job_id FROM orphans))
)
SELECT max(job_id), count(*) FROM walked
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
FROM ingest_jobs_and_history WHERE id = ANY (%(job_ids)s::bigint[])
"""


class RetentionTimes(NamedTuple):
    """How long what is over is kept, and how much longer if it has a dedupe key, in seconds."""

    kept_s: float = 30 * DAY_S
    ttl_s: float = 7 * DAY_S

    @classmethod
    def of(cls, settings: Settings) -> RetentionTimes:
        """As the user set them."""
        return cls(settings.retention_days * DAY_S, settings.dedupe_ttl_days * DAY_S)


class Moments(NamedTuple):
    """How far a family has been pruned, if ever, and before when what ended has no key, and is no more."""

    mark: datetime | None
    old: datetime
    oldest: datetime


class OldRun(NamedTuple):
    """A run that is to go and has none below it."""

    id: uuid.UUID
    finished_at: datetime
    parent_run_id: uuid.UUID | None


class OldJob(NamedTuple):
    """An ingest job that is to go, or with a key to lose what it was about."""

    id: int
    finished_at: datetime
    has_key: bool


class PruningRepository:
    """On the caller's connection, each statement a transaction of its own.

    What takes `since` looks at what ended no earlier, the oldest first.
    """

    def __init__(self, conn: Handle, *, kept_s: float, ttl_s: float) -> None:
        self._sql = Statements(conn, "workflow_runs")
        self._times: dict[str, Any] = {"kept_s": kept_s, "ttl_s": ttl_s}

    def moments(self, family: Family) -> Moments:
        """Where a part begins, and how far it may go."""
        return Moments(*self._sql.rows(MOMENTS, {**self._times, "family": family.name})[0])

    def move_mark(self, family: Family, before: datetime) -> None:
        """Note that what ended before this moment has been pruned, but for an hour that may yet be."""
        self._sql.rows(MOVE_MARK, {"family": family.name, "before": before})

    def old_runs(self, but: Collection[uuid.UUID], since: datetime | None = None) -> list[OldRun]:
        """Runs that are to go even if they have a key, without some."""
        return self._runs(OLD_RUNS, since=since, but=list(but))

    def old_runs_without_key(self, but: Collection[uuid.UUID], since: datetime | None = None) -> list[OldRun]:
        """Runs that are to go as they have no key, without some."""
        return self._runs(OLD_RUNS_WITHOUT_KEY, since=since, but=list(but))

    def old_parents(self, run_ids: Collection[uuid.UUID], but: Collection[uuid.UUID]) -> list[OldRun]:
        """Runs among these that are to go now that others are gone, without some."""
        return self._runs(OLD_PARENTS, run_ids=list(run_ids), but=list(but)) if run_ids else []

    def delete_jobs(self, run_ids: Collection[uuid.UUID]) -> int:
        """Delete some of the jobs of these runs that are still to go; how many, none when all are gone."""
        return len(self._sql.rows(DELETE_JOBS, {**self._times, "run_ids": list(run_ids)}))

    def delete_run(self, run_id: uuid.UUID) -> bool:
        """Delete a run that is over and has none below it, with all that belongs to it."""
        return bool(self._sql.rows(DELETE_RUN, {**self._times, "run_id": run_id}))

    def delete_ingest(self, since: datetime | None = None) -> list[datetime]:
        """Delete old ingest jobs with their keys, at most `JOBS_AT_ONCE`; when each of them ended."""
        return [row[1] for row in self._sql.rows(DELETE_INGEST, {**self._times, "since": since})]

    def oldest_ingest(self, since: datetime | None = None) -> list[OldJob]:
        """What `delete_ingest` would delete."""
        return [OldJob(*row) for row in self._sql.rows(OLDEST_INGEST, {**self._times, "since": since})]

    def delete_oldest_ingest(self, job_ids: Collection[int]) -> set[int]:
        """Delete those of these jobs that are to go whether they have a key or not; which."""
        return self._of_jobs(DELETE_OLDEST_INGEST, job_ids)

    def old_ingest(self, since: datetime | None = None) -> list[OldJob]:
        """Ingest jobs that have no key or are to lose what they were about, at most `JOBS_AT_ONCE`."""
        return [OldJob(*row) for row in self._sql.rows(OLD_INGEST, {**self._times, "since": since})]

    def delete_old_ingest(self, job_ids: Collection[int]) -> set[int]:
        """Delete those of these jobs that have no key; which."""
        return self._of_jobs(DELETE_OLD_INGEST, job_ids)

    def strip_ingest(self, job_ids: Collection[int]) -> set[int]:
        """Empty those of these jobs that stay for their key; which."""
        return self._of_jobs(STRIP_INGEST, job_ids)

    def delete_events(self) -> int:
        """Delete events that nobody has taken, at most `JOBS_AT_ONCE`; how many."""
        return len(self._sql.rows(DELETE_EVENTS, self._times))

    def delete_orphan_steps(self, family: Family, after: int) -> int | None:
        """Delete steps without a job among the next ones; behind which to go on, None at their end."""
        last, count = self._sql.rows(DELETE_ORPHAN_STEPS, {"family": family.name, "after": after})[0]
        return int(last) if count >= JOBS_AT_ONCE else None

    def _runs(self, sql: str, **params: Any) -> list[OldRun]:
        return [OldRun(*row) for row in self._sql.rows(sql, {**self._times, **params})]

    def _of_jobs(self, sql: str, job_ids: Collection[int]) -> set[int]:
        if not job_ids:
            return set()
        return {row[0] for row in self._sql.rows(sql, {**self._times, "job_ids": id_array(job_ids)})}

    def standing_runs(self, run_ids: Collection[uuid.UUID]) -> dict[uuid.UUID, bool]:
        """Which of these runs are there, and whether each is to go."""
        rows = self._sql.rows(STANDING_RUNS, {**self._times, "run_ids": list(run_ids)})
        return {row[0]: row[1] for row in rows}

    def standing_ingest(self, job_ids: Collection[int]) -> dict[tuple[int, datetime], bool]:
        """Which of these ingest jobs are there, by when they were made, and whether each is to go."""
        rows = self._sql.rows(STANDING_INGEST, {**self._times, "job_ids": list(job_ids)})
        return {(job_id, created_at): is_old for job_id, created_at, is_old in rows}
