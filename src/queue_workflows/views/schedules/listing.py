"""Every schedule: its times, its job, when it ticked and when it will."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from queue_workflows.errors import UnknownSchedule
from queue_workflows.repositories.schedules.schedules import ScheduleRepository, state_of
from queue_workflows.repositories.sql.connection import Handle
from queue_workflows.views.json_values import named

if TYPE_CHECKING:
    from queue_workflows.models import Schedule

_MOST: Final = 10_000
_SHOWN: Final = (
    *("cron", "timezone", "task_name", "queue", "args", "priority", "limit_key", "host_lock"),
    *("catch_up", "catch_up_cap", "jitter_s", "enabled", "declared", "declared_by"),
    *("last_tick_at", "next_tick_at"),
)


def schedules(conn: Handle, *, limit: int = _MOST, after: str | None = None) -> list[Schedule]:
    """The schedules by name; `after` is the name with which the page before ended."""
    return ScheduleRepository(conn).list(limit=limit, after=after)


def schedule(conn: Handle, name: str) -> Schedule:
    """One schedule; `UnknownSchedule` if there is none of the name."""
    found = ScheduleRepository(conn).fetch(name)
    if found is None:
        raise UnknownSchedule(name)
    return found


def json_of(found: Sequence[Schedule]) -> list[dict[str, Any]]:
    """What `qwf schedule list --json` prints."""
    return [
        {"schedule": one.name, "state": state_of(one)} | named({name: getattr(one, name) for name in _SHOWN})
        for one in found
    ]


def command_of() -> str:
    """The command that lists them."""
    return shlex.join(["qwf", "schedule", "list"])
