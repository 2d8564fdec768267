"""Ingest jobs: enqueueing and reading; what is done with a claim is the same for both families.

Enqueueing is an INSERT in the caller's transaction: the job and its NOTIFY exist exactly if that commits.
What cannot be stored is refused before a statement runs, so that a refusal never spoils the transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache, partial
from typing import Any, Final

from queue_workflows.config import RESERVED_QUEUES
from queue_workflows.errors import ConfigurationError
from queue_workflows.models import IngestJob
from queue_workflows.repositories import fields as check
from queue_workflows.repositories.bulk import BulkTable, Enqueued, insert_many, insert_or_find
from queue_workflows.repositories.claimable import ClaimableRepository
from queue_workflows.repositories.claimed import ClaimedIngestJob
from queue_workflows.repositories.connection import Handle
from queue_workflows.repositories.families import INGEST
from queue_workflows.repositories.fields import PayloadLimits
from queue_workflows.repositories.table import Filters, Table
from queue_workflows.settings import check_queue_name
from queue_workflows.states import JobStatus

_TABLE: Final = Table(IngestJob)

# One row. Columns that are not named take the table's defaults, so that a producer needs no right to them.
ENQUEUE: Final = """
INSERT INTO ingest_jobs (
    task_name, queue, reason, args, dedupe_key, priority, limit_key, max_attempts, backoff_s, timeout_s,
    stall_timeout_s, host_lock, traceparent, run_at, status
)
SELECT
    %(task_name)s::text, %(queue)s::text, %(reason)s::text, %(args)s::jsonb, %(dedupe_key)s::text,
    %(priority)s::smallint, %(limit_key)s::text, %(max_attempts)s::smallint, %(backoff_s)s::float8,
    %(timeout_s)s::float8, %(stall_timeout_s)s::float8, %(host_lock)s::text, %(traceparent)s::text,
    COALESCE(due.at, statement_timestamp()),
    CASE WHEN due.at > statement_timestamp() THEN 'scheduled' ELSE 'queued' END
FROM (
    SELECT COALESCE(
        %(run_at)s::timestamptz, statement_timestamp() + make_interval(secs => %(delay_s)s::float8)
    ) AS at
) AS due
ON CONFLICT (task_name, dedupe_key) WHERE dedupe_key IS NOT NULL DO NOTHING
RETURNING id
"""
FIND: Final = """
SELECT id FROM ingest_jobs WHERE task_name = %(task_name)s::text AND dedupe_key = %(dedupe_key)s::text
"""
# wanted: the keys that were taken, numbered in the caller's order. taken: who has one; the LIMIT makes it a
# look-up per key, where without statistics a join would read the whole table.
FIND_MANY: Final = """
SELECT wanted.number, taken.id
FROM unnest(%(task_name)b::text[], %(dedupe_key)b::text[])
    WITH ORDINALITY AS wanted (task_name, dedupe_key, number)
