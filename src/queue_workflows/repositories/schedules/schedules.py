"""Schedules as they are declared and switched; the ticks are the scheduler's."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from queue_workflows.errors import PayloadError
from queue_workflows.models.rules import MAX_ATTEMPTS, MOST_CAUGHT_UP
from queue_workflows.repositories.jobs.ingest_rows import ingest_queue
from queue_workflows.repositories.sql import checks as check
from queue_workflows.repositories.sql.awaitable import awaitable
from queue_workflows.repositories.sql.table import Filters, Repository, Table
from queue_workflows.states import CatchUp

if TYPE_CHECKING:
    from queue_workflows.models import Schedule

_TABLE: Final[Table[Schedule]] = Table("schedules")
# What jobs of a task get that a schedule does not say.
JOB_OPTIONS: Final = (
    *("max_attempts", "backoff_s", "timeout_s", "stall_timeout_s", "limit_key", "host_lock"),
    *("max_crashes", "at_most_once"),
)

# Past ticks and an operator's switch stay, and so does the next tick unless the times are others now.
UPSERT: Final = _TABLE.sql("""
INSERT INTO schedules (
    name, cron, timezone, catch_up, catch_up_cap, jitter_s, task_name, queue, args, priority, limit_key,
    host_lock, declared, next_tick_at
) VALUES (
    %(name)s::text, %(cron)s::text, %(timezone)s::text, %(catch_up)s::text, %(catch_up_cap)s::integer,
    %(jitter_s)s::float8, %(task_name)s::text, %(queue)s::text, %(args)s::jsonb, %(priority)s::smallint,
    %(limit_key)s::text, %(host_lock)s::text, %(declared)s::boolean, %(next_tick_at)s::timestamptz
)
ON CONFLICT (name) DO UPDATE SET
    cron = EXCLUDED.cron, timezone = EXCLUDED.timezone, catch_up = EXCLUDED.catch_up,
    catch_up_cap = EXCLUDED.catch_up_cap, jitter_s = EXCLUDED.jitter_s, task_name = EXCLUDED.task_name,
    queue = EXCLUDED.queue, args = EXCLUDED.args, priority = EXCLUDED.priority,
    limit_key = EXCLUDED.limit_key, host_lock = EXCLUDED.host_lock,
    declared = EXCLUDED.declared, updated_at = statement_timestamp(),
    next_tick_at = COALESCE(EXCLUDED.next_tick_at, CASE
        WHEN (schedules.cron, schedules.timezone) = (EXCLUDED.cron, EXCLUDED.timezone)
        THEN schedules.next_tick_at
    END)
RETURNING {columns}
""")
FETCH: Final = _TABLE.sql("SELECT {columns} FROM schedules WHERE name = %(name)s::text")
DELETE: Final = _TABLE.sql("DELETE FROM schedules WHERE name = %(name)s::text RETURNING {columns}")
# changed: the row, if this is a change; what fell due while it was off stays out. logged: actor and reason.
SET_ENABLED: Final = _TABLE.sql("""
WITH changed AS (
    UPDATE schedules SET
        enabled = %(enabled)s::boolean, updated_at = statement_timestamp(),
        next_tick_at = CASE WHEN NOT %(enabled)s::boolean THEN next_tick_at END
    WHERE name = %(name)s::text AND enabled <> %(enabled)s::boolean
    RETURNING {columns}
), logged AS (
    INSERT INTO audit_log (actor, action, subject_kind, subject_id, reason)
    SELECT %(actor)s::text, %(action)s::text, 'schedule', name, %(reason)s::text FROM changed
)
SELECT {columns} FROM changed AS schedules
""")
# now: a moment that is no tick, as those are whole seconds. job: what the next tick would enqueue. logged:
# actor and reason.
TRIGGER: Final = """
WITH now AS (
    SELECT date_trunc('second', clock_timestamp()) + GREATEST(
        clock_timestamp() - date_trunc('second', clock_timestamp()), interval '1 microsecond'
    ) AS at
), job AS (
    INSERT INTO ingest_jobs (
        task_name, queue, reason, args, priority, limit_key, max_attempts, backoff_s, timeout_s,
        stall_timeout_s, host_lock, max_crashes, at_most_once, schedule_name, tick_at
    )
    SELECT
        task_name, queue, %(said)s::text, args, priority, COALESCE(limit_key, %(limit_key)s::text),
        %(max_attempts)s::smallint, %(backoff_s)s::float8, %(timeout_s)s::float8,
        %(stall_timeout_s)s::float8, COALESCE(host_lock, %(host_lock)s::text),
        %(max_crashes)s::smallint, COALESCE(%(at_most_once)s::boolean, false), name, now.at
    FROM schedules, now
    WHERE name = %(name)s::text
    RETURNING id, schedule_name
), logged AS (
    INSERT INTO audit_log (actor, action, subject_kind, subject_id, reason, details)
    SELECT %(actor)s::text, 'schedule.trigger', 'schedule', schedule_name, %(reason)s::text,
        jsonb_build_object('job', 'ingest:' || id)
    FROM job
)
SELECT id FROM job
"""


class ScheduleRepository(Repository["Schedule"]):
    """Schedules on the caller's connection."""

    _table = _TABLE

    def upsert(
        self,
        name: str,
        *,
        cron: str,
        task_name: str,
        queue: str,
        timezone: str = "UTC",
        catch_up: str = CatchUp.LATEST,
        catch_up_cap: int = 100,
        jitter_s: float = 0.0,
        args: dict[str, Any] | None = None,
        priority: int = 5,
        limit_key: str | None = None,
        host_lock: str | None = None,
        declared: bool = False,
        next_tick_at: datetime | None = None,
    ) -> Schedule:
        """Insert a schedule or replace its words; with no `next_tick_at` the next ticker reckons it."""
        words = checked_words(
            name=name,
            cron=cron,
            timezone=timezone,
            catch_up=catch_up,
            catch_up_cap=catch_up_cap,
            jitter_s=jitter_s,
            task_name=task_name,
            queue=queue,
            priority=priority,
            limit_key=limit_key,
            host_lock=host_lock,
        )
        params = words | {
            "args": self._limits.json_object("args", args),
            "declared": bool(declared),
            "next_tick_at": check.stored_moment_or_none("next_tick_at", next_tick_at),
        }
        return self._all(UPSERT, params)[0]

    def set_enabled(
        self, name: str, enabled: bool, *, actor: str, reason: str | None = None
    ) -> Schedule | None:
        """Switch a schedule on or off, and log actor and reason; None if it is so already, or not there.

        What fell due while it was off does not come when it is on again.
        """
        params = _decision(name, actor, reason) | {
            "enabled": bool(enabled),
            "action": "schedule.resume" if enabled else "schedule.pause",
        }
        return self._first(SET_ENABLED, params)

    def trigger(
        self, name: str, *, actor: str, reason: str | None = None, options: Mapping[str, Any] | None = None
    ) -> int | None:
        """Enqueue what a schedule enqueues, now and beside its ticks; the job's id, None for no schedule.

        `options` are what jobs of its task get besides, as `max_attempts`.
        """
        params = _decision(name, actor, reason) | {
            "said": f"schedule {name} triggered by {actor}",
            **{option: (options or {}).get(option) for option in JOB_OPTIONS},
        }
        params["max_attempts"] = params["max_attempts"] or MAX_ATTEMPTS
        rows = self._sql.rows(TRIGGER, params)
        return int(rows[0][0]) if rows else None

    def delete(self, name: str) -> Schedule | None:
        """Delete a schedule, the row as it was; its jobs stay. None if there is none."""
        return self._first(DELETE, {"name": name})

    def fetch(self, name: str) -> Schedule | None:
        """One schedule, or None."""
        return self._first(FETCH, {"name": name})

    # Last, because its name hides the builtin from the annotations below it.
    def list(
        self,
        *,
        enabled: bool | None = None,
        queue: str | None = None,
        task_name: str | None = None,
        limit: int = 100,
        after: str | None = None,
    ) -> list[Schedule]:
        """Schedules by name; `after` is the name that the page before ended with."""
        filters = Filters()
        filters.add("enabled = %(enabled)s::boolean", enabled=enabled)
        filters.add("queue = %(queue)s::text", queue=queue)
        filters.add("task_name = %(task_name)s::text", task_name=task_name)
        return self._page(filters, by="name", after=after, limit=limit, newest_first=False)

    # Awaited, on an asynchronous connection.
    afetch = awaitable(fetch)
    alist = awaitable(list)


