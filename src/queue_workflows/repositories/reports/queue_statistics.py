"""How full the queues are and how fast they move, at a cost that does not grow with what is stored.

Everything is read by an index and counted up to a bound; beyond it the answer says that there is more. What
is over is counted for the last while only, by when it ended.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Final

from queue_workflows.config import RESERVED_QUEUES
from queue_workflows.repositories.limits.lanes import IN_LANE
from queue_workflows.repositories.sql import checks as check
from queue_workflows.repositories.sql.connection import Handle, Rows, Statements
from queue_workflows.repositories.sql.families import BY_NAME, INGEST, NODE, Family, per_family
from queue_workflows.repositories.workers.control import WorkerControlRepository
from queue_workflows.repositories.workers.heartbeats import HeartbeatRepository
from queue_workflows.repositories.workers.obedience import Standing

if TYPE_CHECKING:
    from queue_workflows.models import WorkerControl

COUNTED: Final = 100_000
RATES_S: Final = (60.0, 300.0)
# Of so many keys it is looked at whether the queue has a lane, of each so many jobs are counted, and so many
# lanes are told.
LANES_LOOKED_AT: Final = 200
COUNTED_IN_A_LANE: Final = 1_000
LANES_TOLD: Final = 20

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
    FROM {source}
    WHERE finished_at >= statement_timestamp() - make_interval(secs => %(window_s)s::float8)
    ORDER BY finished_at DESC
    LIMIT %(most)s::bigint
)
SELECT queue, status, count(*), count(*) FILTER (WHERE age_s <= 60), count(*) FILTER (WHERE age_s <= 300),
    (SELECT max(age_s) FROM finished), (SELECT count(*) FROM finished)
FROM finished
GROUP BY queue, status
""")
# What is not over, of one family: what a row is about, its queue, a count, the longest age in seconds, and
# what it is on hold for.
_OPEN: Final = per_family(
    """
SELECT 'queued', '{name}', queue, count, age_s, NULL::text FROM ({queued}) AS part (queue, count, age_s)
UNION ALL
SELECT 'scheduled', '{name}', queue, count, NULL, reason FROM ({scheduled}) AS part (queue, reason, count)
UNION ALL
SELECT 'running', '{name}', queue, count, age_s, NULL FROM ({running}) AS part (queue, count, age_s)
"""
)
_AWAITING: Final = """
UNION ALL
SELECT 'awaiting', 'node', queue, count, NULL, NULL FROM ({awaiting}) AS part (queue, count)
""".replace("{awaiting}", AWAITING)
# keys: those that have a lane, in their order and to the bound, by a jump through the index from one to the
# next. lane: how many jobs of the queue each has there, to the bound.
LANES: Final = per_family(
    """
WITH RECURSIVE keys AS (
    (
        SELECT hold_key AS key, 1 AS number FROM {table} WHERE {in_lane} AND hold_key IS NOT NULL
        ORDER BY hold_key LIMIT 1
    )
    UNION ALL
    SELECT (
        SELECT next.hold_key FROM {table} AS next WHERE {in_lane} AND next.hold_key > keys.key
        ORDER BY next.hold_key LIMIT 1
    ), number + 1
    FROM keys WHERE keys.key IS NOT NULL AND number < %(keys)s::integer
)
SELECT keys.key, lane.jobs
FROM keys CROSS JOIN LATERAL (
    SELECT count(*) AS jobs FROM (
        SELECT FROM {table} AS held
        WHERE {in_lane} AND held.hold_key = keys.key AND held.queue = %(queue)s::text
        LIMIT %(most)s::bigint
    ) AS held
) AS lane
WHERE keys.key IS NOT NULL AND lane.jobs > 0
ORDER BY lane.jobs DESC, keys.key
LIMIT %(shown)s::bigint
""",
    in_lane=IN_LANE,
)
# What the planner believes to be stored, of all statuses, the past included; and the clock.
STORED: Final = """
SELECT
    (SELECT reltuples::bigint FROM pg_class WHERE oid = to_regclass('workflow_node_jobs')),
    (SELECT sum(GREATEST(reltuples, 0))::bigint FROM pg_class
    WHERE oid = to_regclass('ingest_jobs')
        OR oid IN (SELECT inhrelid FROM pg_inherits WHERE inhparent = to_regclass('ingest_jobs_history'))),
    statement_timestamp()
"""


def _open_of(families: Sequence[Family]) -> str:
    """What is not over, of some families at once."""
    parts = []
    for family in families:
        part = _OPEN[family.name] + (_AWAITING if family is NODE else "")
        for mark, one in (("{queued}", QUEUED), ("{scheduled}", SCHEDULED), ("{running}", RUNNING)):
            part = part.replace(mark, one[family.name])
        parts.append(part)
    return "\nUNION ALL\n".join(parts)


