"""A queue at one moment, as a forecast plays it: what waits in claim order, in lanes, for later, and at work.

The line is that of `next_jobs`, so by the claim's own statement; here is what stands beside the line.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from queue_workflows.repositories.forecast.ended import LOOKED_AT, TASK, EndedRepository, EndedRow
from queue_workflows.repositories.limits.in_force import CAP
from queue_workflows.repositories.limits.lane_turns import IN_FRONT
from queue_workflows.repositories.limits.lanes import IN_LANE
from queue_workflows.repositories.reports.next_jobs import NextJobsRepository, QueuedJob, family_of
from queue_workflows.repositories.reports.queue_depth import QueueDepthRepository
from queue_workflows.repositories.sql.arrays import id_array, texts
from queue_workflows.repositories.sql.connection import Handle, Statements
from queue_workflows.repositories.sql.families import FAMILIES, Family, per_family
from queue_workflows.repositories.workers.heartbeats import HeartbeatRepository
from queue_workflows.repositories.workers.jobs_at_work import AtWorkRepository, JobAtWork
from queue_workflows.repositories.workers.obedience import Standing

# Keys of lanes that are looked at.
_KEYS: Final = 1_000
# So many jobs that wait are counted, of a key in lanes so many at least.
COUNTED: Final = 1_000_000
_COUNTED_OF_KEY: Final = 10_000
# Of those that are due later so many times as many are looked at, of all queues.
_LATER_LOOKED_AT: Final = 10
# keys: each key with a lane, found by a jump to the next one in the index. share: how many there are, and how
# many jobs of each are read. lane: its first jobs on the queue.
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
    FROM keys WHERE keys.key IS NOT NULL AND number < {keys}
), share AS MATERIALIZED (
    SELECT count(*) AS keys, GREATEST(1, %(limit)s::bigint / GREATEST(1, count(*))) AS each
    FROM keys WHERE key IS NOT NULL
)
SELECT share.keys, share.each, lane.id, lane.priority, lane.position, keys.key, lane.host_lock
FROM share CROSS JOIN keys CROSS JOIN LATERAL (
    SELECT id, priority, position, host_lock FROM {table} AS held
    WHERE {in_lane} AND hold_key = keys.key AND held.queue = %(queue)s::text
    ORDER BY priority DESC, position
    LIMIT (SELECT each FROM share)
) AS lane
WHERE keys.key IS NOT NULL
LIMIT %(limit)s::bigint
""",
    in_lane=IN_LANE,
    keys=str(_KEYS),
)
# Of some keys how many jobs are in their lanes on the queue, to a bound.
LANE_DEPTHS: Final = per_family(
    """
SELECT given.key, counted.count
FROM unnest(%(keys)s::text[]) AS given (key)
CROSS JOIN LATERAL (
    SELECT count(*) FROM (
        SELECT FROM {table} AS held
        WHERE {in_lane} AND hold_key = given.key AND held.queue = %(queue)s::text
        LIMIT %(most)s::bigint
    ) AS held
) AS counted
""",
    in_lane=IN_LANE,
)
# soonest: of all queues, to the bound; on the queue those that only wait for their time. Last, without an id,
# how many were looked at.
LATER: Final = per_family("""
WITH soonest AS MATERIALIZED (
    SELECT id, priority, queue, limit_key, host_lock, hold_reason, run_at FROM {table}
    WHERE status = 'scheduled' ORDER BY run_at LIMIT %(looked_at)s::bigint
)
(
    SELECT id, priority, limit_key, host_lock,
        extract(epoch FROM run_at - transaction_timestamp())::float8
    FROM soonest WHERE queue = %(queue)s::text AND hold_reason IS NULL
    ORDER BY run_at LIMIT %(limit)s::bigint
)
UNION ALL
SELECT NULL, count(*), NULL, NULL, NULL FROM soonest
""")
# The queues on which jobs of a key wait, in front or in a lane.
OF_KEY: Final = per_family(
    """
SELECT DISTINCT queue FROM (
    (SELECT queue FROM {table} WHERE {in_front} AND limit_key = %(key)s::text LIMIT %(limit)s::bigint)
    UNION ALL
    (SELECT queue FROM {table} WHERE {in_lane} AND hold_key = %(key)s::text LIMIT %(limit)s::bigint)
) AS waiting
ORDER BY queue
""",
    in_front=IN_FRONT,
    in_lane=IN_LANE,
)
# What a job is an instance of, and how long ago it was enqueued and begun.
FACTS: Final = per_family(
    """
SELECT id, {task}, extract(epoch FROM transaction_timestamp() - created_at)::float8,
    extract(epoch FROM transaction_timestamp() - started_at)::float8
FROM {table} WHERE id = ANY (%(ids)s::bigint[])
""",
    task=TASK,
)
# Of each key its cap, NULL where it has none, and how many slots are held, by whatever queue.
CAPS: Final = """
SELECT keys.key, {cap}, (
    SELECT count(*) FROM limit_slots WHERE limit_key = keys.key AND lease_expires_at > statement_timestamp()
)
FROM unnest(%(keys)s::text[]) AS keys (key)
""".replace("{cap}", CAP.replace("{key}", "keys.key"))


class LaneJob(NamedTuple):
    """A job in the lane of its key."""

    id: int
    priority: int
    position: int
    limit_key: str
    host_lock: str | None


class LaterJob(NamedTuple):
    """A job that is due in so many seconds."""

    id: int
    priority: int
    limit_key: str | None
    host_lock: str | None
    due_s: float


class JobFacts(NamedTuple):
    """What a job is an instance of, how long ago it was enqueued, and how long ago its attempt began."""

    task: str
    created_s: float
    began_s: float | None


