"""The next jobs of a queue, in the order in which a worker claims them, and what each will meet there.

The order is that of the claim's own statements, without their locks: what stands before a job here is claimed
before it. Of the queue `gpu` it is the order for a worker that has no model loaded yet.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from queue_workflows.config import GPU_QUEUE, HOOKS_QUEUE, RESERVED_QUEUES
from queue_workflows.repositories.claims.by_host_lock import keys_of, lock_of
from queue_workflows.repositories.claims.claim import CLAIMABLE_ALONE, NEXT, SUSPECTS_IN_ORDER
from queue_workflows.repositories.claims.claim_by_model import CLAIM_WARM, LOOKED_AT, Preference
from queue_workflows.repositories.claims.claim_by_model import claim_params as by_model_params
from queue_workflows.repositories.limits.in_force import CAP
from queue_workflows.repositories.reports.job_listing import written
from queue_workflows.repositories.sql import checks as check
from queue_workflows.repositories.sql.arrays import texts
from queue_workflows.repositories.sql.connection import Handle, Statements
from queue_workflows.repositories.sql.families import INGEST, NODE, Family, per_family
from queue_workflows.repositories.sql.low_water_marks import UNMARKED, marks_text
from queue_workflows.repositories.sql.table import LONGEST_PAGE

_LOCKED: Final = "FOR NO KEY UPDATE SKIP LOCKED"
_COLUMNS: Final = {
    INGEST.name: "NULL::text, NULL::text",
    NODE.name: "required_model, pinned_host",
}
# line: the claim's rows, numbered as they come.
_IN_LINE: Final = """, line AS MATERIALIZED (
    SELECT id, row_number() OVER () AS place FROM {rows}
)
SELECT job.id, {title}, {run}, job.priority, job.position, job.run_at, job.attempt, job.suspect,
    job.limit_key, job.host_lock, {own}
