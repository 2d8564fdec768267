"""What operators and host apps decide about jobs by id: cancel, retry, and the marks of their ends.

All of it is idempotent: what is terminal stays as it is, and only an operator's retry leaves a terminal
status.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from queue_workflows.repositories.limits import lanes
from queue_workflows.repositories.sql import checks as check
from queue_workflows.repositories.sql.arrays import id_array
from queue_workflows.repositories.sql.connection import Statements
from queue_workflows.repositories.sql.families import HOLDS_KEPT, INGEST, NODE, OVER, Family, per_family
from queue_workflows.states import JOB_TERMINAL, MOVES, JobStatus

# found: what is not over, locked in order, so that two statements with the same rows do not deadlock. ended:
# a job that waits is cancelled; one that runs is asked to stop, which its worker sees with its next look.
# logged: the actor and the reason; nothing where the caller logs a greater thing that this is part of.
CANCEL: Final = per_family(
    """
WITH found AS MATERIALIZED (
    SELECT id FROM {table} WHERE id = ANY (%(ids)s::bigint[]) AND status IN ({open})
    ORDER BY id
    FOR NO KEY UPDATE
), ended AS (
    UPDATE {table} AS job SET
        status = CASE job.status WHEN 'running' THEN 'running' ELSE 'cancelled' END,
        finished_at = CASE job.status WHEN 'running' THEN NULL ELSE statement_timestamp() END,
        cancel_requested_at = COALESCE(job.cancel_requested_at, statement_timestamp()),
        past_holds = {past_holds}, hold_reason = NULL, hold_key = NULL
    WHERE job.id = ANY (ARRAY(SELECT id FROM found))
    RETURNING {ended}
), logged AS (
    INSERT INTO audit_log (actor, action, subject_kind, subject_id, reason, details)
    SELECT %(actor)s::text, 'job.cancel', '{title}', id::text, %(why)s::text,
        jsonb_build_object('status', status)
    FROM ended WHERE %(actor)s::text IS NOT NULL
){events}
SELECT id, status FROM ended
"""
)
# below: the jobs that durable functions among these have spawned, and theirs, as far as they are not over.
OPEN_BELOW: Final = """
WITH RECURSIVE below AS (
    SELECT id, 1 AS depth FROM ingest_jobs
    WHERE spawned_by = ANY (%(parents)s::text[]) AND spawned_by IS NOT NULL AND finished_at IS NULL
    UNION
    SELECT child.id, below.depth + 1 FROM below
    JOIN ingest_jobs AS child ON child.spawned_by = 'ingest:' || below.id
    WHERE child.finished_at IS NULL AND below.depth < 1000
)
SELECT DISTINCT id FROM below ORDER BY id
"""
# below: what was cancelled of what these jobs have spawned, and of what that has.
CANCELLED_BELOW: Final = """
WITH RECURSIVE below AS (
    SELECT id, 1 AS depth FROM ingest_jobs
    WHERE spawned_by = ANY (%(parents)s::text[]) AND spawned_by IS NOT NULL AND status = 'cancelled'
    UNION
    SELECT child.id, below.depth + 1 FROM below
    JOIN ingest_jobs AS child ON child.spawned_by = 'ingest:' || below.id
    WHERE child.status = 'cancelled' AND below.depth < 1000
)
SELECT DISTINCT id FROM below ORDER BY id
"""
# runs, of nodes: those that go on; in one that is over or being cancelled nobody would act upon another end.
# uncounted: of what an orchestrator plans, the ends that it has not counted; it would count a job twice.
# found: what is over. ended: as new, at the end of the queue; attempts go on counting, and the history of
# errors stays. What the row has no more from here on, of its last attempt and its end, is kept beside the
# holds. logged: as by a cancel.
RETRY: Final = per_family(
    """
WITH {runs}found AS MATERIALIZED (
    SELECT id FROM {table} WHERE id = ANY (%(ids)s::bigint[]) AND status IN ({terminal}){of_runs}
    ORDER BY id
    FOR NO KEY UPDATE
), ended AS (
    UPDATE {table} AS job SET
        status = 'queued', generation = job.generation + 1, position = nextval('{sequence}'),
        run_at = statement_timestamp(), failures = 0, crash_count = 0, suspect = false, claimed_by = NULL,
        {result} = NULL, progress = NULL, cancel_requested_at = NULL, finished_at = NULL,
        past_holds = COALESCE(
            jsonb_path_query_array(job.past_holds, '$[last - {holds_before} to last]'), '[]'
        ) || jsonb_build_object('reason', '{over}', 'key', job.status, 'since', job.finished_at,
            'until', statement_timestamp(), 'attempt', job.attempt, 'times', 1, 'worker', job.claimed_by,
            'claimed', job.started_at, 'due', job.run_at)
    WHERE job.id = ANY (ARRAY(SELECT id FROM found))
    RETURNING job.id, job.generation, job.limit_key
), logged AS (
    INSERT INTO audit_log (actor, action, subject_kind, subject_id, reason, details)
    SELECT %(actor)s::text, 'job.retry', '{title}', id::text, %(why)s::text,
        jsonb_build_object('generation', generation)
    FROM ended WHERE %(actor)s::text IS NOT NULL
)
SELECT id, generation, limit_key FROM ended
""",
    holds_before=str(HOLDS_KEPT - 2),
    over=OVER,
)
# Of these ingest jobs those that the table has not, if there is a history where they may be: by the catalog,
# as a role may have no right to anything of a history that nobody has asked for.
MISSED: Final = """
SELECT wanted.id FROM unnest(%(ids)s::bigint[]) AS wanted (id)
WHERE EXISTS (SELECT FROM pg_inherits WHERE inhparent = to_regclass('ingest_jobs_history'))
    AND NOT EXISTS (SELECT FROM ingest_jobs AS job WHERE job.id = wanted.id)
