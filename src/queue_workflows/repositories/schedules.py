"""Schedules as they are declared and switched; the ticks are the scheduler's."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from queue_workflows.errors import PayloadError
from queue_workflows.models import Schedule
from queue_workflows.repositories import fields as check
from queue_workflows.repositories.ingest_rows import ingest_queue
from queue_workflows.repositories.table import Filters, Repository, Table
from queue_workflows.states import CatchUp

_TABLE: Final = Table(Schedule)

# Past ticks and an operator's switch stay, and so does the next tick unless the times are others now.
UPSERT: Final = _TABLE.sql("""
INSERT INTO schedules (
    name, cron, timezone, catch_up, catch_up_cap, jitter_s, task_name, queue, args, priority, limit_key,
    declared, next_tick_at
) VALUES (
    %(name)s::text, %(cron)s::text, %(timezone)s::text, %(catch_up)s::text, %(catch_up_cap)s::integer,
    %(jitter_s)s::float8, %(task_name)s::text, %(queue)s::text, %(args)s::jsonb, %(priority)s::smallint,
    %(limit_key)s::text, %(declared)s::boolean, %(next_tick_at)s::timestamptz
)
ON CONFLICT (name) DO UPDATE SET
    cron = EXCLUDED.cron, timezone = EXCLUDED.timezone, catch_up = EXCLUDED.catch_up,
    catch_up_cap = EXCLUDED.catch_up_cap, jitter_s = EXCLUDED.jitter_s, task_name = EXCLUDED.task_name,
    queue = EXCLUDED.queue, args = EXCLUDED.args, priority = EXCLUDED.priority,
    limit_key = EXCLUDED.limit_key, declared = EXCLUDED.declared, updated_at = statement_timestamp(),
    next_tick_at = COALESCE(EXCLUDED.next_tick_at, CASE
        WHEN (schedules.cron, schedules.timezone) = (EXCLUDED.cron, EXCLUDED.timezone)
        THEN schedules.next_tick_at
    END)
RETURNING {columns}
""")
FETCH: Final = _TABLE.sql("SELECT {columns} FROM schedules WHERE name = %(name)s::text")
SET_ENABLED: Final = _TABLE.sql("""
UPDATE schedules SET enabled = %(enabled)s::boolean, updated_at = statement_timestamp()
WHERE name = %(name)s::text
RETURNING {columns}
""")


class ScheduleRepository(Repository[Schedule]):
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
        declared: bool = False,
        next_tick_at: datetime | None = None,
    ) -> Schedule:
        """Insert a schedule or replace its words; with no `next_tick_at` the next ticker reckons it."""
        params = {
            "name": check.text("name", name),
            "cron": cron_expression(cron),
            "timezone": time_zone(timezone),
            "catch_up": check.word("catch_up", catch_up, CatchUp),
            "catch_up_cap": check.whole("catch_up_cap", catch_up_cap, 1, check.INT_MAX),
            "jitter_s": check.seconds_or_none("jitter_s", jitter_s, zero=True),
            "task_name": check.text("task_name", task_name),
            "queue": ingest_queue(queue),
            "args": self._limits.json_object("args", args),
            "priority": check.whole("priority", priority, 0, 9),
            "limit_key": check.limit_key_or_none(limit_key),
            "declared": bool(declared),
            "next_tick_at": check.moment_or_none("next_tick_at", next_tick_at),
        }
        return self._all(UPSERT, params)[0]

    def fetch(self, name: str) -> Schedule | None:
        """One schedule, or None."""
        return self._first(FETCH, {"name": name})

    def set_enabled(self, name: str, enabled: bool) -> Schedule | None:
        """Switch a schedule on or off; None if there is none."""
        return self._first(SET_ENABLED, {"name": name, "enabled": bool(enabled)})

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


def cron_expression(cron: str) -> str:
    """Five fields as in cron(5), of which some minute to come is one."""
    advice = "give minute, hour, day of month, month, day of week, as in `30 4 * * mon-fri`"
    if len(check.text("cron", cron).split()) != 5:
        raise PayloadError(f"cron {cron!r:.80} has not five fields", path="cron", advice=advice)
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
