"""Parked jobs that are past their time: a wait is completed, and what waited for an answer has failed."""

from __future__ import annotations

import json
from typing import Final, NamedTuple

from queue_workflows.repositories.sql.connection import Handle, Statements
from queue_workflows.repositories.sql.families import NODE, per_family

# A literal, so that a generic plan knows how few rows these are.
EXPIRED_AT_ONCE: Final = 500

# due: in the order of their time, but for those that were answered in time: their answer is taken up first.
# It is looked up by run and node, where the planner might else read what is pending of all runs.
# ended: with its event in the same statement, as every end of a node job.
EXPIRE: Final = per_family(
    """
WITH due AS MATERIALIZED (
    SELECT id FROM {table} AS job
    WHERE status = 'awaiting_input' AND expires_at <= statement_timestamp() AND (kind <> 'input' OR (
        SELECT id FROM workflow_input_submissions AS answer
        WHERE answer.run_id = job.run_id AND answer.node_id = job.node_id
            AND COALESCE(answer.status = 'pending', false) AND answer.created_at < job.expires_at
        LIMIT 1
    ) IS NULL)
    ORDER BY expires_at
    LIMIT {at_once}
    FOR NO KEY UPDATE SKIP LOCKED
), ended AS (
    UPDATE {table} AS job SET
        status = CASE job.kind WHEN 'wait' THEN 'completed' ELSE 'failed' END,
        {result} = CASE job.kind WHEN 'wait' THEN '{}'::jsonb END,
        finished_at = statement_timestamp(),
        errors = CASE job.kind WHEN 'wait' THEN job.errors ELSE {errors} || (
            %(error)s::jsonb || jsonb_build_object('at', statement_timestamp(), 'attempt', job.attempt)
        ) END
    WHERE job.id = ANY (ARRAY(SELECT id FROM due))
    RETURNING {ended}
){events}
SELECT id, status FROM ended
""",
    at_once=str(EXPIRED_AT_ONCE),
)[NODE.name]
NEXT_DUE: Final = """
SELECT extract(epoch FROM expires_at - statement_timestamp())::float8 FROM workflow_node_jobs
WHERE status = 'awaiting_input' AND expires_at > statement_timestamp()
ORDER BY expires_at
LIMIT 1
"""
_NO_ANSWER: Final = json.dumps({"kind": "expired", "message": "nobody answered in time"})


class Expired(NamedTuple):
    """How many there were, and in how many seconds the next one is due; None if there is none."""

    ended: int
    next_in_s: float | None


class ParkedJobRepository:
    """Parked jobs on the caller's connection."""

    def __init__(self, conn: Handle) -> None:
        self._sql = Statements(conn, "workflow_node_jobs")

    def expire(self) -> Expired:
        """End what is due, at most `EXPIRED_AT_ONCE`."""
        ended = len(self._sql.rows(EXPIRE, {"error": _NO_ANSWER}))
        if ended >= EXPIRED_AT_ONCE:
            return Expired(ended, 0.0)
        rows = self._sql.rows(NEXT_DUE, {})
        return Expired(ended, max(0.0, rows[0][0]) if rows else None)