def state_of(schedule: Schedule) -> str:
    """Whether it ticks, or why not, in the words of the commands."""
    if not schedule.enabled:
        return "paused"
    return "on" if schedule.declared or schedule.declared_by is None else "not declared"


def checked_words(
    *,
    name: str,
    cron: str,
    timezone: str,
    catch_up: str,
    catch_up_cap: int,
    jitter_s: float,
    task_name: str,
    queue: str,
    priority: int,
    limit_key: str | None,
    host_lock: str | None,
) -> dict[str, Any]:
    """What a schedule says, but for its arguments, each word checked."""
    return {
        "name": check.readable("name", name),
        "cron": cron_expression(cron),
        "timezone": time_zone(timezone),
        "catch_up": check.word("catch_up", catch_up, CatchUp),
        "catch_up_cap": check.whole("catch_up_cap", catch_up_cap, 1, MOST_CAUGHT_UP),
        "jitter_s": check.seconds_or_none("jitter_s", jitter_s, zero=True),
        "task_name": check.text("task_name", task_name),
        "queue": ingest_queue(queue),
        "priority": check.whole("priority", priority, 0, 9),
        "limit_key": check.limit_key_or_none(limit_key),
        "host_lock": None if host_lock is None else check.host_lock("host_lock", host_lock),
    }


def cron_expression(cron: str) -> str:
    """Five fields as in cron(5), or six with the seconds first, of which some moment to come is one."""
    advice = "give minute, hour, day of month, month, day of week, as in `30 4 * * mon-fri`"
    if len(check.text("cron", cron).split()) not in (5, 6):
        raise PayloadError(
            f"cron {cron!r:.80} has not five fields",
            path="cron",
            advice=f"{advice}; with seconds in front it has six",
        )
    try:
        next(CronSim(cron, datetime.now(UTC)))
    except CronSimError as bad:
        raise PayloadError(f"cron {cron!r:.80}: {bad}", path="cron", advice=advice) from None
    except StopIteration:
        raise PayloadError(f"cron {cron!r:.80} never comes", path="cron", advice=advice) from None
    return cron


def time_zone(name: str) -> str:
    """A name of the IANA database, as this machine has it."""
    if check.text("timezone", name) == "UTC":
        return name
    try:
        ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        raise PayloadError(
            f"there is no time zone {name!r:.80}",
            path="timezone",
            advice="use a name such as Europe/Berlin; where even that is unknown, install `tzdata`",
        ) from None
    return name


def _decision(name: str, actor: str, reason: str | None) -> dict[str, Any]:
    return {
        "name": name,
        "actor": check.text("actor", actor),
        "reason": check.text_or_none("reason", reason, max_bytes=check.TEXT_BYTES),
    }
