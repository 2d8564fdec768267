"""Ingest jobs: enqueueing and reading; what is done with a claim is the same for both families.

Enqueueing is an INSERT in the caller's transaction: the job and its NOTIFY exist exactly if that commits.
What cannot be stored is refused before a statement runs, so that a refusal never spoils the transaction.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

import psycopg

from queue_workflows.models.rules import MAX_ATTEMPTS
from queue_workflows.repositories.claims.repository import ClaimableRepository, Claims
from queue_workflows.repositories.jobs.bulk_insert import Enqueued, insert_many, insert_or_find, swallowed
from queue_workflows.repositories.jobs.bulk_insert_with_lanes import with_lanes
from queue_workflows.repositories.jobs.ingest_rows import (
    BULK,
    NONE_GIVEN,
    PLAIN,
    IngestRows,
    NewIngestJob,
)
from queue_workflows.repositories.jobs.unique import Unique, UniqueRow, Wish, enqueue_unique
from queue_workflows.repositories.limits.lanes import FRONT, LANE_RUN_AT, LIMIT_FULL
from queue_workflows.repositories.sql import checks as check
from queue_workflows.repositories.sql.awaitable import awaitable
from queue_workflows.repositories.sql.checks import PayloadLimits, words_or_none
from queue_workflows.repositories.sql.claimed_job import ClaimedIngestJob
from queue_workflows.repositories.sql.columns import Columns
from queue_workflows.repositories.sql.connection import AsyncHandle, Handle
from queue_workflows.repositories.sql.families import INGEST
from queue_workflows.repositories.sql.prepared import Prepared
from queue_workflows.repositories.sql.table import Filters, Table
from queue_workflows.states import JobStatus

if TYPE_CHECKING:
    from queue_workflows.models import IngestJob

_TABLE: Final[Table[IngestJob]] = Table("ingest_jobs")

# laned: of the jobs that come with one key the first few ask whether there is room in front, and the others
# go to the lane. Producers may not look; they ask a function how much room there is.
KEYED_BULK: Final = with_lanes(
    BULK,
    status="""CASE WHEN laned THEN 'scheduled' ELSE CASE
            WHEN COALESCE({run_at}, statement_timestamp() + make_interval(secs => {delay_s}))
                > statement_timestamp()
            THEN 'scheduled' ELSE 'queued'
        END END""",
    source="""(SELECT *, CASE
        WHEN {limit_key} IS NULL OR false
            OR COALESCE({run_at}, statement_timestamp() + make_interval(secs => {delay_s}))
                > statement_timestamp()
            OR current_setting('transaction_isolation') = 'serializable' THEN false
        WHEN row_number() OVER (PARTITION BY {queue}, {limit_key} ORDER BY position) > {front} THEN true
        ELSE row_number() OVER (PARTITION BY {queue}, {limit_key} ORDER BY position)
            > qwf_front_room({queue}, {limit_key}, {front})
    END AS laned FROM given OFFSET 0) AS given""".replace("{front}", str(FRONT)),
)

# One row. Columns that are not named take the table's defaults, so that a producer needs no right to them.
ENQUEUE: Final = """
INSERT INTO ingest_jobs (
    task_name, queue, reason, args, dedupe_key, priority, limit_key, max_attempts, backoff_s, timeout_s,
    stall_timeout_s, host_lock, traceparent, max_crashes, at_most_once, run_at, status
)
SELECT
    %(task_name)s::text, %(queue)s::text, %(reason)s::text, %(args)s::jsonb, %(dedupe_key)s::text,
    %(priority)s::smallint, %(limit_key)s::text, %(max_attempts)s::smallint, %(backoff_s)s::float8,
    %(timeout_s)s::float8, %(stall_timeout_s)s::float8, %(host_lock)s::text, %(traceparent)s::text,
    %(max_crashes)s::smallint, %(at_most_once)s::boolean,
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
# The same for a job that says nothing but what it is, as most do: a third of the parameters, and no key that
# could be taken. Each of them costs the producer about as much as all checks together.
ENQUEUE_PLAIN: Final = """
INSERT INTO ingest_jobs (task_name, queue, args, priority, max_attempts, run_at)
VALUES (
    %(task_name)s::text, %(queue)s::text, %(args)s::jsonb, %(priority)s::smallint, %(max_attempts)s::smallint,
    statement_timestamp()
)
RETURNING id
"""
# The same for a job with a limit's key: due now, it may have to go into the key's lane. Not at SERIALIZABLE,
# where to look would make the caller depend on others; there the claim puts it aside. Apart, so that others
# neither pay for it nor need the rights.
ENQUEUE_KEYED: Final = (
    """
INSERT INTO ingest_jobs (
    task_name, queue, reason, args, dedupe_key, priority, limit_key, max_attempts, backoff_s, timeout_s,
    stall_timeout_s, host_lock, traceparent, max_crashes, at_most_once, run_at, status, hold_reason, hold_key
)
SELECT
    %(task_name)s::text, %(queue)s::text, %(reason)s::text, %(args)s::jsonb, %(dedupe_key)s::text,
    %(priority)s::smallint, %(limit_key)s::text, %(max_attempts)s::smallint, %(backoff_s)s::float8,
    %(timeout_s)s::float8, %(stall_timeout_s)s::float8, %(host_lock)s::text, %(traceparent)s::text,
    %(max_crashes)s::smallint, %(at_most_once)s::boolean,
    CASE WHEN placed.laned THEN {lane_run_at} ELSE COALESCE(placed.at, statement_timestamp()) END,
    CASE WHEN placed.laned OR placed.at > statement_timestamp() THEN 'scheduled' ELSE 'queued' END,
    CASE WHEN placed.laned THEN '{limit_full}' END,
    CASE WHEN placed.laned THEN %(limit_key)s::text END
FROM (
    SELECT due.at, CASE
        WHEN due.at > statement_timestamp() OR current_setting('transaction_isolation') = 'serializable'
        THEN false
        ELSE qwf_front_room(%(queue)s::text, %(limit_key)s::text, {front}) < 1
    END AS laned
    FROM (
        SELECT COALESCE(
            %(run_at)s::timestamptz, statement_timestamp() + make_interval(secs => %(delay_s)s::float8)
        ) AS at
    ) AS due
    OFFSET 0
) AS placed
ON CONFLICT (task_name, dedupe_key) WHERE dedupe_key IS NOT NULL DO NOTHING
RETURNING id
""".replace("{lane_run_at}", LANE_RUN_AT)
    .replace("{limit_full}", LIMIT_FULL)
    .replace("{front}", str(FRONT))
)
FIND: Final = """
SELECT id FROM ingest_jobs WHERE task_name = %(task_name)s::text AND dedupe_key = %(dedupe_key)s::text
"""
FETCH: Final = _TABLE.sql("SELECT {columns} FROM ingest_jobs WHERE id = %(id)s::bigint")
# One that is not in the table may have moved to the history, or come back from there: by one look at both.
FETCH_ANYWHERE: Final = _TABLE.sql(
    "SELECT {columns} FROM ingest_jobs_and_history AS ingest_jobs WHERE id = %(id)s::bigint"
)
COUNTS: Final = """
SELECT queue, status, count(*) FROM ingest_jobs_and_history GROUP BY queue, status ORDER BY queue, status
"""


