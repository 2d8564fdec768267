"""Node jobs: inserting what a run needs next, once, and reading it."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

from queue_workflows.errors import PayloadError
from queue_workflows.models.rules import MAX_ATTEMPTS
from queue_workflows.repositories.claims.operator_verbs import COUNTED
from queue_workflows.repositories.claims.repository import ClaimableRepository, Claims
from queue_workflows.repositories.jobs.bulk_insert import (
    DUE_UNLESS_GIVEN,
    BulkTable,
    Enqueued,
    insert_many,
    send_many,
)
from queue_workflows.repositories.jobs.bulk_insert_with_lanes import with_lanes
from queue_workflows.repositories.limits.lanes import FRONT
from queue_workflows.repositories.sql import checks as check
from queue_workflows.repositories.sql.arrays import id_array
from queue_workflows.repositories.sql.awaitable import awaitable
from queue_workflows.repositories.sql.claimed_job import ClaimedNodeJob
from queue_workflows.repositories.sql.columns import Columns
from queue_workflows.repositories.sql.families import NODE
from queue_workflows.repositories.sql.table import Filters, Table
from queue_workflows.settings import check_queue_name
from queue_workflows.states import JobStatus

if TYPE_CHECKING:
    from queue_workflows.models import WorkflowNodeJob

_TABLE: Final[Table[WorkflowNodeJob]] = Table("workflow_node_jobs")

FETCH: Final = _TABLE.sql("SELECT {columns} FROM workflow_node_jobs WHERE id = %(id)s::bigint")
COUNTS: Final = """
SELECT queue, status, count(*) FROM workflow_node_jobs
GROUP BY queue, status ORDER BY queue, status
"""
COUNTS_OF_RUN: Final = """
SELECT queue, status, count(*) FROM workflow_node_jobs WHERE run_id = %(run_id)s::uuid
GROUP BY queue, status ORDER BY queue, status
"""
# wanted: the keys that were taken, numbered in the caller's order. taken: the job that has one; the LIMIT
# makes it a look-up per key, where without statistics a join would read the whole table.
FIND_MANY: Final = """
SELECT wanted.number, taken.id
FROM unnest(%(run_id)b::uuid[], %(node_id)b::text[], %(map_index)b::integer[])
    WITH ORDINALITY AS wanted (run_id, node_id, map_index, number)
CROSS JOIN LATERAL (
    SELECT id FROM workflow_node_jobs AS job
    WHERE job.run_id = wanted.run_id AND job.node_id = wanted.node_id AND job.map_index = wanted.map_index
    LIMIT 1
) AS taken
"""
_BULK: Final = BulkTable(
    name="workflow_node_jobs",
    columns=(
        ("run_id", "uuid"),
        ("node_id", "text"),
        ("map_index", "integer"),
        ("kind", "text"),
        ("queue", "text"),
        ("node_module", "text"),
        ("plugin", "text"),
        ("inputs", "jsonb"),
        ("item", "jsonb"),
        ("priority", "smallint"),
        ("host_priority", "smallint"),
        ("required_model", "text"),
        ("step", "smallint"),
        ("background", "boolean"),
        ("pinned_host", "text"),
        ("limit_key", "text"),
        ("max_attempts", "smallint"),
        ("backoff_s", "float8"),
        ("timeout_s", "float8"),
        ("stall_timeout_s", "float8"),
        ("host_lock", "text"),
        ("traceparent", "text"),
        ("run_at", "timestamptz"),
        ("delay_s", "float8"),
        ("status", "text"),
        ("expires_at", "timestamptz"),
        ("expires_s", "float8"),
        ("survives_outage", "boolean"),
        ("max_crashes", "smallint"),
        ("at_most_once", "boolean"),
    ),
    made=DUE_UNLESS_GIVEN,
    only_for_made=("run_at", "delay_s", "status", "expires_at", "expires_s"),
    key=("run_id", "node_id", "map_index"),
    key_where="",
    find=FIND_MANY,
)


_NEW_VALUES: Final = ", ".join(
    f"{name} = excluded.{name}"
    for name in (
        "position",
        *dict(_BULK.made),
        *(name for name in _BULK.names if name not in (*_BULK.key, *_BULK.only_for_made)),
    )
)
# A row of an earlier time becomes as new, and what it went through before stays with it. Elements that have a
# result keep it, as long as they are the same.
_REOPENED: Final = """DO UPDATE SET
    generation = workflow_node_jobs.generation + 1, failures = 0, crash_count = 0, suspect = false,
    claimed_by = NULL, context_delta = NULL, progress = NULL, cancel_requested_at = NULL, {new_values}
