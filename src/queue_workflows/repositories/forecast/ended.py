"""How long the jobs of a queue took that ended last, by an index and up to a bound, whatever is stored."""

from __future__ import annotations

from typing import Final, NamedTuple

from queue_workflows.repositories.durable.waits import PARKED
from queue_workflows.repositories.sql import checks as check
from queue_workflows.repositories.sql.connection import Handle, Statements
from queue_workflows.repositories.sql.families import Family, per_family
from queue_workflows.repositories.sql.table import LONGEST_PAGE

# So many of all queues are looked at, of this last while.
LOOKED_AT: Final = 4_000
LOOKED_BACK_S: Final = 7 * 86_400.0
TASK: Final = {"node": "COALESCE(node_module, node_id)", "ingest": "task_name"}
# last: what of the family ended last and had begun; of it what was on the queue. Times are seconds ago.
ENDED: Final = per_family(
    """
WITH last AS MATERIALIZED (
    SELECT {task} AS task, queue, limit_key, claimed_by, failures, status, backoff_s, max_attempts, priority,
        extract(epoch FROM transaction_timestamp() - created_at)::float8 AS created_s,
        extract(epoch FROM transaction_timestamp() - run_at)::float8 AS ready_s,
        extract(epoch FROM transaction_timestamp() - started_at)::float8 AS began_s,
        extract(epoch FROM transaction_timestamp() - finished_at)::float8 AS ended_s,
        past_holds IS NOT NULL AND EXISTS (
            SELECT FROM jsonb_array_elements(past_holds) AS held
            WHERE held ->> 'reason' = ANY ('{parked}'::text[])
        ) AS was_parked
    FROM {source}
    WHERE finished_at >= statement_timestamp() - make_interval(secs => %(back_s)s::float8)
    ORDER BY finished_at DESC
    LIMIT %(most)s::bigint
)
SELECT task, limit_key, claimed_by, failures, status = 'failed', backoff_s, max_attempts, priority, created_s,
    ready_s, began_s, ended_s, was_parked
FROM last
WHERE queue = %(queue)s::text AND claimed_by IS NOT NULL AND began_s IS NOT NULL
ORDER BY ended_s
""",
    task=TASK,
    parked=f"{{{','.join(sorted(PARKED))}}}",
)


class EndedRow(NamedTuple):
    """A job that is over, with when it was enqueued, claimable, last begun and over, in seconds ago."""

    task: str
    limit_key: str | None
    worker_id: str
    failures: int
    is_failed: bool
    backoff_s: float | None
    max_attempts: int
    priority: int
    created_s: float
    ready_s: float
    began_s: float
    ended_s: float
    # A durable function: of what it did before it slept or waited its row has no times.
    was_parked: bool = False


class EndedRepository:
    """Reads on the caller's connection; changes nothing."""

    def __init__(self, conn: Handle) -> None:
        self._conn = conn

    def last(self, family: Family, queue: str, *, most: int = LOOKED_AT) -> list[EndedRow]:
        """Of the jobs of a family that ended last those of a queue, the last first."""
        most = check.whole("most", most, 1, LONGEST_PAGE)
        params = {"queue": check.text("queue", queue), "most": most, "back_s": LOOKED_BACK_S}
        rows = Statements(self._conn, family.table).rows(ENDED[family.name], params)
        return [EndedRow(*row) for row in rows]
