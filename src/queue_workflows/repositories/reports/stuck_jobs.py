"""The jobs that do not go on, in groups that have one cause, each with its first job as an example.

A group is a queue that has queued jobs, a hold with its key, what is overdue though nothing holds it, and
what runs without a lease. Each is found by a jump through an index and counted up to a bound, so that looking
costs the same however much waits and however much is over.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from queue_workflows.models.columns import TYPES
from queue_workflows.repositories.claims.sweep import DUE, LAPSED
from queue_workflows.repositories.durable.waits import PARKED
from queue_workflows.repositories.limits.in_force import CAP
from queue_workflows.repositories.sql.connection import Handle, Statements
from queue_workflows.repositories.sql.families import FAMILIES, Family, per_family
from queue_workflows.repositories.sql.table import Table

if TYPE_CHECKING:
    from queue_workflows.models import IngestJob, WorkflowNodeJob

Job: TypeAlias = "IngestJob | WorkflowNodeJob"
# Of queues, and of reasons to hold jobs.
GROUPS: Final = 50
# Of each reason; a limit's lanes may have a thousand.
KEYS: Final = 10
COUNTED_IN_GROUP: Final = 10_000
HOLDERS_READ: Final = 1_000
# What is due is promoted within about a second by any living worker.
OVERDUE_S: Final = 10
# What a task was given and gave back may be megabytes, and says nothing about why a job waits.
_PAYLOADS: Final = frozenset({"args", "result", "inputs", "context_delta"})


def _without_payloads(family: Family) -> str:
    """The columns of a job in their order, with nothing in place of its payloads."""
    table: Table[Any] = Table(family.table)
    return ", ".join(
        "NULL" if name in _PAYLOADS else table.only([name]).replace(f"{family.table}.", "job.")
        for name in TYPES[family.table]
    )


# queues: each that has a queued job. reasons: each for which jobs are on hold. holds: some keys of each, but
# for durable functions, which wait as they mean to: ten thousand that wait for an event are not stuck.
# first: of each group how many there are, and the job that has waited longest among the first of each
# priority, or is first in the index. The last columns: the cap of the job's key, and the jobs that hold it.
STUCK: Final = per_family(
    """
