"""What is counted of a deployment beside its queues: the outbox, the runs that are not over, the schedules.

Like the statistics of queues, all of it is read by an index and counted up to a bound.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from queue_workflows.repositories.retention import IS_FULL, IS_LOWEST, RetentionTimes
from queue_workflows.repositories.schedules.ticks import TICKS
from queue_workflows.repositories.sql.connection import Handle, Statements
from queue_workflows.repositories.sql.families import INGEST, NODE

# A ticker comes by every second; what has not been made a minute later is late.
LATE_S: Final = 60.0
# Rows beyond their retention of which most stay for their key.
LAG_LOOKED_AT: Final = 100

# oldest: those that were written first, to the bound; what waits for a later try is not late.
PENDING: Final = """
WITH oldest AS MATERIALIZED (
    SELECT next_try_at, poisoned_at FROM workflow_dispatch_events ORDER BY id LIMIT %(most)s::bigint
)
SELECT count(*), extract(epoch FROM statement_timestamp() - min(next_try_at) FILTER (
    WHERE next_try_at <= statement_timestamp()
))::float8
FROM oldest WHERE poisoned_at IS NULL
"""
POISONED: Final = """
SELECT count(*), count(DISTINCT run_id) FROM (
    SELECT run_id FROM workflow_dispatch_events WHERE poisoned_at IS NOT NULL LIMIT %(most)s::bigint
) AS event
"""
# Each by its own partial index. What is on hold waits for others of its tree, and for no orchestrator.
RUNS: Final = """
SELECT (SELECT count(*) FROM (
    SELECT FROM workflow_runs WHERE status = 'queued' AND mode = 'node' AND hold_reason IS NULL
    LIMIT %(most)s::bigint
) AS run), (SELECT count(*) FROM (
    SELECT FROM workflow_runs WHERE capped_by IS NOT NULL AND hold_reason IS NOT NULL LIMIT %(most)s::bigint
) AS run), (SELECT count(*) FROM (
    SELECT FROM workflow_runs WHERE status = 'running' LIMIT %(most)s::bigint
) AS run)
"""
# ticking: as many as people have written, with when the next tick is due; since its last change where no
# ticker has reckoned that yet.
SCHEDULES: Final = f"""
WITH ticking AS MATERIALIZED (
    SELECT statement_timestamp() - COALESCE(next_tick_at, updated_at) AS late FROM schedules WHERE {TICKS}
)
SELECT count(*), (SELECT count(*) FROM schedules WHERE NOT enabled),
    count(*) FILTER (WHERE late > make_interval(secs => {LATE_S})),
    GREATEST(extract(epoch FROM max(late)), 0)::float8
FROM ticking
"""  # noqa: S608 - fragments of our own


# Of each family the first rows that there are, and the first behind those that have been pruned; how long
# each should have been gone, or empty where it stays for its key.
PRUNING_LAG: Final = f"""
WITH jobs AS MATERIALIZED (
    (SELECT finished_at, dedupe_key IS NULL OR {IS_FULL} AS is_due FROM ingest_jobs
    WHERE finished_at < statement_timestamp() - make_interval(secs => %(kept_s)s::float8)
    ORDER BY finished_at LIMIT 1)
    UNION ALL
    (SELECT finished_at, dedupe_key IS NULL OR {IS_FULL} FROM ingest_jobs
    WHERE finished_at < statement_timestamp() - make_interval(secs => %(kept_s)s::float8)
        AND finished_at >= COALESCE(
            (SELECT seen_before FROM retention_marks WHERE family = 'ingest'), '-infinity')
    ORDER BY finished_at LIMIT {LAG_LOOKED_AT})
), runs AS MATERIALIZED (
    (SELECT id, finished_at, dedupe_key IS NULL AS is_due FROM workflow_runs
    WHERE finished_at < statement_timestamp() - make_interval(secs => %(kept_s)s::float8)
    ORDER BY finished_at LIMIT {LAG_LOOKED_AT})
    UNION ALL
    (SELECT id, finished_at, dedupe_key IS NULL FROM workflow_runs
    WHERE finished_at < statement_timestamp() - make_interval(secs => %(kept_s)s::float8)
        AND finished_at >= COALESCE(
            (SELECT seen_before FROM retention_marks WHERE family = 'node'), '-infinity')
    ORDER BY finished_at LIMIT {LAG_LOOKED_AT})
), late AS (
    SELECT 'ingest' AS family, finished_at, is_due FROM jobs
    UNION ALL
    SELECT 'node', finished_at, is_due FROM runs AS run WHERE {IS_LOWEST}
)
SELECT family, GREATEST(0, max(
    extract(epoch FROM statement_timestamp() - finished_at)
    - %(kept_s)s::float8 - CASE WHEN is_due THEN 0 ELSE %(ttl_s)s::float8 END
))::float8
FROM late
GROUP BY family
"""  # noqa: S608 - fragments of our own


class OutboxFigures(NamedTuple):
    """Events by what is to become of them, and how long the oldest has been due."""

    pending: int
    lag_s: float
    poisoned: int
    poisoned_runs: int


class RunFigures(NamedTuple):
    """Runs that are not over; those on hold are not `queued`."""

    queued: int
    held: int
    running: int


class ScheduleFigures(NamedTuple):
    """Schedules, and how late the tick is that has been due longest."""

    on: int
    paused: int
    late: int
    lag_s: float


class FigureRepository:
    """Reads on the caller's connection; changes nothing."""

    def __init__(self, conn: Handle) -> None:
        self._sql = Statements(conn, "workflow_runs")

    def outbox(self, *, most: int) -> OutboxFigures:
        """Counts go up to `most`."""
        ((pending, lag_s),) = self._sql.rows(PENDING, {"most": most})
        ((poisoned, runs),) = self._sql.rows(POISONED, {"most": most})
        return OutboxFigures(pending, lag_s or 0.0, poisoned, runs)

    def runs(self, *, most: int) -> RunFigures:
        """Counts go up to `most`."""
        return RunFigures(*self._sql.rows(RUNS, {"most": most})[0])

    def schedules(self) -> ScheduleFigures:
        """All of them."""
        ((on, paused, late, lag_s),) = self._sql.rows(SCHEDULES, {})
        return ScheduleFigures(on, paused, late, lag_s or 0.0)

    def pruning_lag(self, times: RetentionTimes) -> dict[str, float]:
        """By family, how many seconds ago the oldest row should have been pruned; 0 where none is late."""
        lags = {row[0]: row[1] for row in self._sql.rows(PRUNING_LAG, times._asdict())}
        return {NODE.name: 0.0, INGEST.name: 0.0, **lags}
