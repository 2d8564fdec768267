"""A queue at one moment, as a forecast plays it: what waits in claim order, in lanes, for later, and at work.

The line is that of `next_jobs`, so by the claim's own statement; here is what stands beside the line.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
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
_KEYS: Final = 200
# keys: each key with a lane, found by a jump to the next one in the index. lane: its first jobs on the queue.
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
)
SELECT lane.id, lane.priority, lane.position, keys.key, lane.host_lock
FROM keys CROSS JOIN LATERAL (
    SELECT id, priority, position, host_lock FROM {table} AS held
    WHERE {in_lane} AND hold_key = keys.key AND held.queue = %(queue)s::text
    ORDER BY priority DESC, position
    LIMIT %(limit)s::bigint
) AS lane
WHERE keys.key IS NOT NULL
LIMIT %(limit)s::bigint
""",
    in_lane=IN_LANE,
    keys=str(_KEYS),
)
# soonest: of all queues, to the bound; on the queue those that only wait for their time.
LATER: Final = per_family("""
SELECT id, priority, limit_key, host_lock, extract(epoch FROM run_at - transaction_timestamp())::float8
FROM (
    SELECT id, priority, queue, limit_key, host_lock, hold_reason, run_at FROM {table}
    WHERE status = 'scheduled' ORDER BY run_at LIMIT %(limit)s::bigint
) AS soonest
WHERE queue = %(queue)s::text AND hold_reason IS NULL
ORDER BY run_at
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
    """A queue as it is; `queued` is counted further than `line` is read."""

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

    @property
    def is_cut(self) -> bool:
        """Whether more is queued than was read."""
        return self.queued > len(self.line)


class QueueNowRepository:
    """Reads on the caller's connection, within its snapshot; changes nothing."""

    def __init__(self, conn: Handle) -> None:
        self._conn = conn

    def read(
        self, queue: str, *, most: int, stale_s: float, looked_at: int = LOOKED_AT, keys: Iterable[str] = ()
    ) -> QueueNow:
        """The queue with its first `most` jobs; the caps of `keys` too, which may be of no job there."""
        family = family_of(queue)
        line = NextJobsRepository(self._conn).line(queue, limit=most).jobs
        queued = len(line)
        if queued == most:
            queued = max(queued, QueueDepthRepository(self._conn).of([queue])[0].queued)
        sql, params = Statements(self._conn, family.table), {"queue": queue, "limit": most}
        lane = [LaneJob(*row) for row in sql.rows(LANES[family.name], params)]
        later = [LaterJob(*row) for row in sql.rows(LATER[family.name], params)]
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
        )

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