class IngestJobRepository(ClaimableRepository["IngestJob", ClaimedIngestJob]):
    """Ingest jobs on the caller's connection; `max_attempts` is for jobs that do not say."""

    _table = _TABLE
    _family = INGEST
    _claims = Claims.of(INGEST)
    _claims_but = Claims.but(INGEST)
    _claimed = ClaimedIngestJob

    def __init__(
        self,
        conn: Handle | AsyncHandle,
        *,
        payload_limits: PayloadLimits | None = None,
        max_attempts: int = MAX_ATTEMPTS,
    ) -> None:
        super().__init__(conn, payload_limits=payload_limits)
        self._rows = IngestRows(self._limits, max_attempts)
        self._plain = Prepared(conn, ENQUEUE_PLAIN, PLAIN) if isinstance(conn, psycopg.Connection) else None

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
        max_crashes: int | None = None,
        at_most_once: bool | None = None,
    ) -> Enqueued:
        """Insert one job, or find the one that has its `dedupe_key`, waiting if that one is uncommitted.

        A job due later is 'scheduled' and any other 'queued', as the database's clock has it.
        """
        if at_most_once:
            max_attempts = check.once(max_attempts)
        options = (
            *(reason, dedupe_key, limit_key, max_attempts, backoff_s, timeout_s),
            *(stall_timeout_s, host_lock, traceparent, max_crashes, at_most_once),
        )
        if options != NONE_GIVEN or run_at is not None or delay is not None:
            params = self._rows.values(task_name, queue, args, priority, options, run_at=run_at, delay=delay)
            insert = ENQUEUE if limit_key is None else ENQUEUE_KEYED
            return Enqueued(*insert_or_find(self._sql, insert, FIND, params))
        ids: Sequence[Any] | None = None
        if self._plain is not None and self._plain.is_usable():
            ids = self._plain.column(self._rows.plain_texts(task_name, queue, args, priority))
        if ids is None:
            params = self._rows.plain(task_name, queue, args, priority)
            ids = [job_id for (job_id,) in self._sql.rows(ENQUEUE_PLAIN, params)]
        if not ids:
            raise swallowed()
        return Enqueued(int(ids[0]), True)

    def enqueue_many(self, jobs: Iterable[NewIngestJob]) -> list[Enqueued]:
        """Insert jobs in few statements; the answers are in the order of the jobs, which is also their place.

        All are checked before the first is sent, so a bad one means that none is written. Of several with one
        `dedupe_key` the first is created and the rest point at it.
        """
        unique: dict[int, Unique] = {}
        return self.enqueue_columns(self.columns(jobs, unique=unique), unique)

    def columns(
        self,
        jobs: Iterable[NewIngestJob],
        *,
        traceparent: str | None = None,
        unique: dict[int, Unique] | None = None,
    ) -> Columns:
        """The jobs as `enqueue_columns` takes them, all checked; `traceparent` is for those without one.

        `unique` is filled with what that is to be told of those which are to be unique.
        """
        return self._rows.columns(jobs, traceparent=traceparent, unique=unique)

    def enqueue_rows(self, rows: Sequence[check.Row]) -> list[Enqueued]:
        """Insert rows that `IngestRows` has checked; answers as from `enqueue_many`."""
        unique = {at: row.unique for at, row in enumerate(rows) if isinstance(row, UniqueRow)}
        return self.enqueue_columns(Columns.of(BULK.names, rows), unique)

    def enqueue_columns(self, rows: Columns, unique: Mapping[int, Unique] | None = None) -> list[Enqueued]:
        """Insert columns that `IngestRows` has made; answers as from `enqueue_many`."""
        if unique:
            return self._enqueue_some_unique(rows, unique)
        is_keyed = rows.same.get("limit_key", "") is not None
        return insert_many(self._sql, KEYED_BULK if is_keyed else BULK, rows)

    def _enqueue_some_unique(self, rows: Columns, unique: Mapping[int, Unique]) -> list[Enqueued]:
        """The others go with the first that are inserted, so that all of these keep their order."""
        names = ("task_name", "queue", "args", "priority", "run_at", "delay_s")
        said = list(zip(*map(rows.values, names), strict=True))
        numbers, keys = sorted(unique), list(rows.values("dedupe_key"))
        others, done = [at for at in range(rows.count) if at not in unique], dict[int, Enqueued]()

        def insert(free: Mapping[int, str]) -> dict[int, Enqueued]:
            for place, key in free.items():
                keys[numbers[place]] = key
            chosen = sorted([*(numbers[place] for place in free), *others])
            others.clear()
            made = self.enqueue_columns(rows.with_column("dedupe_key", keys).picked(chosen)) if chosen else []
            done.update(zip(chosen, made, strict=True))
            return {place: done[numbers[place]] for place in free}

        wishes = [Wish(unique[at], *said[at]) for at in numbers]
        done.update(zip(numbers, enqueue_unique(self._sql, wishes, insert), strict=True))
        insert({})
        return [done[at] for at in range(rows.count)]

    def fetch(self, job_id: int) -> IngestJob | None:
        """One job, or None."""
        params = {"id": job_id}
        return self._first(FETCH, params) or self._first(FETCH_ANYWHERE, params)

    def counts(self) -> dict[str, dict[str, int]]:
        """How many jobs there are, by queue and status."""
        return self._counts(COUNTS)

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
        statuses = words_or_none("status", status, JobStatus)
        filters.status(statuses, JobStatus)
        filters.add("dedupe_key = %(dedupe_key)s::text", dedupe_key=dedupe_key)
        filters.add("limit_key = %(limit_key)s::text", limit_key=limit_key)
        filters.add("schedule_name = %(schedule_name)s::text", schedule_name=schedule_name)
        filters.add("claimed_by = %(claimed_by)s::text", claimed_by=claimed_by)
        filters.created(created_from, created_before)
        # What has a key or is of a schedule does not move.
        moves = dedupe_key is None and schedule_name is None
        source = INGEST.source(statuses) if moves else None
        return self._page(
            filters, by="id", after=after, limit=limit, newest_first=newest_first, source=source
        )

    # Awaited, on an asynchronous connection.
    aenqueue = awaitable(enqueue)
    aenqueue_many = awaitable(enqueue_many)
    afetch = awaitable(fetch)
    acounts = awaitable(counts)
    alist = awaitable(list)
