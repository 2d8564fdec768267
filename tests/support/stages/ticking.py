"""Schedulers in the test's own process, and schedules that nobody has looked at for a while."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing
from datetime import timedelta
from typing import Any

import psycopg

from queue_workflows.engine.schedules.declared import task_options
from queue_workflows.engine.schedules.publish import Declaring
from queue_workflows.models import Schedule
from queue_workflows.roles.loop import Halt, Waiter
from queue_workflows.roles.scheduler.scheduler import Scheduler
from queue_workflows.settings import Settings


def pass_once(
    connect: Callable[[], psycopg.Connection],
    declaring: Declaring | None = None,
    options: Callable[[Schedule], Mapping[str, Any]] = task_options,
) -> int:
    """One pass of a scheduler; the status it ends with."""
    with Waiter() as waiter:
        scheduler = Scheduler(
            connect,
            Settings(),
            name="here",
            waiter=waiter,
            halt=Halt(waiter.ring),
            declaring=declaring or Declaring(None),
            declare_limits=lambda _connection: 600.0,
            task_options=options,
        )
        with closing(scheduler):
            return scheduler.run(once=True)


def away_since(connection: psycopg.Connection, name: str, ago: timedelta) -> None:
    """As if nobody had looked at a schedule for so long, and it had not ticked since."""
    connection.execute(
        "UPDATE schedules SET updated_at = now() - %s, last_tick_at = NULL, next_tick_at = NULL"
        " WHERE name = %s",
        [ago, name],
    )
