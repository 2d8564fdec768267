"""What a ticker asks and says: which schedules are due, the jobs of their ticks, when to look again.

Any number of tickers asks at once. Each reckons the ticks of a schedule from what it read, and the first
statement to arrive while that still holds inserts them and moves the schedule on: a ticker that comes later
finds it moved, and nobody waits for anybody. A ticker that is stopped or killed holds nothing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from queue_workflows.repositories.limits.lanes import FRONT, LANE_DELAY_S, LIMIT_FULL
from queue_workflows.repositories.schedules.schedules import JOB_OPTIONS
from queue_workflows.repositories.sql.table import Repository, Table

if TYPE_CHECKING:
    from queue_workflows.models import Schedule

_TABLE: Final[Table[Schedule]] = Table("schedules")
DUE_AT_ONCE: Final = 1000


@dataclass(frozen=True, slots=True)
class DueSchedule:
    """What a ticker reads of a schedule; no model, so that it runs without SQLAlchemy."""

    name: str
    cron: str
    timezone: str
    catch_up: str
    catch_up_cap: int
    jitter_s: float
    task_name: str
    queue: str
    limit_key: str | None
    host_lock: str | None
    last_tick_at: datetime | None
    next_tick_at: datetime | None
    updated_at: datetime
    args: dict[str, Any]


# What neither an operator has paused nor its own code forgotten.
TICKS: Final = "enabled AND (declared OR declared_by IS NULL)"
# Apart, those that nobody has reckoned and those that are due: an OR of the two is read by index only as a
# bitmap, which tickers' connections do without.
DUE: Final = (
    """
SELECT statement_timestamp(), {columns} FROM (
    SELECT * FROM schedules WHERE {ticks} AND next_tick_at IS NULL
    UNION ALL
    SELECT * FROM schedules WHERE {ticks} AND next_tick_at <= statement_timestamp()
) AS schedules
WHERE name <> ALL (%(aside)s::text[])
ORDER BY next_tick_at NULLS FIRST, name
LIMIT {at_once}
""".replace("{columns}", _TABLE.only(field.name for field in fields(DueSchedule)))
    .replace("{ticks}", TICKS)
    .replace("{at_once}", str(DUE_AT_ONCE))
)
NEXT_IN: Final = """
SELECT extract(epoch FROM next_tick_at - statement_timestamp())::float8 FROM schedules
WHERE {ticks} AND next_tick_at > statement_timestamp()
ORDER BY next_tick_at
LIMIT 1
""".replace("{ticks}", TICKS)
# planned: what was reckoned for each schedule, and from what. mine: those of which that still holds, and
# which nobody else changes at this moment; by their names, however few schedules the planner expects.
# moved: they go on. job: those of their ticks, numbered within their limit's key. placed: whether they go
# into its lane.
_INSERT: Final = """
WITH planned AS MATERIALIZED (
    SELECT * FROM unnest(
        %(names)s::text[], %(read_at)s::timestamptz[], %(reckoned)s::timestamptz[], %(last)s::timestamptz[],
        %(next)s::timestamptz[]
    ) AS planned (name, updated_at, reckoned, last_tick, next_tick)
), mine AS MATERIALIZED (
    SELECT schedules.name, planned.last_tick, planned.next_tick
    FROM planned JOIN schedules ON schedules.name = planned.name
    WHERE schedules.name = ANY (%(names)s::text[]) AND COALESCE({ticks}, false)
        AND schedules.updated_at = planned.updated_at
        AND schedules.next_tick_at IS NOT DISTINCT FROM planned.reckoned
    FOR NO KEY UPDATE OF schedules SKIP LOCKED
), moved AS (
    UPDATE schedules SET
        last_tick_at = COALESCE(mine.last_tick, schedules.last_tick_at), next_tick_at = mine.next_tick
    FROM mine WHERE schedules.name = ANY (ARRAY(SELECT name FROM mine)) AND schedules.name = mine.name
    RETURNING schedules.name, task_name, queue, args, priority, limit_key{of_schedule}
), job AS MATERIALIZED (
    SELECT
        moved.name, tick.at, moved.task_name, moved.queue, tick.reason, moved.args, moved.priority,
        COALESCE(moved.limit_key, tick.limit_key) AS limit_key, tick.max_attempts, tick.backoff_s,
        tick.timeout_s, tick.stall_timeout_s, tick.begins_at{of_tick},
        row_number() OVER (
            PARTITION BY moved.queue, COALESCE(moved.limit_key, tick.limit_key)
            ORDER BY tick.begins_at, tick.name
        ) AS nth
    FROM unnest(
        %(tick_of)s::text[], %(tick_at)s::timestamptz[], %(begins_at)s::timestamptz[], %(reason)s::text[],
        %(traceparent)s::text[], %(max_attempts)s::smallint[], %(backoff_s)s::float8[],
        %(timeout_s)s::float8[], %(stall_timeout_s)s::float8[], %(limit_key)s::text[], %(host_lock)s::text[],
        %(max_crashes)s::smallint[], %(at_most_once)s::boolean[]
    ) AS tick (
        name, at, begins_at, reason, traceparent, max_attempts, backoff_s, timeout_s, stall_timeout_s,
        limit_key, host_lock, max_crashes, at_most_once
    )
    JOIN moved ON moved.name = tick.name
), placed AS MATERIALIZED (
    SELECT *, {laned} AS laned FROM job
)
INSERT INTO ingest_jobs (
    schedule_name, tick_at, task_name, queue, reason, args, priority, limit_key, max_attempts, backoff_s,
    timeout_s, stall_timeout_s, run_at, {columns}
)
SELECT
    name, at, task_name, queue, reason, args, priority, limit_key, max_attempts, backoff_s, timeout_s,
    stall_timeout_s, {run_at},
    {values}
