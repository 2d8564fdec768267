"""Everything that decides whether a job runs, read in one place for `qwf explain`.

Whether a job could be claimed, is due or has lost its lease is asked by the very fragments of the claim and
the sweeps; which workers may work and what keeps them from it, by the words in which they ask themselves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, TypeAlias

from queue_workflows.config import HOOKS_QUEUE
from queue_workflows.models import (
    AuditLog,
    Binary,
    ConcurrencyLimit,
    DurableStep,
    IngestJob,
    LimitSlot,
    WorkerControl,
    WorkflowNodeJob,
    WorkflowRun,
)
from queue_workflows.repositories.audit_log import AuditRepository
from queue_workflows.repositories.claims.by_host_lock import ALL_HOLDERS, LockHolder, keys_of, lock_of
from queue_workflows.repositories.claims.claim import CLAIMABLE, CLAIMABLE_ALONE
from queue_workflows.repositories.claims.sweep import DUE, LAPSED
from queue_workflows.repositories.durable.listing import OPEN_CHILDREN, STEPS, OpenChildren, steps_of
from queue_workflows.repositories.durable.waits import CHILDREN
from queue_workflows.repositories.hooks.binaries import BINARY_MISSING, BinaryRepository
from queue_workflows.repositories.jobs.ingest import IngestJobRepository
from queue_workflows.repositories.jobs.nodes import NodeJobRepository
from queue_workflows.repositories.limits.caps import LimitRepository
from queue_workflows.repositories.limits.lanes import LIMIT_FULL
from queue_workflows.repositories.limits.overview import LimitLineRepository
from queue_workflows.repositories.runs.runs import RunRepository
from queue_workflows.repositories.sql.arrays import texts
from queue_workflows.repositories.sql.connection import Handle
from queue_workflows.repositories.sql.families import INGEST, NODE, Family, per_family
from queue_workflows.repositories.sql.low_water_marks import PRIORITIES
from queue_workflows.repositories.sql.together import read_together
from queue_workflows.repositories.workers.code import WHICH_KNOW, KnowingWorkers
from queue_workflows.repositories.workers.control import WorkerControlRepository
from queue_workflows.repositories.workers.heartbeats import HeartbeatRepository
from queue_workflows.repositories.workers.model_memory import ModelMemoryRepository, ModelMemoryRow
from queue_workflows.repositories.workers.obedience import Standing
from queue_workflows.states import JobStatus

Job: TypeAlias = "IngestJob | WorkflowNodeJob"

# Beyond this many nobody counts: each is a row to read, maybe on a page of its own; in brief beyond fewer.
COUNTED_AHEAD: Final = 10_000
COUNTED_AHEAD_IN_BRIEF: Final = 1_000
# mark: each priority, and up to which position what stands there comes first; as the claim walks the index.
AHEAD: Final = per_family(
    """
SELECT count(*) FROM (
    SELECT FROM unnest(%(priorities)s::smallint[], %(before)s::bigint[]) AS mark (priority, position)
    CROSS JOIN LATERAL (
        SELECT FROM {table} WHERE {claimable} AND priority = mark.priority AND position < mark.position
        LIMIT %(limit)s::bigint
    ) AS job
    LIMIT %(limit)s::bigint
) AS ahead
""",
    claimable=CLAIMABLE,
)
# Of a suspect, besides, those before it in the order of suspects.
SUSPECTS_AHEAD: Final = per_family(
    """
SELECT count(*) FROM (
    SELECT FROM {table} WHERE {claimable_alone} AND (crash_count, -priority, position)
        < (%(crash_count)s::integer, -%(priority)s::integer, %(position)s::bigint)
    LIMIT %(limit)s::bigint
) AS ahead
""",
    claimable_alone=CLAIMABLE_ALONE,
)
# Of hooks those of the same kind that its host claims before it: a run is claimed from on its own host alone,
# and there, within a priority, before those of any host and of no host.
AHEAD_OF_HOOK: Final = (
    AHEAD[NODE.name]
    .replace("AND NOT suspect", "")
    .replace(
        "priority = mark.priority",
        """priority = mark.priority AND background = %(background)s::boolean
            AND COALESCE(pinned_host, %(host)s::text, '') IN (COALESCE(%(host)s::text, ''), '*')
            AND (pinned_host IS NOT DISTINCT FROM %(host)s::text OR mark.priority > %(own)s::smallint)""",
    )
)
# The row against the predicates, for a worker that has nothing else; and the clock that they go by. No row of
# the table is none of this: it has moved to the history, or was pruned meanwhile.
JUDGED: Final = per_family(
    """
SELECT COALESCE({claimable} OR {claimable_alone}, false), COALESCE({due}, false),
    COALESCE(status = 'running' AND {lapsed}, false), statement_timestamp()
