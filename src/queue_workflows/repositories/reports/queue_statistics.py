"""How full the queues are and how fast they move, at a cost that does not grow with what is stored.

Everything is read by an index and counted up to a bound; beyond it the answer says that there is more. What
is over is counted for the last while only, by when it ended.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from queue_workflows.config import RESERVED_QUEUES
from queue_workflows.repositories.sql import checks as check
from queue_workflows.repositories.sql.connection import Handle, Statements
from queue_workflows.repositories.sql.families import FAMILIES, INGEST, NODE, Family, per_family
from queue_workflows.repositories.workers.control import WorkerControlRepository
from queue_workflows.repositories.workers.heartbeats import HeartbeatRepository

if TYPE_CHECKING:
    from queue_workflows.models import WorkerControl

COUNTED: Final = 100_000
RATES_S: Final = (60.0, 300.0)

# queues: each queue that has a queued job, found by a jump to the next one in the claim's index. held: how
# many, counted to the bound. head: the first of each priority, one of which has waited longest.
QUEUED: Final = per_family("""
WITH RECURSIVE queues AS (
    (SELECT queue FROM {table} WHERE status = 'queued' ORDER BY queue LIMIT 1)
    UNION ALL
    SELECT (
        SELECT next.queue FROM {table} AS next
        WHERE next.status = 'queued' AND next.queue > queues.queue ORDER BY next.queue LIMIT 1
    ) FROM queues WHERE queues.queue IS NOT NULL
)
SELECT queues.queue, counted.count, extract(epoch FROM statement_timestamp() - head.since)::float8
FROM queues
CROSS JOIN LATERAL (
    SELECT count(*) FROM (
        SELECT FROM {table} AS job WHERE job.status = 'queued' AND job.queue = queues.queue
        LIMIT %(most)s::bigint
    ) AS job
) AS counted
CROSS JOIN LATERAL (
    SELECT min(first.run_at) AS since
    FROM unnest('{9,8,7,6,5,4,3,2,1,0}'::smallint[]) AS level (priority)
    CROSS JOIN LATERAL (
        SELECT job.run_at FROM {table} AS job
        WHERE job.status = 'queued' AND job.queue = queues.queue AND job.priority = level.priority
        ORDER BY job.position LIMIT 1
    ) AS first
) AS head
WHERE queues.queue IS NOT NULL
""")
# The soonest, to the bound.
SCHEDULED: Final = per_family("""
SELECT queue, hold_reason, count(*) FROM (
    SELECT queue, hold_reason FROM {table} WHERE status = 'scheduled' ORDER BY run_at LIMIT %(most)s::bigint
) AS job
GROUP BY queue, hold_reason
""")
RUNNING: Final = per_family("""
SELECT queue, count(*), extract(epoch FROM statement_timestamp() - min(started_at))::float8 FROM {table}
WHERE status = 'running'
GROUP BY queue
""")
# Node jobs alone wait for people.
AWAITING: Final = """
SELECT queue, count(*) FROM (
    SELECT queue FROM workflow_node_jobs WHERE status = 'awaiting_input' LIMIT %(most)s::bigint
) AS job
GROUP BY queue
"""
# The latest, to the bound; with how many of them ended in the last minute and the last five.
FINISHED: Final = per_family("""
WITH finished AS MATERIALIZED (
    SELECT queue, status, extract(epoch FROM statement_timestamp() - finished_at)::float8 AS age_s
    FROM {table}
    WHERE finished_at >= statement_timestamp() - make_interval(secs => %(window_s)s::float8)
    ORDER BY finished_at DESC
    LIMIT %(most)s::bigint
)
SELECT queue, status, count(*), count(*) FILTER (WHERE age_s <= 60), count(*) FILTER (WHERE age_s <= 300),
    (SELECT max(age_s) FROM finished), (SELECT count(*) FROM finished)