def _finished_of(families: Sequence[Family]) -> str:
    """What is over, of some families at once, each row with its family before it."""
    return "\nUNION ALL\n".join(
        f"SELECT '{family.name}', part.* FROM ({FINISHED[family.name]}) AS part"  # noqa: S608
        for family in families
    )


# One statement for both families, or for one of them.
_ASKED: Final[Sequence[tuple[Family, ...]]] = ((NODE, INGEST), (NODE,), (INGEST,))
OPEN: Final = {families: _open_of(families) for families in _ASKED}
ALL_FINISHED: Final = {families: _finished_of(families) for families in _ASKED}


@dataclass(frozen=True, slots=True)
class Lane:
    """Jobs of one queue that wait for a key's limit; how many at least, where there are `more`."""

    key: str
    jobs: int
    more: bool


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


@dataclass(frozen=True, slots=True)
class Attendance:
    """All workers beside what operators want of them, and all that keeps some of them from working."""

    workers: Sequence[Standing]
    wishes: Sequence[WorkerControl]


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
        families: Sequence[Family] = (NODE, INGEST),
        there: Attendance | None = None,
    ) -> Statistics:
        """All queues or one; what is over is counted for the last `window_s`, counts go up to `most`.

        `there` are all workers and wishes, where the caller has read them.
        """
        self._found = {}
        params = {"most": most, "window_s": max(check.seconds("window_s", window_s), RATES_S[-1])}
        sql, these = Statements(self._conn, INGEST.table), tuple(families)
        self._read_open(sql.rows(OPEN[these], params), most)
        self._read_finished(sql.rows(ALL_FINISHED[these], params), most)
        self._read_workers(there or self.attendance(), stale_s, families)
        found = [self._found[key] for key in sorted(self._found) if queue is None or key[0] == queue]
        nodes, ingests, now = sql.rows(STORED, {})[0]
        stored = {NODE.name: int(nodes), INGEST.name: int(ingests)}
        return Statistics(found, params["window_s"], stored, now)

    def attendance(self) -> Attendance:
        """All workers, and all that operators want of some of them."""
        standing = HeartbeatRepository(self._conn).standing()
        return Attendance(standing, WorkerControlRepository(self._conn).blocking())

    def lanes(self, queue: str) -> list[Lane]:
        """The keys that have jobs of the queue wait in a lane, the longest first."""
        family = NODE if queue in RESERVED_QUEUES else INGEST
        params = {"queue": queue, "keys": LANES_LOOKED_AT, "most": COUNTED_IN_A_LANE, "shown": LANES_TOLD}
        rows = Statements(self._conn, family.table).rows(LANES[family.name], params)
        return [Lane(key, jobs, jobs >= COUNTED_IN_A_LANE) for key, jobs in rows]

    def _of(self, family: Family, queue: str) -> QueueStats:
        return self._found.setdefault((queue, family.name), QueueStats(family.name, queue))

    def _read_open(self, rows: Rows, most: int) -> None:
        scheduled: Counter[str] = Counter()
        for about, family, queue, count, age_s, reason in rows:
            one = self._of(BY_NAME[family], queue)
            if about == "queued":
                one.queued, one.oldest_queued_s = count, age_s
                one.at_least |= {"queued"} if count >= most else set()
            elif about == "running":
                one.running, one.longest_running_s = count, age_s
            elif about == "awaiting":
                one.awaiting_input = count
            else:
                scheduled[family] += count
                if reason is None:
                    one.scheduled = count
                else:
                    one.held[reason] = count
        for about, family, queue, *_ in rows:
            if about == "scheduled" and scheduled[family] >= most:
                self._of(BY_NAME[family], queue).at_least |= {"scheduled", "held"}

    def _read_finished(self, rows: Rows, most: int) -> None:
        for family, queue, status, count, minute, five, reach_s, seen in rows:
            one = self._of(BY_NAME[family], queue)
            one.finished[status] = count
            full = seen >= most
            for name, ended, span_s in zip(one.per_minute, (minute, five), RATES_S, strict=True):
                # Where the bound cuts the span short, the rate is that of the part that was seen.
                covered_s = min(span_s, max(reach_s, 1.0)) if full else span_s
                one.per_minute[name] = round(one.per_minute[name] + ended * 60 / covered_s, 3)
            if full:
                one.at_least.add("finished")

    def _read_workers(self, there: Attendance, stale_s: float, families: Sequence[Family]) -> None:
        for worker in there.workers:
            family = NODE if worker.queue in RESERVED_QUEUES else INGEST
            if family not in families:
                continue
            if worker.age_s <= stale_s:
                self._of(family, worker.queue).workers[worker.state] += 1
            elif (worker.queue, family.name) in self._found:
                self._found[worker.queue, family.name].silent_workers += 1
        for one in self._found.values():
            one.wishes = [wish for wish in there.wishes if wish.queue in (one.queue, "*")]
