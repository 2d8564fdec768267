"""The circumstances of several jobs of one run, in as many statements for twenty of them as for one.

What `explain_job` asks of one job is asked of each; what concerns a queue is asked of each queue once.
Nothing is read that would only be told in the history of a job.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from queue_workflows.repositories.claims.by_host_lock import LockHolder, keys_of, lock_of
from queue_workflows.repositories.claims.claim import CLAIMABLE, CLAIMABLE_ALONE
from queue_workflows.repositories.claims.sweep import DUE, LAPSED
from queue_workflows.repositories.durable.listing import (
    OPEN_CHILDREN_OF_EACH,
    WAITING,
    OpenChildren,
    steps_of,
)
from queue_workflows.repositories.durable.waits import PARKED
from queue_workflows.repositories.explain.explain_job import (
    AT_WORK,
    COUNTED_AHEAD,
    LAST_POSITION,
    STALE_S,
    AtWork,
    Circumstances,
    Limit,
    name_to_know,
    published_as,
)
from queue_workflows.repositories.hooks.binaries import BINARY_MISSING, waited_for
from queue_workflows.repositories.limits.adapted import FROM_CAPS
from queue_workflows.repositories.limits.caps import EFFECTIVE, SLOTS_OF_KEY, in_force
from queue_workflows.repositories.limits.lanes import LIMIT_FULL
from queue_workflows.repositories.limits.overview import COUNTED
from queue_workflows.repositories.sql.connection import Handle, Rows
from queue_workflows.repositories.sql.families import FAMILIES, NODE, per_family
from queue_workflows.repositories.sql.table import Table
from queue_workflows.repositories.sql.together import read_together
from queue_workflows.repositories.workers.code import WHICH_KNOW, KnowingWorkers
from queue_workflows.repositories.workers.control import BLOCKING
from queue_workflows.repositories.workers.obedience import STANDING_OF_QUEUES, Standing, standings
from queue_workflows.states import JobStatus

if TYPE_CHECKING:
    from queue_workflows.models import (
        AuditLog,
        Binary,
        ConcurrencyLimit,
        DurableStep,
        LimitSlot,
        WorkerControl,
        WorkflowNodeJob,
        WorkflowRun,
    )

_JOBS: Final[Table[WorkflowNodeJob]] = Table("workflow_node_jobs")
_AUDIT: Final[Table[AuditLog]] = Table("audit_log")
_LIMITS: Final[Table[ConcurrencyLimit]] = Table("concurrency_limits")
_SLOTS: Final[Table[LimitSlot]] = Table("limit_slots")
_BINARIES: Final[Table[Binary]] = Table("binaries")
_WISHES: Final[Table[WorkerControl]] = Table("worker_control")


# The rows against the predicates of the claim and the sweeps, last the clock; without what jobs were given.
JOBS: Final = (
    _JOBS.sql(f"""
SELECT {{columns}}, ({CLAIMABLE}) OR ({CLAIMABLE_ALONE}), {DUE}, status = 'running' AND {LAPSED},
    statement_timestamp()
FROM workflow_node_jobs WHERE id = ANY (%(ids)s::bigint[])
""")  # noqa: S608 - fragments of our own
    .replace("%(queue)s::text", "queue")
    .replace("workflow_node_jobs.inputs::text AS inputs", "'{}' AS inputs")
    .replace("workflow_node_jobs.item::text AS item", "NULL AS item")
    .replace("workflow_node_jobs.context_delta::text AS context_delta", "NULL AS context_delta")
)
# Of each job that could be claimed, how many the claim takes before it, as `explain_job` counts them of one:
# of a hook, of a suspect, and of any other. mark: each priority, and up to which position it comes first.
AHEAD_OF_EACH: Final = """
SELECT asked.id, CASE
    WHEN asked.queue = 'hooks' THEN (
        SELECT count(*) FROM (
            SELECT FROM unnest('{9,8,7,6,5,4,3,2,1,0}'::smallint[]) AS mark (priority) CROSS JOIN LATERAL (
                SELECT FROM workflow_node_jobs AS job
                WHERE job.status = 'queued' AND job.queue = asked.queue AND job.priority = mark.priority
                    AND job.position < CASE WHEN mark.priority > asked.priority THEN {last}
                        ELSE asked.position END
                    AND job.background = asked.background
                    AND COALESCE(job.pinned_host, asked.pinned_host, '')
                        IN (COALESCE(asked.pinned_host, ''), '*')
                    AND (job.pinned_host IS NOT DISTINCT FROM asked.pinned_host
                        OR mark.priority > asked.priority)
                LIMIT %(limit)s::bigint
            ) AS job
            WHERE mark.priority >= asked.priority
            LIMIT %(limit)s::bigint
        ) AS ahead
    )
    ELSE (
        SELECT count(*) FROM (
            SELECT FROM unnest('{9,8,7,6,5,4,3,2,1,0}'::smallint[]) AS mark (priority) CROSS JOIN LATERAL (
                SELECT FROM workflow_node_jobs AS job
                WHERE job.status = 'queued' AND job.queue = asked.queue AND NOT job.suspect
                    AND job.priority = mark.priority
                    AND job.position < CASE WHEN mark.priority > asked.priority OR asked.suspect THEN {last}
                        ELSE asked.position END
                LIMIT %(limit)s::bigint
            ) AS job
            WHERE mark.priority >= asked.priority OR asked.suspect
            LIMIT %(limit)s::bigint
        ) AS ahead
    ) + (
        SELECT count(*) FROM (
            SELECT FROM workflow_node_jobs AS job
            WHERE COALESCE(job.status = 'queued' AND job.suspect, false) AND job.queue = asked.queue
                AND asked.suspect AND (job.crash_count, -job.priority, job.position)
                    < (asked.crash_count, -asked.priority, asked.position)
            LIMIT %(limit)s::bigint
        ) AS ahead
    )