WHERE workflow_node_jobs.status IN ('completed', 'skipped', 'failed', 'cancelled') AND NOT (
    workflow_node_jobs.status IN ('completed', 'skipped') AND workflow_node_jobs.map_index >= 0
    AND workflow_node_jobs.item IS NOT DISTINCT FROM excluded.item
)""".replace("{new_values}", _NEW_VALUES)
_OPENED: Final = replace(_BULK, on_conflict=_REOPENED)
# The same where some have a limit's key. A job that is pinned to a host keeps its place, as nobody else may
# take it; a row of an earlier time waits from here on.
# laned: of the jobs that come with one key the first few look whether there is a lane, or enough in front,
# and the others go to the lane.
_KEYED_BULK: Final = with_lanes(
    _BULK,
    status="""CASE WHEN laned THEN 'scheduled' ELSE COALESCE({status}, CASE
            WHEN COALESCE({run_at}, statement_timestamp() + make_interval(secs => {delay_s}))
                > statement_timestamp()
            THEN 'scheduled' ELSE 'queued'
        END) END""",
    source="""(SELECT *, CASE
        WHEN {limit_key} IS NULL OR {status} IS NOT NULL OR {pinned_host} IS NOT NULL
            OR COALESCE({run_at}, statement_timestamp() + make_interval(secs => {delay_s}))
                > statement_timestamp()
            OR current_setting('transaction_isolation') = 'serializable' THEN false
        WHEN row_number() OVER (PARTITION BY {queue}, {limit_key} ORDER BY position) > {front} THEN true
        ELSE (
            (
                SELECT true FROM workflow_node_jobs AS lane
                WHERE hold_reason = 'limit_full' AND hold_key = {limit_key} AND lane.queue = {queue}
                LIMIT 1
            ) IS NOT NULL
            OR row_number() OVER (PARTITION BY {queue}, {limit_key} ORDER BY position) + (
                SELECT count(*) FROM (
                    SELECT FROM workflow_node_jobs AS front
                    WHERE COALESCE(status = 'queued', false) AND front.limit_key = {limit_key}
                        AND front.queue = {queue}
                    LIMIT {front}
                ) AS front
            ) > {front}
        )
    END AS laned FROM given OFFSET 0) AS given""".replace("{front}", str(FRONT)),
)
_KEYED_OPENED: Final = replace(
    _KEYED_BULK,
    on_conflict="""DO UPDATE SET
    hold_reason = excluded.hold_reason, hold_key = excluded.hold_key,
    started_at = CASE WHEN excluded.hold_reason IS NULL THEN workflow_node_jobs.started_at
        ELSE statement_timestamp() END,
    generation = workflow_node_jobs.generation + 1, failures = 0, crash_count = 0, suspect = false,
    claimed_by = NULL, context_delta = NULL, progress = NULL, cancel_requested_at = NULL, {new_values}
WHERE workflow_node_jobs.status IN ('completed', 'skipped', 'failed', 'cancelled') AND NOT (
    workflow_node_jobs.status IN ('completed', 'skipped') AND workflow_node_jobs.map_index >= 0
    AND workflow_node_jobs.item IS NOT DISTINCT FROM excluded.item
)""".replace("{new_values}", _NEW_VALUES),
)
# With or without a key, where nobody has retried them: the deaths of workers that they shared count on in the
# generation that begins.
_OPENED_AGAIN: Final = replace(
    _KEYED_BULK,
    on_conflict="""DO UPDATE SET
    hold_reason = excluded.hold_reason, hold_key = excluded.hold_key,
    started_at = CASE WHEN excluded.hold_reason IS NULL THEN workflow_node_jobs.started_at
        ELSE statement_timestamp() END,
    generation = workflow_node_jobs.generation + 1, failures = 0, errors = COALESCE((
        SELECT jsonb_agg(CASE
            WHEN one -> 'shared_in' = to_jsonb(workflow_node_jobs.generation)
            THEN one || jsonb_build_object('shared_in', workflow_node_jobs.generation + 1) ELSE one
        END ORDER BY nth)
        FROM jsonb_array_elements(workflow_node_jobs.errors) WITH ORDINALITY AS told (one, nth)
    ), '[]'),
    claimed_by = NULL, context_delta = NULL, progress = NULL, cancel_requested_at = NULL, {new_values}
WHERE workflow_node_jobs.status IN ('completed', 'skipped', 'failed', 'cancelled')""".replace(
        "{new_values}", _NEW_VALUES
    ),
)
FINISHED_BEYOND: Final = """
SELECT count(*) FROM workflow_node_jobs
WHERE run_id = %(run_id)s::uuid AND node_id = %(node_id)s::text AND map_index >= %(start)s::integer
    AND status IN ('completed', 'skipped') AND item IS NOT NULL