FROM finished
GROUP BY queue, status
""")
# What the planner believes; of all statuses, the past included.
STORED: Final = per_family("SELECT reltuples::bigint FROM pg_class WHERE oid = to_regclass('{table}')")


@dataclass(slots=True)
class QueueStats:
    """One queue of one family; a count is exact unless `at_least` names it."""

    family: str
    queue: str
    queued: int = 0
    oldest_queued_s: float | None = None
    scheduled: int = 0
    held: Counter[str] = field(default_factory=Counter)
    awaiting_input: int = 0
    running: int = 0
    longest_running_s: float | None = None
    finished: Counter[str] = field(default_factory=Counter)
    per_minute: dict[str, float] = field(default_factory=lambda: {"1m": 0.0, "5m": 0.0})
    workers: Counter[str] = field(default_factory=Counter)
    silent_workers: int = 0
    wishes: list[WorkerControl] = field(default_factory=list)
    at_least: set[str] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class Statistics:
    """Every queue on which something is, was lately, or is waited for; about how many rows are stored."""

    queues: list[QueueStats]
    window_s: float
    stored: dict[str, int]
    at: datetime


class StatisticsRepository:
    """Reads statistics on the caller's connection; changes nothing."""

    def __init__(self, conn: Handle) -> None:
        self._conn = conn
        self._found: dict[tuple[str, str], QueueStats] = {}

    def read(
        self,
        *,
        stale_s: float,
        window_s: float = 3600.0,
        queue: str | None = None,
        most: int = COUNTED,
        families: Sequence[Family] = FAMILIES,
    ) -> Statistics:
        """All queues or one; what is over is counted for the last `window_s`, counts go up to `most`."""
        self._found = {}
        params = {"most": most, "window_s": max(check.seconds("window_s", window_s), RATES_S[-1])}
        for family in families:
            sql = Statements(self._conn, family.table)
            self._read_waiting(sql, family, params)
            self._read_running(sql, family, params)
            self._read_finished(sql, family, params)
        self._read_workers(stale_s, families)
        found = [self._found[key] for key in sorted(self._found) if queue is None or key[0] == queue]
        sql = Statements(self._conn, INGEST.table)
        stored = {one.name: int(sql.rows(STORED[one.name], {})[0][0]) for one in FAMILIES}
        (now,) = sql.rows("SELECT statement_timestamp()", {})[0]
        return Statistics(found, params["window_s"], stored, now)

    def _of(self, family: Family, queue: str) -> QueueStats:
        return self._found.setdefault((queue, family.name), QueueStats(family.name, queue))

    def _read_waiting(self, sql: Statements, family: Family, params: dict[str, Any]) -> None:
        for queue, count, oldest_s in sql.rows(QUEUED[family.name], params):
            one = self._of(family, queue)
            one.queued, one.oldest_queued_s = count, oldest_s
            if count >= params["most"]:
                one.at_least.add("queued")
        rows = sql.rows(SCHEDULED[family.name], params)
        full = sum(row[2] for row in rows) >= params["most"]
        for queue, reason, count in rows:
            one = self._of(family, queue)
            if reason is None:
                one.scheduled = count
            else:
                one.held[reason] = count
            if full:
                one.at_least |= {"scheduled", "held"}
        if family is NODE:
            for queue, count in sql.rows(AWAITING, params):
                self._of(family, queue).awaiting_input = count

    def _read_running(self, sql: Statements, family: Family, params: dict[str, Any]) -> None:
        for queue, count, longest_s in sql.rows(RUNNING[family.name], params):
            one = self._of(family, queue)
            one.running, one.longest_running_s = count, longest_s

    def _read_finished(self, sql: Statements, family: Family, params: dict[str, Any]) -> None:
        for queue, status, count, minute, five, reach_s, seen in sql.rows(FINISHED[family.name], params):
            one = self._of(family, queue)
            one.finished[status] = count
            full = seen >= params["most"]
            for name, ended, span_s in zip(one.per_minute, (minute, five), RATES_S, strict=True):
                # Where the bound cuts the span short, the rate is that of the part that was seen.
                covered_s = min(span_s, max(reach_s, 1.0)) if full else span_s
                one.per_minute[name] = round(one.per_minute[name] + ended * 60 / covered_s, 3)
            if full:
                one.at_least.add("finished")

    def _read_workers(self, stale_s: float, families: Sequence[Family]) -> None:
        for worker in HeartbeatRepository(self._conn).standing():
            family = NODE if worker.queue in RESERVED_QUEUES else INGEST
            if family not in families:
                continue
            if worker.age_s <= stale_s:
                self._of(family, worker.queue).workers[worker.state] += 1
            elif (worker.queue, family.name) in self._found:
                self._found[worker.queue, family.name].silent_workers += 1
        wishes = WorkerControlRepository(self._conn).blocking()
        for one in self._found.values():
            one.wishes = [wish for wish in wishes if wish.queue in (one.queue, "*")]