FROM line JOIN {table} AS job ON job.id = line.id
WHERE job.id = ANY (ARRAY(SELECT id FROM line))
ORDER BY line.place
"""


def _in_line(family: Family, first: str, rows: str) -> str:
    read = _IN_LINE.replace("{rows}", rows).replace("{own}", _COLUMNS[family.name])
    return written(first + read, family)


_NEXT: Final = {
    name: "WITH " + sql.replace(_LOCKED, "") for name, sql in per_family("{next}", next=NEXT).items()
}
# What is claimed without regard to models.
BY_AGE: Final = {
    INGEST.name: _in_line(INGEST, _NEXT[INGEST.name], "next"),
    NODE.name: _in_line(NODE, _NEXT[NODE.name], "next"),
}
# Of hooks a suspect keeps its place: the worker that claims it is alone with it in the foreground.
OF_HOOKS: Final = BY_AGE[NODE.name].replace("AND NOT suspect", "")
# By model: the candidates of the claim, of which it takes the first that nobody else is claiming.
BY_MODEL: Final = _in_line(
    NODE,
    CLAIM_WARM["high"]
    .partition(", next AS MATERIALIZED")[0]
    # A claim looks at some; here as many are looked at as are asked for.
    .replace(f"(SELECT {LOOKED_AT})", "%(limit)s::bigint"),
    "candidates",
)
# suspects: those that come after all others.
_SUSPECTS: Final = """WITH suspects AS MATERIALIZED (
    SELECT id FROM {table} WHERE {claimable_alone} ORDER BY {suspects_in_order} LIMIT %(limit)s::bigint
)""".replace("{claimable_alone}", CLAIMABLE_ALONE).replace("{suspects_in_order}", SUSPECTS_IN_ORDER)
SUSPECTS: Final = {family.name: _in_line(family, _SUSPECTS, "suspects") for family in (INGEST, NODE)}
# Of each key how many slots are left, NULL where it has no cap; and what runs with one of the locks, on
# whatever host: few jobs run, whatever waits.
MEETS: Final = """
SELECT 'limit', keys.key, {cap} - (
    SELECT count(*) FROM limit_slots WHERE limit_key = keys.key AND lease_expires_at > statement_timestamp()
), NULL, NULL
FROM unnest(%(keys)s::text[]) AS keys (key)
UNION ALL
(
    SELECT 'lock', host_lock, NULL, job, claimed_by FROM (
        SELECT host_lock, 'ingest:' || id AS job, claimed_by FROM ingest_jobs
        WHERE status = 'running' AND host_lock = ANY (%(locks)s::text[])
        UNION ALL
        SELECT host_lock, 'node:' || id, claimed_by FROM workflow_node_jobs
        WHERE status = 'running' AND host_lock = ANY (%(locks)s::text[])
    ) AS holder
    LIMIT 1000
)
""".replace("{cap}", CAP.replace("{key}", "keys.key"))


@dataclass(frozen=True, slots=True)
class QueuedJob:
    """A job that can be claimed, as it stands in the line of its queue."""

    family: str
    id: int
    title: str
    run_id: uuid.UUID | None
    priority: int
    position: int
    run_at: datetime
    attempt: int
    suspect: bool
    limit_key: str | None
    host_lock: str | None
    required_model: str | None
    pinned_host: str | None

    @property
    def name(self) -> str:
        """The job as commands take it."""
        return f"{self.family}:{self.id}"


@dataclass(frozen=True, slots=True)
class LockUse:
    """A running job that has a lock of its machine, and the worker that runs it."""

    job: str
    worker_id: str


@dataclass(frozen=True, slots=True)
class Line:
    """The next jobs of a queue, how much is left of their limits, and what has their locks.

    A key without a cap is not in `left`.
    """

    jobs: Sequence[QueuedJob]
    left: Mapping[str, int]
    locks: Mapping[str, LockUse]


class NextJobsRepository:
    """Reads the line of a queue on the caller's connection; changes and locks nothing."""

    def __init__(self, conn: Handle) -> None:
        self._conn = conn

    def line(self, queue: str, *, limit: int = 50) -> Line:
        """The first jobs of a queue that can be claimed, suspects behind all others."""
        family = family_of(queue)
        params = {"queue": check.text("queue", queue), "limit": check.whole("limit", limit, 1, LONGEST_PAGE)}
        jobs = self._jobs(family, *_statement_of(family, params))
        if len(jobs) < limit and queue != HOOKS_QUEUE:
            jobs += self._jobs(family, SUSPECTS[family.name], params | {"limit": limit - len(jobs)})
        return Line(jobs, *self._met(jobs))

    def _jobs(self, family: Family, sql: str, params: Mapping[str, Any]) -> list[QueuedJob]:
        rows = Statements(self._conn, family.table).rows(sql, params)
        return [QueuedJob(family.name, *row) for row in rows]

    def _met(self, jobs: Sequence[QueuedJob]) -> tuple[dict[str, int], dict[str, LockUse]]:
        """What is left of limits by their keys, and what holds locks by the locks' own names."""
        keys = dict.fromkeys(job.limit_key for job in jobs if job.limit_key is not None)
        locks = {lock_of(job.host_lock) for job in jobs if job.host_lock is not None}
        left: dict[str, int] = {}
        used: dict[str, LockUse] = {}
        if not keys and not locks:
            return left, used
        params = {"keys": texts(keys), "locks": texts(keys_of(sorted(locks)))}
        for about, key, free, job, worker in Statements(self._conn, "limit_slots").rows(MEETS, params):
            if about == "lock":
                used[lock_of(key)] = LockUse(job, worker)
            elif free is not None:
                left[key] = int(free)
        return left, used


def family_of(queue: str) -> Family:
    """The family that workers of a queue claim from."""
    return NODE if queue in RESERVED_QUEUES else INGEST


def _statement_of(family: Family, params: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    queue = params["queue"]
    if queue == GPU_QUEUE:
        return BY_MODEL, by_model_params(queue, Preference(), "nobody", 1.0) | {"limit": params["limit"]}
    statement = OF_HOOKS if queue == HOOKS_QUEUE else BY_AGE[family.name]
    return statement, dict(params) | {"marks": marks_text(UNMARKED)}