"""
# What a retry set aside of a list that was longer then.
FORGET_BEYOND: Final = """
DELETE FROM workflow_node_jobs
WHERE run_id = %(run_id)s::uuid AND node_id = %(node_id)s::text AND map_index >= %(start)s::integer
    AND item IS NULL
"""


class NoItem(Enum):
    """Says that a job is for no element of a list, where None is an element like any other."""

    NO_ITEM = "no item"

    def __repr__(self) -> str:
        return self.name


NO_ITEM: Final = NoItem.NO_ITEM
_UNCLAIMABLE: Final = (None, JobStatus.SKIPPED, JobStatus.AWAITING_INPUT)


@dataclass(frozen=True, slots=True, kw_only=True)
class NewNodeJob:
    """A job of a run's node; a `for_each` node has one per element, told apart by `map_index`.

    A `status` is for rows that no worker is to claim: `skipped`, or `awaiting_input`, at most until
    `expires_at` or for `expires_s` seconds.
    """

    run_id: uuid.UUID
    node_id: str
    queue: str
    map_index: int = -1
    kind: str = "task"
    node_module: str | None = None
    plugin: str | None = None
    inputs: dict[str, Any] | None = None
    item: Any = NO_ITEM
    priority: int = 5
    host_priority: int = 0
    required_model: str | None = None
    step: int | None = None
    background: bool = False
    pinned_host: str | None = None
    run_at: datetime | None = None
    delay: timedelta | float | None = None
    limit_key: str | None = None
    max_attempts: int | None = None
    backoff_s: float | None = None
    timeout_s: float | None = None
    stall_timeout_s: float | None = None
    host_lock: str | None = None
    traceparent: str | None = None
    status: JobStatus | None = None
    expires_at: datetime | None = None
    expires_s: float | None = None
    survives_outage: bool = False
    max_crashes: int | None = None
    at_most_once: bool = False


def _status(status: JobStatus | None) -> str | None:
    if status not in _UNCLAIMABLE:
        raise PayloadError(
            f"a new node job cannot be {status}",
            path="status",
            advice="give none, skipped, or awaiting_input",
        )
    return None if status is None else status.value


def _is_keyed(rows: Columns) -> bool:
    return rows.same.get("limit_key", "") is not None


def _refuse_pinned(queue: str, host: str | None) -> None:
    """Only the claim of hooks goes by a host, so nobody else may count on one."""
    if host is not None and queue != "hooks":
        raise PayloadError(
            f"pinned_host cannot be asked for on the queue {queue}: its jobs are claimed on any host",
            path="pinned_host",
            advice="give the host a queue of its own",
        )


class NodeJobRepository(ClaimableRepository["WorkflowNodeJob", ClaimedNodeJob]):
    """Node jobs on the caller's connection."""

    _table = _TABLE
    _family = NODE
    _claims = Claims.of(NODE)
    _claims_but = Claims.but(NODE)
    _claimed = ClaimedNodeJob

    def insert_many(self, jobs: Iterable[NewNodeJob]) -> list[Enqueued]:
        """Insert jobs in few statements; a (run, node, element) that is there already stays as it is.

        All are checked before the first is sent. The answers are in the order of the jobs.
        """
        rows = self._columns(jobs)
        return insert_many(self._sql, _KEYED_BULK if _is_keyed(rows) else _BULK, rows)

    def open_many(self, jobs: Iterable[NewNodeJob]) -> list[Enqueued]:
        """Insert jobs; one that is over from an earlier time of its node opens a new generation instead.

        An element of a list that completed or was skipped stays so, if it is still the same. The answers are
        in the order of the jobs; those not created stay as they are.
        """
        rows = self._columns(jobs)
        return insert_many(self._sql, _KEYED_OPENED if _is_keyed(rows) else _OPENED, rows)

    def send_open(self, jobs: Iterable[NewNodeJob]) -> None:
        """`open_many` for jobs that are no elements of lists, where nobody wants to know their ids."""
        rows = self._columns(jobs)
        send_many(self._sql, _KEYED_OPENED if _is_keyed(rows) else _OPENED, rows)

    def send_open_again(self, jobs: Iterable[NewNodeJob]) -> None:
        """`send_open` where nobody has retried them: the workers that died of one before still count."""
        send_many(self._sql, _OPENED_AGAIN, self._columns(jobs))

    def finished_beyond(self, run_id: uuid.UUID, node_id: str, start: int) -> int:
        """How many elements of a list have a result from an earlier time, from `start` on."""
        params = {"run_id": run_id, "node_id": node_id, "start": start}
        return int(self._sql.rows(FINISHED_BEYOND, params)[0][0])

    def send_forget_beyond(self, run_id: uuid.UUID, node_id: str, start: int) -> None:
        """Delete elements from `start` on, which a list that is gone through anew does not have any more."""
        self._sql.send(FORGET_BEYOND, {"run_id": run_id, "node_id": node_id, "start": start})

    def counted(self, ids: Iterable[int]) -> set[int]:
        """Which of these ended and were counted by an orchestrator, so that only their run is retried."""
        return {job_id for (job_id,) in self._sql.rows(COUNTED, {"ids": id_array(ids)})}

    def fetch(self, job_id: int) -> WorkflowNodeJob | None:
        """One job, or None."""
        return self._first(FETCH, {"id": job_id})

    def counts(self, *, run_id: uuid.UUID | None = None) -> dict[str, dict[str, int]]:
        """How many jobs there are, of a run or at all, by queue and status."""
        if run_id is None:
            return self._counts(COUNTS)
        return self._counts(COUNTS_OF_RUN, {"run_id": run_id})

    def _columns(self, jobs: Iterable[NewNodeJob]) -> Columns:
        return Columns.of(_BULK.names, check.each("jobs", jobs, self._row))

    def _row(self, job: NewNodeJob) -> check.Row:
        """The values of `_BULK.columns`, each checked."""
        _refuse_pinned(job.queue, job.pinned_host)
        attempts = MAX_ATTEMPTS if job.max_attempts is None else job.max_attempts
        if job.at_most_once:
            attempts = check.once(job.max_attempts)
        crashes = job.max_crashes
        step = None if job.step is None else check.whole("step", job.step, 0, check.SMALLINT_MAX)
        return (
            job.run_id,
            check.text("node_id", job.node_id),
            check.whole("map_index", job.map_index, -1, check.INT_MAX),
            check.text("kind", job.kind),
            check_queue_name(job.queue),
            check.text_or_none("node_module", job.node_module),
            check.text_or_none("plugin", job.plugin),
            self._limits.json_object("inputs", job.inputs),
            None if job.item is NO_ITEM else self._limits.json(job.item),
            check.whole("priority", job.priority, 0, 9),
            check.whole("host_priority", job.host_priority, -check.SMALLINT_MAX, check.SMALLINT_MAX),
            check.text_or_none("required_model", job.required_model),
            step,
            bool(job.background),
            check.text_or_none("pinned_host", job.pinned_host),
            check.limit_key_or_none(job.limit_key),
            check.whole("max_attempts", attempts, 1, check.SMALLINT_MAX),
            check.seconds_or_none("backoff_s", job.backoff_s, zero=True),
            check.seconds_or_none("timeout_s", job.timeout_s),
            check.seconds_or_none("stall_timeout_s", job.stall_timeout_s),
            None if job.host_lock is None else check.host_lock("host_lock", job.host_lock),
            check.text_or_none("traceparent", job.traceparent, max_bytes=check.KEY_BYTES),
            *check.due(job.run_at, job.delay),
            _status(job.status),
            check.stored_moment_or_none("expires_at", job.expires_at),
            check.seconds_or_none("expires_s", job.expires_s, zero=True),
            bool(job.survives_outage),
            None if crashes is None else check.whole("max_crashes", crashes, 1, check.SMALLINT_MAX),
            check.flag("at_most_once", job.at_most_once),
        )

    # Last, because its name hides the builtin from the annotations below it.
    def list(
        self,
        *,
        run_id: uuid.UUID | None = None,
        node_id: str | None = None,
        queue: str | None = None,
        status: str | Iterable[str] | None = None,
        claimed_by: str | None = None,
        limit_key: str | None = None,
        created_from: datetime | None = None,
        created_before: datetime | None = None,
        limit: int = 100,
        after: int | None = None,
        newest_first: bool = True,
    ) -> list[WorkflowNodeJob]:
        """Jobs by id; `after` is the id that the page before ended with."""
        filters = Filters()
        filters.add("run_id = %(run_id)s::uuid", run_id=run_id)
        filters.add("node_id = %(node_id)s::text", node_id=node_id)
        filters.add("queue = %(queue)s::text", queue=queue)
        filters.status(status, JobStatus)
        filters.add("claimed_by = %(claimed_by)s::text", claimed_by=claimed_by)
        filters.add("limit_key = %(limit_key)s::text", limit_key=limit_key)
        filters.created(created_from, created_before)
        return self._page(filters, by="id", after=after, limit=limit, newest_first=newest_first)

    # Awaited, on an asynchronous connection.
    afetch = awaitable(fetch)
    acounts = awaitable(counts)
    alist = awaitable(list)