FROM (SELECT) AS look LEFT JOIN {table} ON id = %(id)s::bigint
""",
    claimable=CLAIMABLE,
    claimable_alone=CLAIMABLE_ALONE,
    due=DUE,
    lapsed=LAPSED,
)
# What the workers of a queue are at, the oldest first.
AT_WORK: Final = per_family("""
SELECT claimed_by, id, started_at FROM {table}
WHERE status = 'running' AND claimed_by = ANY (%(workers)s::text[])
ORDER BY started_at
""")
LAST_POSITION: Final = 2**63 - 1
# As after which a worker counts as gone, where no settings are at hand.
STALE_S: Final = 30.0
# Jobs on hold for these wait for a worker that knows them.
_FOR_WHAT_IT_IS: Final = ("unknown_task", "unknown_module")
_COUNTS: Final = ("ahead", "suspects")


@dataclass(frozen=True, slots=True)
class AtWork:
    """A job that keeps a worker busy."""

    worker_id: str
    job_id: int
    since: datetime


@dataclass(frozen=True, slots=True)
class Limit:
    """What a job's limit key is about: what was set for it, its holders, the jobs before it in the lane.

    A cap that has adapted is less than `adapts_from`.
    """

    limit: ConcurrencyLimit | None
    slots: list[LimitSlot]
    before: int = 0
    adapts_from: int | None = None


@dataclass(frozen=True, slots=True)
class Circumstances:
    """A job and all that its fate depends on, as of `now` of the database's clock."""

    family: Family
    job: Job
    now: datetime
    claimable: bool
    due: bool
    lapsed: bool
    ahead: int
    workers: list[Standing]
    at_work: list[AtWork]
    wishes: list[WorkerControl]
    run: WorkflowRun | None
    limit: Limit | None
    binary: Binary | None
    done_to_it: list[AuditLog]
    asked_before: list[AuditLog]
    asked_of_queue: list[AuditLog]
    lock_holders: list[LockHolder]
    # Which workers know its task or module, of a job that waits.
    knowing: KnowingWorkers | None = None
    # What its model took of each kind of device.
    model_memory: Sequence[ModelMemoryRow] = ()
    # To how many it was counted what comes first; one more than that is more.
    counted_ahead: int = COUNTED_AHEAD
    # What is stored of a durable function, and the children that it waits for.
    steps: Sequence[DurableStep] = ()
    children: OpenChildren | None = None


def name_to_know(job: Job) -> str | None:
    """The task or module that a worker has to know for a job which waits; None where that is no question."""
    if job.queue == HOOKS_QUEUE:
        return None
    if job.status != JobStatus.QUEUED and job.hold_reason not in _FOR_WHAT_IT_IS:
        return None
    name = job.node_module if isinstance(job, WorkflowNodeJob) else job.task_name
    # On hold for a version of it, as `film@1`.
    return job.hold_key if (job.hold_key or "").startswith(f"{name}@") else name


def published_as(job: Job) -> str | None:
    """As what workers publish it: a node's module alone, as none is imported to see its versions."""
    return job.node_module if isinstance(job, WorkflowNodeJob) else name_to_know(job)


def waited_until(job: Job) -> datetime | None:
    """When a job was claimed last, or ended without that; None while it waits.

    Only a job that runs, or ended from there, names a worker: of another `started_at` is an attempt before.
    """
    return job.started_at if job.claimed_by is not None else job.finished_at