class CapInUse(NamedTuple):
    """A key's cap, None where it has none, and how many hold a slot."""

    cap: int | None
    taken: int


@dataclass(frozen=True, slots=True)
class QueueNow:
    """A queue as it is; `queued` is counted further than `line` is read, `in_lanes` than `lane`, by key.

    Where more waits than was counted `is_counted` is not so; where what is due later was not all looked at,
    `is_later_cut`.
    """

    family: Family
    queue: str
    line: Sequence[QueuedJob]
    queued: int
    lane: Sequence[LaneJob]
    later: Sequence[LaterJob]
    at_work: Sequence[JobAtWork]
    facts: Mapping[int, JobFacts]
    caps: Mapping[str, CapInUse]
    workers: Sequence[Standing]
    ended: Sequence[EndedRow]
    in_lanes: Mapping[str, int] = field(default_factory=dict)
    is_counted: bool = True
    is_later_cut: bool = False

    @property
    def waiting(self) -> int:
        """How many wait, at least."""
        read = Counter(job.limit_key for job in self.lane)
        in_lanes = sum(max(jobs, self.in_lanes.get(key, 0)) for key, jobs in read.items())
        return self.queued + in_lanes + len(self.later)


class QueueNowRepository:
    """Reads on the caller's connection, within its snapshot; changes nothing."""

    def __init__(self, conn: Handle) -> None:
        self._conn = conn

    def read(
        self,
        queue: str,
        *,
        most: int,
        stale_s: float,
        looked_at: int = LOOKED_AT,
        counted: int = COUNTED,
        keys: Iterable[str] = (),
    ) -> QueueNow:
        """The queue with its first `most` jobs; the caps of `keys` too, which may be of no job there."""
        family = family_of(queue)
        line = NextJobsRepository(self._conn).line(queue, limit=most).jobs
        queued = len(line)
        if queued == most:
            queued = max(queued, QueueDepthRepository(self._conn).of([queue], most=counted)[0].queued)
        lane, in_lanes, is_counted = self._lanes(family, queue, most, counted)
        later, is_later_cut = self._later(family, queue, most)
        workers = HeartbeatRepository(self._conn).standing(queue=queue)
        live = [one for one in workers if one.age_s <= stale_s and not one.is_quarantined]
        at_work = AtWorkRepository(self._conn).of([one.worker_id for one in live], limit=most) if live else []
        ids = [job.id for jobs in (line, lane, later, at_work) for job in jobs]
        of_jobs = {
            job.limit_key
            for jobs in (line, lane, later, at_work)
            for job in jobs
            if job.limit_key is not None
        }
        return QueueNow(
            family=family,
            queue=queue,
            line=line,
            queued=queued,
            lane=lane,
            later=later,
            at_work=at_work,
            facts=self._facts(family, ids),
            caps=self._caps({*of_jobs, *keys}),
            workers=live,
            ended=EndedRepository(self._conn).last(family, queue, most=looked_at),
            in_lanes=in_lanes,
            is_counted=is_counted and queued < counted,
            is_later_cut=is_later_cut,
        )

    def _lanes(
        self, family: Family, queue: str, most: int, counted: int
    ) -> tuple[list[LaneJob], dict[str, int], bool]:
        """The first jobs of each lane, and how many those lanes have of which not all were read."""
        sql, params = Statements(self._conn, family.table), {"queue": queue, "limit": most}
        rows = sql.rows(LANES[family.name], params)
        lane = [LaneJob(*row) for _, _, *row in rows]
        if not rows:
            return lane, {}, True
        keys, each, *_ = rows[0]
        is_counted = keys < min(_KEYS, most)
        read = Counter(job.limit_key for job in lane)
        cut = [key for key, jobs in read.items() if jobs >= each]
        if not cut:
            return lane, {}, is_counted
        bound = max(_COUNTED_OF_KEY, counted // len(cut))
        depths = {"queue": queue, "keys": texts(cut), "most": bound}
        in_lanes: dict[str, int] = dict(map(tuple, sql.rows(LANE_DEPTHS[family.name], depths)))
        return lane, in_lanes, is_counted and max(in_lanes.values()) < bound

    def _later(self, family: Family, queue: str, most: int) -> tuple[list[LaterJob], bool]:
        """What is due later, the soonest first, and whether there is more."""
        looked_at = most * _LATER_LOOKED_AT
        params = {"queue": queue, "limit": most, "looked_at": looked_at}
        *rows, (_, seen, *_) = Statements(self._conn, family.table).rows(LATER[family.name], params)
        return [LaterJob(*row) for row in rows], seen >= looked_at or len(rows) >= most

    def queues_of(self, key: str, *, most: int) -> list[str]:
        """The queues on which jobs of a key wait, by the first `most` of each kind."""
        params = {"key": key, "limit": most}
        found = {
            queue
            for family in FAMILIES
            for (queue,) in Statements(self._conn, family.table).rows(OF_KEY[family.name], params)
        }
        return sorted(found)

    def _facts(self, family: Family, ids: Sequence[int]) -> dict[int, JobFacts]:
        if not ids:
            return {}
        rows = Statements(self._conn, family.table).rows(FACTS[family.name], {"ids": id_array(ids)})
        return {job_id: JobFacts(*facts) for job_id, *facts in rows}

    def _caps(self, keys: set[str]) -> dict[str, CapInUse]:
        if not keys:
            return {}
        rows = Statements(self._conn, "limit_slots").rows(CAPS, {"keys": texts(sorted(keys))})
        return {key: CapInUse(cap, taken) for key, cap, taken in rows}
