"""What only tests ask of a database that is theirs alone: move its due times, and empty it.

Whatever waits is due by the database's clock, which nobody can move. To let an hour pass is to have all that
waits due an hour earlier: retries, delayed jobs, waits and answers of runs, events, buckets of rates.
"""

from __future__ import annotations

from typing import Final

from queue_workflows.repositories.sql import checks as check
from queue_workflows.repositories.sql.connection import Handle, Statements

# What time brings about, table by table; each answers a row, so that it is known to have been done.
MOVES: Final = (
    """
WITH moved AS (
    UPDATE ingest_jobs SET run_at = run_at - make_interval(secs => %(seconds)s::float8)
    WHERE status = 'scheduled'
    RETURNING id
)
SELECT count(*) FROM moved
""",
    """
WITH moved AS (
    UPDATE workflow_node_jobs SET
        run_at = CASE WHEN status = 'scheduled' THEN run_at - make_interval(secs => %(seconds)s::float8)
            ELSE run_at END,
        expires_at = expires_at - make_interval(secs => %(seconds)s::float8)
    WHERE status IN ('scheduled', 'awaiting_input')
    RETURNING id
)
SELECT count(*) FROM moved
""",
    """
WITH moved AS (
    UPDATE durable_steps SET wake_at = wake_at - make_interval(secs => %(seconds)s::float8)
    WHERE status = 'waiting' AND wake_at IS NOT NULL
    RETURNING job_id
)
SELECT count(*) FROM moved
""",
    """
WITH moved AS (
    UPDATE workflow_dispatch_events SET
        next_try_at = next_try_at - make_interval(secs => %(seconds)s::float8)
    RETURNING id
)
SELECT count(*) FROM moved
""",
    """
WITH moved AS (
    UPDATE rate_limits SET
        refilled_at = refilled_at - make_interval(secs => %(seconds)s::float8),
        blocked_until = blocked_until - make_interval(secs => %(seconds)s::float8)
    RETURNING rate_key
)
SELECT count(*) FROM moved
""",
)
# due: the times that lie ahead; what is on hold waits for something else than time.
NEXT_DUE: Final = """
WITH due AS (
    SELECT run_at AS at FROM ingest_jobs WHERE status = 'scheduled' AND (
        hold_reason IS NULL OR hold_reason IN ('asleep', 'event', 'children')
            AND run_at < statement_timestamp() + interval '90 years'
    )
    UNION ALL
    SELECT run_at FROM workflow_node_jobs WHERE status = 'scheduled' AND (
        hold_reason IS NULL OR hold_reason IN ('asleep', 'event', 'children')
            AND run_at < statement_timestamp() + interval '90 years'
    )
    UNION ALL
    SELECT expires_at FROM workflow_node_jobs WHERE status = 'awaiting_input' AND expires_at IS NOT NULL
    UNION ALL
    SELECT next_try_at FROM workflow_dispatch_events WHERE poisoned_at IS NULL
)
SELECT extract(epoch FROM min(at) - statement_timestamp())::float8 FROM due
"""
# In an order that the foreign keys allow.
EMPTIES: Final = tuple(
    f"WITH gone AS (DELETE FROM {table} RETURNING 1) SELECT count(*) FROM gone"  # noqa: S608 - names of ours
    for table in (
        "workflow_dispatch_events",
        "workflow_input_submissions",
        "hook_records",
        "workflow_node_jobs",
        "workflow_nodes",
        "workflow_runs",
        "ingest_jobs",
        "ingest_jobs_history",
        "durable_steps",
        "durable_events",
        "limit_slots",
        "rate_limits",
    )
)


class DueTimeRepository:
    """The due times of a test's own database, on the caller's connection."""

    def __init__(self, conn: Handle) -> None:
        self._sql = Statements(conn, "ingest_jobs")

    def advance(self, seconds: float) -> None:
        """Have all that waits due so many seconds earlier, as if these had passed."""
        params = {"seconds": check.seconds("seconds", seconds)}
        for sql in MOVES:
            self._sql.rows(sql, params)

    def next_in_s(self) -> float | None:
        """In how many seconds the next thing is due; None if nothing waits for a time."""
        ((seconds,),) = self._sql.rows(NEXT_DUE, {})
        return None if seconds is None else max(0.0, float(seconds))

    def empty(self) -> None:
        """Delete all jobs and runs, and what is kept of limits for them."""
        for sql in EMPTIES:
            self._sql.rows(sql, {})