class ExplainingRepository:
    """Reads circumstances on the caller's connection; changes nothing."""

    def __init__(self, conn: Handle, *, stale_s: float = STALE_S) -> None:
        self._conn = conn
        self._stale_s = stale_s
        self._last_run: WorkflowRun | None = None

    def circumstances(self, family: Family, job_id: int, *, brief: bool = False) -> Circumstances | None:
        """What there is to know about a job, or None where there is none; in brief less far counted."""
        job = self.job(family, job_id)
        if job is None:
            return None
        counted_ahead = COUNTED_AHEAD_IN_BRIEF if brief else COUNTED_AHEAD
        reads, params = _judged(family, job, counted_ahead)
        reads, params = reads | {"steps": STEPS}, params | {"family": family.name}
        if job.hold_reason == CHILDREN:
            reads = reads | {"children": OPEN_CHILDREN}
        if (name := name_to_know(job)) is not None:
            reads = reads | {"knowing": WHICH_KNOW}
            params = params | {
                "queues_known": [job.queue],
                "names_known": [name],
                "names_published": [published_as(job)],
                "stale_s": self._stale_s,
            }
        read = read_together(self._conn, family.table, reads, params)
        workers = HeartbeatRepository(self._conn).standing(queue=job.queue)
        claimable, due, lapsed, now = read["judged"][0]
        ahead = sum(int(read[name][0][0]) for name in _COUNTS if name in read) if claimable else 0
        at_work, lock_holders = self._running(family, job, workers)
        done_to_it, asked_before, asked_of_queue = AuditRepository(self._conn).around_job(
            (family.title, str(job_id)), job.queue, since=job.created_at, until=waited_until(job)
        )
        return Circumstances(
            family=family,
            job=job,
            now=now,
            claimable=claimable,
            due=due,
            lapsed=lapsed,
            ahead=min(ahead, counted_ahead + 1),
            workers=workers,
            at_work=at_work,
            wishes=WorkerControlRepository(self._conn).blocking("*", job.queue),
            run=self._run(job),
            limit=self._limit(family, job),
            binary=self._binary(job),
            done_to_it=done_to_it,
            asked_before=asked_before,
            asked_of_queue=asked_of_queue,
            lock_holders=lock_holders,
            steps=steps_of(read["steps"]),
            children=OpenChildren(*read["children"][0]) if "children" in read else None,
            knowing=next(iter(KnowingWorkers.by_name(read.get("knowing", ())).values()), None),
            model_memory=self._model_memory(job),
            counted_ahead=counted_ahead,
        )

    def job(self, family: Family, job_id: int) -> Job | None:
        """The row, or None."""
        if family is INGEST:
            return IngestJobRepository(self._conn).fetch(job_id)
        return NodeJobRepository(self._conn).fetch(job_id)

    def families(self, job_id: int) -> list[Family]:
        """The families that have a job of this id."""
        return [family for family in (INGEST, NODE) if self.job(family, job_id) is not None]

    def _running(
        self, family: Family, job: Job, workers: list[Standing]
    ) -> tuple[list[AtWork], list[LockHolder]]:
        """What these workers are at, and what runs with the lock that a job waits for."""
        reads = {"at_work": AT_WORK[family.name]}
        params: dict[str, Any] = {"workers": [one.worker_id for one in workers]}
        if job.host_lock is not None and job.status in (JobStatus.QUEUED, JobStatus.SCHEDULED):
            reads["holders"] = ALL_HOLDERS
            params["keys"] = texts(keys_of([lock_of(job.host_lock)]))
        read = read_together(self._conn, family.table, reads, params)
        holders = [LockHolder(*row) for row in read.get("holders", ())]
        return [AtWork(*row) for row in read["at_work"]], holders

    def _run(self, job: Job) -> WorkflowRun | None:
        """The run of a job; its document, which may be large, is read once for several jobs of the run."""
        if not isinstance(job, WorkflowNodeJob):
            return None
        self._last_run = RunRepository(self._conn).fetch(job.run_id, known=self._last_run)
        return self._last_run

    def _model_memory(self, job: Job) -> Sequence[ModelMemoryRow]:
        """What is known of the model of a job that waits for a worker."""
        model = getattr(job, "required_model", None)
        if model is None or job.status not in (JobStatus.QUEUED, JobStatus.SCHEDULED):
            return ()
        return ModelMemoryRepository(self._conn).read(model=model)

    def _binary(self, job: Job) -> Binary | None:
        """The program that a hook waits for."""
        if job.hold_reason != BINARY_MISSING or job.hold_key is None:
            return None
        return BinaryRepository(self._conn).waited_for(job.hold_key)

    def _limit(self, family: Family, job: Job) -> Limit | None:
        key = job.limit_key
        if key is None or job.status not in (JobStatus.QUEUED, JobStatus.SCHEDULED):
            return None
        limits, before = LimitRepository(self._conn), 0
        if job.hold_reason == LIMIT_FULL:
            lines = LimitLineRepository(self._conn)
            before = lines.before_in_lane(family.table, key, job.queue, job.priority, job.position)
        limit, slots, adapts_from = limits.held(key)
        return Limit(limit, slots, before, adapts_from)


def _judged(family: Family, job: Job, counted_ahead: int) -> tuple[dict[str, str], dict[str, Any]]:
    """What judges a job and counts those that come first, which is not asked of one that is not queued."""
    reads = {"judged": JUDGED[family.name]}
    params: dict[str, Any] = {"id": job.id, "queue": job.queue, "limit": counted_ahead + 1}
    if job.status != JobStatus.QUEUED:
        return reads, params
    first = [priority for priority in PRIORITIES if priority >= job.priority]
    params |= {"priorities": first, "before": [LAST_POSITION] * (len(first) - 1) + [job.position]}
    if isinstance(job, WorkflowNodeJob) and job.queue == HOOKS_QUEUE:
        params |= {"host": job.pinned_host, "background": job.background, "own": job.priority}
        return reads | {"ahead": AHEAD_OF_HOOK}, params
    reads["ahead"] = AHEAD[family.name]
    if job.suspect:
        # All that is not suspect, and the suspects before it.
        reads["suspects"] = SUSPECTS_AHEAD[family.name]
        params |= {"priorities": list(PRIORITIES), "before": [LAST_POSITION] * len(PRIORITIES)}
        params |= {name: getattr(job, name) for name in ("crash_count", "priority", "position")}
    return reads, params