"""
# What of these ingest jobs was in the history by months is in the table afterwards; their ids.
BRING_BACK: Final = "SELECT qwf_history_bring_back(%(ids)s::bigint[])"
# Of these nodes of a run that goes on, the ones of which an orchestrator has counted the end.
COUNTED: Final = per_family("""
SELECT id FROM {table}
WHERE id = ANY (%(ids)s::bigint[]) AND status IN ({terminal}) AND {is_planned} AND NOT EXISTS (
    SELECT FROM workflow_dispatch_events AS event
    WHERE event.node_job_id = {table}.id AND event.generation = {table}.generation
        AND event.kind IN ({terminal})
)
""")[NODE.name]
# found: the row, locked, as it is. ended: the row as it becomes, if it may; with a fence only from that very
# attempt. counted: a failure, and what it had to say.
MARK: Final = per_family(
    """
WITH found AS MATERIALIZED (
    SELECT id, status, attempt, claimed_by FROM {table} WHERE id = %(id)s::bigint FOR NO KEY UPDATE
), ended AS (
    UPDATE {table} AS job SET
        status = %(to)s::text, {result} = NULLIF(%(result)s::text, '')::jsonb, lease_expires_at = NULL,
        finished_at = CASE WHEN %(to)s::text IN ({terminal}) THEN statement_timestamp() END,
        hold_reason = NULL, hold_key = NULL,
        failures = job.failures + (%(error)s::text <> '')::integer,
        errors = CASE WHEN %(error)s::text = '' THEN job.errors ELSE {errors} || (
            NULLIF(%(error)s::text, '')::jsonb || jsonb_build_object(
                'since', job.started_at, 'at', statement_timestamp(), 'attempt', job.attempt,
                'worker_id', job.claimed_by)
        ) END
    FROM found
    WHERE job.id = %(id)s::bigint AND job.id = found.id AND found.status = ANY (%(from)s::text[])
        AND (
            %(claimed_by)s::text = ''
            OR (found.status = 'running' AND found.attempt = %(attempt)s::integer
                AND found.claimed_by = %(claimed_by)s::text)
        )
    RETURNING {job_columns}{for_events}
){events}
SELECT found.status, found.attempt, {columns}
FROM found LEFT JOIN ended AS {table} ON true
"""
)

_LEGAL_FROM: Final[Mapping[str, Mapping[str, list[str]]]] = {
    family: {
        to: [old.value for old in JobStatus if old not in JOB_TERMINAL and to in moves.get(old, ())]
        for to in (JobStatus.COMPLETED, JobStatus.FAILED, JobStatus.AWAITING_INPUT)
    }
    for family, moves in MOVES.items()
    if family != "run"
}


def legal_from(title: str, to: JobStatus) -> list[str]:
    """The statuses from which a family's job may become `to` without a new generation."""
    return _LEGAL_FROM[title][to]


def cancel_below(
    sql: Statements,
    family: Family,
    ids: Iterable[int],
    *,
    actor: str | None = None,
    reason: str | None = None,
) -> None:
    """Cancel what durable functions among these jobs have spawned, and what that has."""
    parents = [f"{family.name}:{job_id}" for job_id in ids]
    below = [row[0] for row in sql.rows(OPEN_BELOW, {"parents": parents})] if parents else []
    if below:
        sql.rows(CANCEL[INGEST.name], params(below, actor, reason))


def retry_below(sql: Statements, family: Family, ids: Iterable[int]) -> None:
    """Run again what durable functions among these jobs have spawned and was cancelled, as with them.

    They go on from their steps, one of which waits for it.
    """
    parents = [f"{family.name}:{job_id}" for job_id in ids]
    below = [row[0] for row in sql.rows(CANCELLED_BELOW, {"parents": parents})] if parents else []
    if below:
        rows = sql.rows(RETRY[INGEST.name], params(below, None, None))
        if keyed := [row[0] for row in rows if row[2] is not None]:
            sql.rows(lanes.MOVE_SURPLUS[INGEST.name], {"ids": id_array(keyed)})


def bring_back(sql: Statements, ids: Iterable[int]) -> list[int]:
    """Have those of these ingest jobs in the table that were in the history by months; their ids."""
    if not (missed := [row[0] for row in sql.rows(MISSED, {"ids": id_array(ids)})]):
        return []
    brought: list[int] = sql.rows(BRING_BACK, {"ids": id_array(missed)})[0][0]
    return brought


def params(ids: Iterable[int], actor: str | None, reason: str | None) -> dict[str, Any]:
    """What a statement is given that decides about jobs: their ids, the actor and the reason."""
    return {
        "ids": id_array(ids),
        "actor": check.text_or_none("actor", actor),
        "why": check.text_or_none("reason", reason, max_bytes=check.TEXT_BYTES),
    }