WITH RECURSIVE queues AS (
    (SELECT queue, 1 AS number FROM {table} WHERE status = 'queued' ORDER BY queue LIMIT 1)
    UNION ALL
    SELECT (
        SELECT next.queue FROM {table} AS next
        WHERE next.status = 'queued' AND next.queue > queues.queue ORDER BY next.queue LIMIT 1
    ), number + 1
    FROM queues WHERE queues.queue IS NOT NULL AND number < {groups}
), reasons AS (
    (
        SELECT hold_reason, 1 AS number FROM {table}
        WHERE hold_reason IS NOT NULL ORDER BY hold_reason LIMIT 1
    )
    UNION ALL
    SELECT (
        SELECT next.hold_reason FROM {table} AS next
        WHERE next.hold_reason > reasons.hold_reason ORDER BY next.hold_reason LIMIT 1
    ), number + 1
    FROM reasons WHERE reasons.hold_reason IS NOT NULL AND number < {groups}
), holds AS (
    SELECT reasons.hold_reason, keys.hold_key
    FROM reasons CROSS JOIN LATERAL (
        WITH RECURSIVE keys AS (
            (
                SELECT hold_key, 1 AS number FROM {table}
                WHERE hold_reason = reasons.hold_reason AND hold_key IS NOT NULL
                ORDER BY hold_key LIMIT 1
            )
            UNION ALL
            SELECT (
                SELECT next.hold_key FROM {table} AS next
                WHERE next.hold_reason = reasons.hold_reason AND next.hold_key > keys.hold_key
                ORDER BY next.hold_key LIMIT 1
            ), number + 1
            FROM keys WHERE keys.hold_key IS NOT NULL AND number < {keys}
        )
        SELECT hold_key FROM keys WHERE hold_key IS NOT NULL
    ) AS keys
    WHERE reasons.hold_reason NOT IN ({parked})
), first AS MATERIALIZED (
    SELECT 'queued' AS kind, counted.count, head.id
    FROM queues
    CROSS JOIN LATERAL (
        SELECT count(*) FROM (
            SELECT FROM {table} AS job WHERE job.status = 'queued' AND job.queue = queues.queue
            LIMIT {counted}
        ) AS job
    ) AS counted
    CROSS JOIN LATERAL (
        SELECT level_first.id
        FROM unnest('{9,8,7,6,5,4,3,2,1,0}'::smallint[]) AS level (priority)
        CROSS JOIN LATERAL (
            SELECT job.id, job.run_at FROM {table} AS job
            WHERE job.status = 'queued' AND job.queue = queues.queue AND job.priority = level.priority
            ORDER BY job.position LIMIT 1
        ) AS level_first
        ORDER BY level_first.run_at LIMIT 1
    ) AS head
    WHERE queues.queue IS NOT NULL
    UNION ALL
    SELECT 'held', counted.count, head.id
    FROM holds
    CROSS JOIN LATERAL (
        SELECT count(*) FROM (
            SELECT FROM {table} AS job
            WHERE job.hold_reason = holds.hold_reason AND job.hold_key = holds.hold_key LIMIT {counted}
        ) AS job
    ) AS counted
    CROSS JOIN LATERAL (
        SELECT job.id FROM {table} AS job
        WHERE job.hold_reason = holds.hold_reason AND job.hold_key = holds.hold_key
        ORDER BY job.queue, job.priority DESC, job.position LIMIT 1
    ) AS head
    UNION ALL
    SELECT 'due', count(*), (array_agg(late.id ORDER BY late.run_at))[1]
    FROM (
        SELECT id, run_at FROM {table}
        WHERE status = 'scheduled' AND run_at < statement_timestamp() - make_interval(secs => {overdue_s})
        ORDER BY run_at LIMIT {counted}
    ) AS late
    UNION ALL
    SELECT 'lapsed', count(*), (array_agg(lost.id ORDER BY lost.lease_expires_at))[1]
    FROM (
        SELECT id, lease_expires_at FROM {table} WHERE status = 'running' AND {lapsed}
        LIMIT {counted}
    ) AS lost
)
SELECT first.kind, first.count, {due}, status = 'running' AND {lapsed}, {cap}, ARRAY(
        SELECT held.job_family || ':' || held.job_id FROM limit_slots AS held
        WHERE held.limit_key = job.limit_key AND held.lease_expires_at > statement_timestamp()
        ORDER BY held.slot LIMIT {holders}
    ), {columns_read}
FROM first JOIN {table} AS job ON job.id = first.id
WHERE job.id = ANY (ARRAY(SELECT id FROM first))
""",
    due=DUE,
    lapsed=LAPSED,
    parked=", ".join(f"'{reason}'" for reason in PARKED),
    cap=CAP.replace("{key}", "job.limit_key"),
    groups=str(GROUPS),
    keys=str(KEYS),
    counted=str(COUNTED_IN_GROUP),
    overdue_s=str(OVERDUE_S),
    holders=str(HOLDERS_READ),
    columns_read={family.name: _without_payloads(family) for family in FAMILIES},
)


@dataclass(frozen=True, slots=True)
class StuckJobs:
    """Jobs with one cause; `job` is the example, without payloads; `cap` and `holders` are of its key."""

    family: Family
    kind: str
    count: int
    due: bool
    lapsed: bool
    cap: int | None
    holders: list[str]
    job: Job

    @property
    def at_least(self) -> bool:
        """Whether nobody counted further."""
        return self.count >= COUNTED_IN_GROUP


class StuckRepository:
    """Reads on the caller's connection, a statement a family; changes nothing."""

    def __init__(self, conn: Handle) -> None:
        self._conn = conn

    def read(self) -> list[StuckJobs]:
        """The groups of both families."""
        return [group for family in FAMILIES for group in self._of(family)]

    def _of(self, family: Family) -> list[StuckJobs]:
        table: Table[Any] = Table(family.table)
        rows = Statements(self._conn, family.table).rows(STUCK[family.name], {})
        jobs = table.load([row[6:] for row in rows])
        return [
            StuckJobs(family, kind, count, due, lapsed, cap, holders, job)
            for (kind, count, due, lapsed, cap, holders, *_), job in zip(rows, jobs, strict=True)
        ]
