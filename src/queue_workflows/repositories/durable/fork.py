"""A copy of a durable function's job that begins at one of its steps, with what is stored of those before."""

from __future__ import annotations

from typing import Final

from queue_workflows.repositories.claims.operator_verbs import bring_back
from queue_workflows.repositories.sql import checks as check
from queue_workflows.repositories.sql.connection import Handle, Statements

# made: as the job was enqueued, without a key that is taken, and as if it had been tried, so that its first
# attempt reads what is stored. copied: the steps before the one that it begins at. logged: the actor, and of
# what it is a copy.
FORK: Final = """
WITH made AS (
    INSERT INTO ingest_jobs (task_name, queue, reason, args, priority, limit_key, max_attempts, backoff_s,
        timeout_s, stall_timeout_s, host_lock, max_crashes, attempt)
    SELECT task_name, queue, reason, args, priority, limit_key, max_attempts, backoff_s, timeout_s,
        stall_timeout_s, host_lock, max_crashes, 1
    FROM ingest_jobs WHERE id = %(id)s::bigint
    RETURNING id
), copied AS (
    INSERT INTO durable_steps (job_family, job_id, name, call, position, kind, status, beside, result, error,
        tries, attempt, version, child_id, waits_for, wake_at, started_at, finished_at)
    SELECT 'ingest', made.id, step.name, step.call, step.position, step.kind, step.status, step.beside,
        step.result, step.error, step.tries, 1, step.version, step.child_id, step.waits_for, step.wake_at,
        step.started_at, step.finished_at
    FROM durable_steps AS step, made
    WHERE step.job_family = 'ingest' AND step.job_id = %(id)s::bigint
        AND step.position < %(position)s::integer AND step.status <> 'waiting'
), logged AS (
    INSERT INTO audit_log (actor, action, subject_kind, subject_id, reason, details)
    SELECT %(actor)s::text, 'job.fork', 'ingest job', %(id)s::text, %(why)s::text,
        jsonb_build_object('job', 'ingest:' || made.id, 'from', %(position)s::integer)
    FROM made
)
SELECT id FROM made
"""


class ForkRepository:
    """Forks jobs on the caller's connection."""

    def __init__(self, conn: Handle) -> None:
        self._sql = Statements(conn, "ingest_jobs")

    def fork(self, job_id: int, position: int, *, actor: str, reason: str | None = None) -> int | None:
        """The id of a copy that begins at the step of this position; None where the job is gone."""
        params = {
            "id": job_id,
            "position": position,
            "actor": check.text("actor", actor),
            "why": check.text_or_none("reason", reason, max_bytes=check.TEXT_BYTES),
        }
        rows = self._sql.rows(FORK, params)
        # What took no step may have moved to a history by months.
        if not rows and bring_back(self._sql, [job_id]):
            rows = self._sql.rows(FORK, params)
        return rows[0][0] if rows else None