END
FROM workflow_node_jobs AS asked
WHERE asked.id = ANY (%(counted)s::bigint[]) AND asked.status = 'queued'
""".replace("{last}", str(LAST_POSITION))
# What the workers of these queues are at, the oldest first.
AT_WORK_IN_QUEUES: Final = AT_WORK[NODE.name].replace(
    "%(workers)s::text[]",
    "ARRAY(SELECT worker_id FROM worker_heartbeats WHERE queue = ANY (%(queues)s::text[]))",
)
BLOCKING_QUEUES: Final = BLOCKING.replace(
    "queue IN (%(queue)s::text, '*') OR %(queue)s::text = '*'",
    "queue = '*' OR queue = ANY (%(queues)s::text[])",
).replace("%(host_label)s::text", "'*'")


# What was asked last of the workers of the queue of each job that runs, before there was the job.
ASKED_BEFORE: Final = _AUDIT.sql("""
SELECT asked.id AS job_id, {columns} FROM workflow_node_jobs AS asked CROSS JOIN LATERAL (
    SELECT DISTINCT ON (subject_id) * FROM audit_log AS entry
    WHERE subject_kind = 'worker_control' AND split_part(subject_id, ' ', 2) IN (asked.queue, '*')
        AND entry.at < asked.created_at
    ORDER BY subject_id, entry.id DESC
) AS audit_log
WHERE asked.id = ANY (%(ids)s::bigint[]) AND asked.status = 'running'
""")
# And what while it waited.
ASKED_SINCE: Final = _AUDIT.sql("""
SELECT asked.id AS job_id, {columns} FROM workflow_node_jobs AS asked CROSS JOIN LATERAL (
    SELECT * FROM audit_log AS entry
    WHERE subject_kind = 'worker_control' AND split_part(subject_id, ' ', 2) IN (asked.queue, '*')
        AND entry.at BETWEEN asked.created_at AND COALESCE(asked.started_at, 'infinity')
    ORDER BY entry.id DESC
    LIMIT 100
) AS audit_log
WHERE asked.id = ANY (%(ids)s::bigint[]) AND asked.status = 'running'
""")
# The cap of each of some keys, beside the key.
EFFECTIVE_OF_EACH: Final = """
SELECT wanted.key, cap.* FROM unnest(%(keys)s::text[]) AS wanted (key) CROSS JOIN LATERAL ({cap}) AS cap
""".replace("{cap}", EFFECTIVE.replace("%(limit_key)s::text", "wanted.key"))
SLOTS_OF_KEYS: Final = SLOTS_OF_KEY.replace(
    "limit_key = %(limit_key)s::text", "limit_key = ANY (%(keys)s::text[])"
).replace("ORDER BY slot", "ORDER BY limit_key, slot")
# Of each job in a lane, how many of its key come first.
BEFORE_EACH_IN_LANE: Final = """
SELECT asked.id, (
    SELECT count(*) FROM (
        SELECT FROM workflow_node_jobs AS job
        WHERE job.hold_reason = 'limit_full' AND job.hold_key = asked.limit_key AND job.queue = asked.queue
            AND (job.priority > asked.priority
                OR (job.priority = asked.priority AND job.position < asked.position))
        LIMIT {counted}
    ) AS before
) FROM workflow_node_jobs AS asked
WHERE asked.id = ANY (%(ids)s::bigint[]) AND asked.hold_reason = 'limit_full' AND asked.limit_key IS NOT NULL
""".replace("{counted}", str(COUNTED))
# The programs that some hooks wait for, with the key by which they do.
BINARIES: Final = _BINARIES.sql("""
SELECT wanted.host_label, wanted.name, {columns}
FROM unnest(%(hosts)s::text[], %(names)s::text[]) AS wanted (host_label, name)
JOIN machines ON machines.host_label = wanted.host_label
JOIN binaries ON binaries.machine_id = machines.id AND binaries.name = wanted.name
""")
# Of each lock the jobs that run with it.
HOLDERS_OF_EACH: Final = per_family("""
SELECT wanted.lock, holder.id, holder.claimed_by, holder.started_at
FROM unnest(%(locks)s::text[], %(elsewhere)s::text[]) AS wanted (lock, elsewhere) CROSS JOIN LATERAL (
    SELECT id, claimed_by, started_at FROM {table}
    WHERE status = 'running' AND host_lock IN (wanted.lock, wanted.elsewhere)
    ORDER BY started_at
    LIMIT 100
) AS holder
""")


@dataclass(frozen=True, slots=True)
class _OfQueues:
    """What holds for every job of a queue."""

    workers: list[Standing]
    at_work: list[AtWork]
    wishes: list[WorkerControl]

    def workers_of(self, queue: str) -> list[Standing]:
        return [one for one in self.workers if one.queue == queue]

    def at_work_of(self, workers: Iterable[Standing]) -> list[AtWork]:
        names = {one.worker_id for one in workers}
        return [one for one in self.at_work if one.worker_id in names]

    def wishes_of(self, queue: str) -> list[WorkerControl]:
        return [one for one in self.wishes if one.queue in (queue, "*")]


class RunJobsRepository:
    """Reads on the caller's connection; changes nothing."""

    def __init__(self, conn: Handle) -> None:
        self._conn = conn

    def circumstances(
        self,
        run: WorkflowRun,
        job_ids: Collection[int],
        *,
        queues: Collection[str],
        alone: Collection[int],
        has_running: bool,
        counted_ahead: int = COUNTED_AHEAD,
    ) -> dict[int, Circumstances]:
        """Of jobs of a run those that are still there; how many come first is counted for those `alone`.

        What was asked of workers while a job waited is read where one runs, as it is told of these only.
        """
        if not job_ids:
            return {}
        reads = {
            "jobs": JOBS,
            "workers": STANDING_OF_QUEUES,
            "at_work": AT_WORK_IN_QUEUES,
            "wishes": BLOCKING_QUEUES,
        }
        # Each part is planned anew for each look, which costs more than to run it.
        reads |= {"ahead": AHEAD_OF_EACH} if alone else {}
        reads |= {"before": ASKED_BEFORE, "since": ASKED_SINCE} if has_running else {}
        params = {
            "ids": list(job_ids),
            "counted": list(alone),
            "queues": list(queues),
            "limit": counted_ahead + 1,
        }
        read = read_together(self._conn, NODE.table, reads, params)
        of_queues = _OfQueues(
            standings(read["workers"]),
            [AtWork(*row) for row in read["at_work"]],
            _WISHES.load(read["wishes"]),
        )
        jobs = {job.id: job for job in _JOBS.load([row[:-4] for row in read["jobs"]])}
        ahead = {job_id: min(int(count), counted_ahead + 1) for job_id, count in read.get("ahead", ())}
        before, since = _by_job(read.get("before", ())), _by_job(read.get("since", ()))
        rare = _Rare(self._conn, jobs.values())
        found = {}
        for *row, claimable, due, lapsed, now in read["jobs"]:
            job = jobs[_JOBS.read(row)["id"]]
            workers = of_queues.workers_of(job.queue)
            found[job.id] = Circumstances(
                family=NODE,
                job=job,
                now=now,
                claimable=claimable,
                due=due,
                lapsed=lapsed,
                ahead=ahead.get(job.id, 0),
                workers=workers,
                at_work=of_queues.at_work_of(workers),
                wishes=of_queues.wishes_of(job.queue),
                run=run,
                limit=rare.limit(job),
                binary=rare.binary(job),
                done_to_it=[],
                asked_before=before[job.id],
                asked_of_queue=since[job.id],
                lock_holders=rare.lock_holders(job),
                knowing=rare.knowing(job),
                steps=rare.steps[job.id],
                children=rare.children.get(job.id),
                counted_ahead=counted_ahead,
            )
        return found