FROM placed
ORDER BY begins_at, name
ON CONFLICT (schedule_name, tick_at) WHERE schedule_name IS NOT NULL DO NOTHING
RETURNING schedule_name, tick_at
"""
_RUN_AT: Final = "GREATEST(begins_at, statement_timestamp())"
_STATUS: Final = "CASE WHEN laned OR begins_at > statement_timestamp() THEN 'scheduled' ELSE 'queued' END"
_LANED: Final = f"""CASE
        WHEN limit_key IS NULL OR begins_at > statement_timestamp() THEN false
        WHEN nth > {FRONT} THEN true
        ELSE nth > qwf_front_room(queue, limit_key, {FRONT})
    END"""


def _inserting(
    *, laned: str, run_at: str, more: Mapping[str, str], of_schedule: str = "", of_tick: str = ""
) -> str:
    marks = {
        "{of_schedule}": of_schedule,
        "{of_tick}": of_tick,
        "{ticks}": TICKS,
        "{laned}": laned,
        "{run_at}": run_at,
        "{columns}": ", ".join(["status", *more]),
        "{values}": ", ".join([_STATUS, *more.values()]),
    }
    sql = _INSERT
    for mark, fragment in marks.items():
        sql = sql.replace(mark, fragment)
    return sql


INSERT: Final = _inserting(laned="false", run_at=_RUN_AT, more={})
# The same where some have a limit's key, a lock, a context or a rule of crashes, so that others neither pay
# for it nor need the rights.
INSERT_MORE: Final = _inserting(
    laned=_LANED,
    run_at=f"""CASE WHEN laned THEN statement_timestamp() + make_interval(secs => {LANE_DELAY_S})
        ELSE GREATEST(begins_at, statement_timestamp()) END""",
    more={
        "hold_reason": f"CASE WHEN laned THEN '{LIMIT_FULL}' END",
        "hold_key": "CASE WHEN laned THEN limit_key END",
        "traceparent": "traceparent",
        "host_lock": "host_lock",
        "max_crashes": "max_crashes",
        "at_most_once": "COALESCE(at_most_once, false)",
    },
    of_schedule=", schedules.host_lock",
    of_tick=""", tick.traceparent, tick.max_crashes, tick.at_most_once,
        COALESCE(moved.host_lock, tick.host_lock) AS host_lock""",
)


_MORE: Final = ("limit_key", "host_lock", "traceparent", "max_crashes", "at_most_once")


class Due(NamedTuple):
    """The schedules that are due, or that nobody has reckoned yet, and the database's time."""

    now: datetime | None
    schedules: list[DueSchedule]
    # By name, what is wrong with those that hold what Python does not read.
    unreadable: Mapping[str, Exception]

    @property
    def has_more(self) -> bool:
        """Whether there may be more of them."""
        return len(self.schedules) + len(self.unreadable) == DUE_AT_ONCE