CROSS JOIN LATERAL (
    SELECT id FROM ingest_jobs
    WHERE ingest_jobs.task_name = wanted.task_name AND ingest_jobs.dedupe_key = wanted.dedupe_key
    LIMIT 1
) AS taken
"""
FETCH: Final = _TABLE.sql("SELECT {columns} FROM ingest_jobs WHERE id = %(id)s::bigint")
COUNTS: Final = """
SELECT queue, status, count(*) FROM ingest_jobs GROUP BY queue, status ORDER BY queue, status
"""
_BULK: Final = BulkTable(
    name="ingest_jobs",
    columns=(
        ("task_name", "text"),
        ("queue", "text"),
        ("reason", "text"),
        ("args", "jsonb"),
        ("dedupe_key", "text"),
        ("priority", "smallint"),
        ("limit_key", "text"),
        ("max_attempts", "smallint"),
        ("backoff_s", "float8"),
        ("timeout_s", "float8"),
        ("stall_timeout_s", "float8"),
        ("host_lock", "text"),
        ("traceparent", "text"),
        ("run_at", "timestamptz"),
        ("delay_s", "float8"),
    ),
    key=("task_name", "dedupe_key"),
    key_where="WHERE dedupe_key IS NOT NULL",
    find=FIND_MANY,
)
_MAX_ATTEMPTS: Final = int(_TABLE.default("max_attempts"))
# What may be left out, each with its check.
_OPTIONS: Final[tuple[tuple[str, Callable[[str, Any], Any]], ...]] = (
    ("reason", partial(check.text, max_bytes=check.TEXT_BYTES)),
    ("dedupe_key", partial(check.text, max_bytes=check.KEY_BYTES)),
    ("limit_key", lambda _, key: check.limit_key(key)),
    ("max_attempts", partial(check.whole, at_least=1, at_most=check.SMALLINT_MAX)),
    ("backoff_s", partial(check.seconds_or_none, zero=True)),
    ("timeout_s", check.seconds),
    ("stall_timeout_s", check.seconds),
    ("host_lock", check.text),
    ("traceparent", check.text),
)
_NOT_GIVEN: Final[dict[str, Any]] = dict.fromkeys(_BULK.names)


@dataclass(frozen=True, slots=True, kw_only=True)
class NewIngestJob:
    """A job to enqueue. `run_at` or `delay` puts it off; a taken `dedupe_key` makes enqueueing it a no-op."""

    task_name: str
    queue: str
    args: dict[str, Any] | None = None
    reason: str | None = None
    dedupe_key: str | None = None
    priority: int = 5
    run_at: datetime | None = None
    delay: timedelta | float | None = None
    limit_key: str | None = None
    max_attempts: int | None = None
    backoff_s: float | None = None
    timeout_s: float | None = None
    stall_timeout_s: float | None = None
    host_lock: str | None = None
    traceparent: str | None = None


class IngestJobRepository(ClaimableRepository[IngestJob, ClaimedIngestJob]):
    """Ingest jobs on the caller's connection; `max_attempts` is for jobs that do not say."""

    _table = _TABLE
    _family = INGEST
    _claimed = ClaimedIngestJob

    def __init__(
        self,
        conn: Handle,
        *,
        payload_limits: PayloadLimits | None = None,
        max_attempts: int = _MAX_ATTEMPTS,
    ) -> None:
        super().__init__(conn, payload_limits=payload_limits)
        self._max_attempts = check.whole("max_attempts", max_attempts, 1, check.SMALLINT_MAX)

    def enqueue(
        self,
        task_name: str,
        *,
        queue: str,
        args: dict[str, Any] | None = None,
        reason: str | None = None,
        dedupe_key: str | None = None,
        priority: int = 5,
        run_at: datetime | None = None,
        delay: timedelta | float | None = None,
        limit_key: str | None = None,
        max_attempts: int | None = None,
        backoff_s: float | None = None,
        timeout_s: float | None = None,
        stall_timeout_s: float | None = None,
        host_lock: str | None = None,
        traceparent: str | None = None,
    ) -> Enqueued:
        """Insert one job, or find the one that has its `dedupe_key`, waiting for whoever holds that open.

        A job due later is 'scheduled' and any other 'queued', as the database's clock has it.
        """
        options = (
            *(reason, dedupe_key, limit_key, max_attempts, backoff_s, timeout_s),
            *(stall_timeout_s, host_lock, traceparent),
        )
        params = self._checked(task_name, queue, args, priority, options, run_at=run_at, delay=delay)
        return Enqueued(*insert_or_find(self._sql, ENQUEUE, FIND, params))

    def enqueue_many(self, jobs: Iterable[NewIngestJob]) -> list[Enqueued]:
        """Insert jobs in few statements; the answers are in the order of the jobs, which is also their place.

        All are checked before the first is sent, so a bad one means that none is written. Of several with one
        `dedupe_key` the first is created and the rest point at it.
        """
        return insert_many(self._sql, _BULK, check.each("jobs", jobs, self._row))

    def fetch(self, job_id: int) -> IngestJob | None:
        """One job, or None."""
        return self._first(FETCH, {"id": job_id})

    def counts(self) -> dict[str, dict[str, int]]:
        """How many jobs there are, by queue and status."""
        return self._counts(COUNTS)

    def _row(self, job: NewIngestJob) -> check.Row:
        """The values of `_BULK.columns`, each checked."""
        options = (
            *(job.reason, job.dedupe_key, job.limit_key, job.max_attempts, job.backoff_s, job.timeout_s),
            *(job.stall_timeout_s, job.host_lock, job.traceparent),
        )
        checked = self._checked(
            job.task_name, job.queue, job.args, job.priority, options, run_at=job.run_at, delay=job.delay
        )
        return tuple(checked.values())

    def _checked(
        self,
        task_name: str,
        queue: str,
        args: dict[str, Any] | None,
        priority: int,
        options: tuple[Any, ...],
        *,
        run_at: datetime | None,
        delay: timedelta | float | None,
    ) -> dict[str, Any]:
        """The values by the names of `_BULK.columns` and in their order; `options` are in that of `_OPTIONS`.

        What is not given costs a look and no check: most jobs give little, and their producers wait.
        """
        values = _NOT_GIVEN.copy()
        values["task_name"] = check.text("task_name", task_name)
        values["queue"] = ingest_queue(queue)
        values["args"] = self._limits.json_object("args", args)
        values["priority"] = check.whole("priority", priority, 0, 9)
        values["max_attempts"] = self._max_attempts
        for (name, checked), value in zip(_OPTIONS, options, strict=True):
            if value is not None:
                values[name] = checked(name, value)
        if run_at is not None or delay is not None:
            values["run_at"], values["delay_s"] = check.due(run_at, delay)
        return values

    # Last, because its name hides the builtin from the annotations below it.
    def list(
        self,
        *,
        queue: str | None = None,
        task_name: str | None = None,
        status: str | Iterable[str] | None = None,
        dedupe_key: str | None = None,
        limit_key: str | None = None,
        schedule_name: str | None = None,
        claimed_by: str | None = None,
        created_from: datetime | None = None,
        created_before: datetime | None = None,
        limit: int = 100,
        after: int | None = None,
        newest_first: bool = True,
    ) -> list[IngestJob]:
        """Jobs by id; `after` is the id that the page before ended with."""
        filters = Filters()
        filters.add("queue = %(queue)s::text", queue=queue)
        filters.add("task_name = %(task_name)s::text", task_name=task_name)
        filters.status(status, JobStatus)
        filters.add("dedupe_key = %(dedupe_key)s::text", dedupe_key=dedupe_key)
        filters.add("limit_key = %(limit_key)s::text", limit_key=limit_key)
        filters.add("schedule_name = %(schedule_name)s::text", schedule_name=schedule_name)
        filters.add("claimed_by = %(claimed_by)s::text", claimed_by=claimed_by)
        filters.created(created_from, created_before)
        return self._page(filters, by="id", after=after, limit=limit, newest_first=newest_first)


def ingest_queue(queue: str) -> str:
    """A queue that ingest jobs may use; which of them this host app has is for the public face to say."""
    return _unreserved(check.text("queue", queue))


@lru_cache(maxsize=256)
def _unreserved(queue: str) -> str:
    if check_queue_name(queue).lower() in RESERVED_QUEUES:
        raise ConfigurationError(
            f"the queue {queue!r} is reserved for node jobs", advice="use one of the host app's ingest queues"
        )
    return queue
