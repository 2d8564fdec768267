"""A copy of a durable function's job that begins at one of its steps, with what is stored of those before."""

from __future__ import annotations

from typing import Final

from queue_workflows.repositories.claims.operator_verbs import bring_back
from queue_workflows.repositories.sql import checks as check
from queue_workflows.repositories.sql.connection import Handle, Statements

# made: as the job was enqueued, without a key that is taken, and as if it had been tried, so that its first
# attempt reads what is stored. begun: what it is a copy of, and what its random numbers are drawn from, with
# the round. copied: the steps before the one that it begins at, of their version or of none that is said.
# logged: the actor, of both jobs.
FORK: Final = """
WITH made AS (
    INSERT INTO ingest_jobs (task_name, queue, reason, args, priority, limit_key, max_attempts, backoff_s,
        timeout_s, stall_timeout_s, host_lock, max_crashes, attempt)
    SELECT task_name, queue, reason, args, priority, limit_key, max_attempts, backoff_s, timeout_s,
        stall_timeout_s, host_lock, max_crashes, 1
    FROM ingest_jobs WHERE id = %(id)s::bigint
    RETURNING id
), begun AS (
    INSERT INTO durable_steps (job_family, job_id, name, call, position, kind, status, result, attempt,
        version, finished_at)
    SELECT 'ingest', made.id, 'qwf:round', 1, 0, 'round', 'done',
        jsonb_build_object('round', 0, 'seed', 'ingest:' || %(id)s::bigint) || COALESCE(round.result, '{}')
            || jsonb_build_object('copy_of', 'ingest:' || %(id)s::bigint, 'from', %(position)s::integer),
        1, round.version, statement_timestamp()
    FROM made LEFT JOIN durable_steps AS round
        ON round.job_family = 'ingest' AND round.job_id = %(id)s::bigint AND round.kind = 'round'
), copied AS (
    INSERT INTO durable_steps (job_family, job_id, name, call, position, kind, status, beside, result, error,
        tries, attempt, version, child_id, waits_for, wake_at, started_at, finished_at)
    SELECT 'ingest', made.id, step.name, step.call, step.position, step.kind, step.status, step.beside,
        step.result, step.error, step.tries, 1, CASE WHEN %(keeps)s::boolean THEN step.version ELSE '' END,
        step.child_id, step.waits_for, step.wake_at, step.started_at, step.finished_at
    FROM durable_steps AS step, made
    WHERE step.job_family = 'ingest' AND step.job_id = %(id)s::bigint
        AND step.position < %(position)s::integer AND step.status <> 'waiting' AND step.kind <> 'round'
), logged AS (
    INSERT INTO audit_log (actor, action, subject_kind, subject_id, reason, details)
    SELECT %(actor)s::text, 'job.fork', 'ingest job', told.id::text, %(why)s::text,
        jsonb_build_object(told.as_what, 'ingest:' || told.other, 'from', %(position)s::integer)
    FROM made
    CROSS JOIN LATERAL (
        VALUES (%(id)s::bigint, 'job', made.id), (made.id, 'copy_of', %(id)s::bigint)
    ) AS told (id, as_what, other)
)
SELECT id FROM made
"""


# By its name, by its name with which call of that it is, or by its position.
POSITION: Final = """
SELECT position FROM durable_steps
WHERE job_family = 'ingest' AND job_id = %(id)s::bigint AND position > 0 AND (
    position::text = %(wanted)s::text
    OR CASE call WHEN 1 THEN name ELSE name || '#' || call END = %(wanted)s::text
)
ORDER BY position
LIMIT 1
"""


class ForkRepository:
    """Forks jobs on the caller's connection."""

    def __init__(self, conn: Handle) -> None:
        self._sql = Statements(conn, "ingest_jobs")

    def position(self, job_id: int, wanted: str) -> int | None:
        """Where a job has this step, as in `ask`, `ask#2` or `7`; None if it has none."""
        rows = self._sql.rows(POSITION, {"id": job_id, "wanted": wanted})
        return rows[0][0] if rows else None

    def fork(
        self,
        job_id: int,
        position: int,
        *,
        actor: str,
        reason: str | None = None,
        keeps_version: bool = False,
    ) -> int | None:
        """The id of a copy that begins at the step of this position; None where the job is gone.

        It goes on with the code that is current then, or with the version of the steps if it `keeps_version`.
        """
        params = {
            "id": job_id,
            "position": position,
            "keeps": keeps_version,
            "actor": check.text("actor", actor),
            "why": check.text_or_none("reason", reason, max_bytes=check.TEXT_BYTES),
        }
        rows = self._sql.rows(FORK, params)
        # What took no step may have moved to a history by months.
        if not rows and bring_back(self._sql, [job_id]):
            rows = self._sql.rows(FORK, params)
        return rows[0][0] if rows else None