@dataclass(frozen=True, slots=True)
class Tick:
    """A job to insert; `options` are what its task says of its jobs."""

    at: datetime
    begins_at: datetime
    reason: str
    options: Mapping[str, Any]
    traceparent: str | None = None


@dataclass(frozen=True, slots=True)
class Planned:
    """What is to become of a schedule that was read: its ticks, and the next one to wait for."""

    schedule: DueSchedule
    ticks: Sequence[Tick]
    next_at: datetime | None


class Inserted(NamedTuple):
    """A job that was inserted."""

    schedule: str
    tick_at: datetime


class TickRepository(Repository["Schedule"]):
    """A ticker's statements; each is a transaction of its own on a connection in autocommit."""

    _table = _TABLE

    def now(self) -> datetime:
        """The database's time."""
        ((now,),) = self._sql.rows("SELECT statement_timestamp()", {})
        return now  # type: ignore[no-any-return]

    def due(self, *, aside: Sequence[str] = ()) -> Due:
        """What is due now, the longest overdue first, but for those `aside`."""
        rows = self._sql.rows(DUE, {"aside": list(aside)})
        schedules, unreadable = list[DueSchedule](), dict[str, Exception]()
        for _, *row, args in rows:
            try:
                values = *row, json.loads(args)
                schedules.append(DueSchedule(*values))
            except (ValueError, RecursionError) as exc:
                unreadable[row[0]] = exc
        return Due(rows[0][0] if rows else None, schedules, unreadable)

    def next_in_s(self) -> float | None:
        """How long it is until the next tick; None if nobody has reckoned any."""
        rows = self._sql.rows(NEXT_IN, {})
        return float(rows[0][0]) if rows else None

    def insert(self, planned: Sequence[Planned]) -> list[Inserted]:
        """Insert the ticks of those schedules that are still as they were read; which those were."""
        of_tick = [(one.schedule.name, tick) for one in planned for tick in one.ticks]
        params: dict[str, Any] = {
            "names": [one.schedule.name for one in planned],
            "read_at": [one.schedule.updated_at for one in planned],
            "reckoned": [one.schedule.next_tick_at for one in planned],
            "last": [one.ticks[-1].at if one.ticks else None for one in planned],
            "next": [one.next_at for one in planned],
            "tick_of": [name for name, _ in of_tick],
            "tick_at": [tick.at for _, tick in of_tick],
            "begins_at": [tick.begins_at for _, tick in of_tick],
            "reason": [tick.reason for _, tick in of_tick],
            "traceparent": [tick.traceparent for _, tick in of_tick],
        }
        for option in JOB_OPTIONS:
            params[option] = [tick.options.get(option) for _, tick in of_tick]
        says_more = any(any(params[name]) for name in _MORE)
        says_more = says_more or any(one.schedule.limit_key or one.schedule.host_lock for one in planned)
        return [Inserted(*row) for row in self._sql.rows(INSERT_MORE if says_more else INSERT, params)]