def _by_job(rows: Rows) -> Mapping[int, list[AuditLog]]:
    entries: dict[int, list[AuditLog]] = defaultdict(list)
    for (job_id, *_), entry in zip(rows, _AUDIT.load([row[1:] for row in rows]), strict=True):
        entries[job_id].append(entry)
    return entries


_OF_KEYS: Final = {
    "caps": EFFECTIVE_OF_EACH,
    "slots": SLOTS_OF_KEYS,
    "lanes": BEFORE_EACH_IN_LANE,
    "lowered": FROM_CAPS,
}


class _Rare:
    """What only few jobs wait for: limits, programs and locks, read for all of them at once, if for any."""

    def __init__(self, conn: Handle, jobs: Iterable[WorkflowNodeJob]) -> None:
        waiting = [job for job in jobs if job.status in (JobStatus.QUEUED, JobStatus.SCHEDULED)]
        self._waiting = {job.id for job in waiting}
        keys = {job.limit_key for job in waiting if job.limit_key is not None}
        programs = {waited_for(job.hold_key) for job in waiting if _wants_program(job) and job.hold_key}
        locks = {lock_of(job.host_lock) for job in waiting if job.host_lock is not None}
        reads = _OF_KEYS if keys else {}
        reads = reads | {"programs": BINARIES} if programs else {}
        reads = reads | {f"held_{name}": sql for name, sql in HOLDERS_OF_EACH.items()} if locks else {}
        to_know = {
            (job.queue, name, published_as(job)) for job in waiting if (name := name_to_know(job)) is not None
        }
        reads = reads | ({"knowing": WHICH_KNOW} if to_know else {})
        parked = [job.id for job in waiting if job.hold_reason in PARKED]
        reads = reads | ({"steps": WAITING, "children": OPEN_CHILDREN_OF_EACH} if parked else {})
        params = {
            "family": NODE.name,
            "queues_known": [queue for queue, _, _ in to_know],
            "names_known": [name for _, name, _ in to_know],
            "names_published": [published for _, _, published in to_know],
            "stale_s": STALE_S,
            "ids": list(self._waiting),
            "keys": sorted(keys),
            "hosts": [host for host, _ in programs],
            "names": [name for _, name in programs],
            "locks": sorted(locks),
            "elsewhere": [key for lock in sorted(locks) for key in keys_of([lock]) if key != lock],
        }
        read = read_together(conn, NODE.table, reads, params) if reads else {}
        # What durable functions among them wait for.
        self.steps: dict[int, list[DurableStep]] = defaultdict(list)
        for step in steps_of(read.get("steps", ())):
            self.steps[step.job_id].append(step)
        self.children = {job_id: OpenChildren(*counts) for job_id, *counts in read.get("children", ())}
        self._knowing = KnowingWorkers.by_name(read.get("knowing", ()))
        self._caps = dict(_keyed(_LIMITS, read.get("caps", ()), 1))
        self._lowered: dict[str, int] = {key: int(most) for key, most in read.get("lowered", ())}
        self._slots = _SLOTS.load(read.get("slots", ()))
        self._before = {job_id: int(count) for job_id, count in read.get("lanes", ())}
        self._programs = dict(_keyed(_BINARIES, read.get("programs", ()), 2))
        self._holders = [
            (lock, LockHolder(family.name, *row))
            for family in FAMILIES
            for lock, *row in read.get(f"held_{family.name}", ())
        ]

    def limit(self, job: WorkflowNodeJob) -> Limit | None:
        """What its key is about."""
        key = job.limit_key
        if key is None or job.id not in self._waiting:
            return None
        before = self._before.get(job.id, 0) if job.hold_reason == LIMIT_FULL else 0
        slots = [slot for slot in self._slots if slot.limit_key == key]
        return Limit(in_force(self._caps.get((key,)), key), slots, before, self._lowered.get(key))

    def knowing(self, job: WorkflowNodeJob) -> KnowingWorkers | None:
        """Which workers know its module."""
        return self._knowing.get((job.queue, name_to_know(job) or ""))

    def binary(self, job: WorkflowNodeJob) -> Binary | None:
        """The program that it waits for."""
        is_waiting = _wants_program(job) and job.hold_key is not None
        return self._programs.get(waited_for(job.hold_key or "")) if is_waiting else None

    def lock_holders(self, job: WorkflowNodeJob) -> list[LockHolder]:
        """The jobs that run with its lock."""
        if job.host_lock is None or job.id not in self._waiting:
            return []
        return [holder for lock, holder in self._holders if lock == lock_of(job.host_lock)]


def _wants_program(job: WorkflowNodeJob) -> bool:
    return job.hold_reason == BINARY_MISSING


def _keyed(table: Table[Any], rows: Rows, key: int) -> Iterable[tuple[tuple[Any, ...], Any]]:
    """The instances of rows that begin with a key of so many columns, by it."""
    return zip((tuple(row[:key]) for row in rows), table.load([row[key:] for row in rows]), strict=True)
