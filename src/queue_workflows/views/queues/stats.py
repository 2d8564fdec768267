"""How full the queues are, and how fast they move."""

from __future__ import annotations

import shlex
from dataclasses import fields
from typing import Any, Final

import psycopg

from queue_workflows.repositories.reports.queue_statistics import (
    Attendance,
    Lane,
    QueueStats,
    Statistics,
    StatisticsRepository,
)
from queue_workflows.views.filters import spans
from queue_workflows.views.queues import wishes

WINDOW_S: Final = 3600.0


def queue_stats(
    connection: psycopg.Connection[Any],
    *,
    stale_s: float,
    window_s: float = WINDOW_S,
    queue: str | None = None,
    there: Attendance | None = None,
) -> Statistics:
    """Every queue, or one; read within one snapshot, so that its counts fit together.

    `there` are all workers and wishes, where the caller has read them.
    """
    repository = StatisticsRepository(connection)
    return repository.read(stale_s=stale_s, window_s=window_s, queue=queue, there=there)


def attendance(connection: psycopg.Connection[Any]) -> Attendance:
    """All workers and wishes, for a caller that asks for several things of them."""
    return StatisticsRepository(connection).attendance()


def lanes(connection: psycopg.Connection[Any], queue: str) -> list[Lane]:
    """The keys that have jobs of a queue wait in a lane, the longest first."""
    return StatisticsRepository(connection).lanes(queue)


def json_of(seen: Statistics) -> dict[str, Any]:
    """What `qwf queue stats --json` prints."""
    return {
        "at": seen.at,
        "window_s": seen.window_s,
        "stored_estimated": seen.stored,
        "queues": [_plain(one) for one in seen.queues],
    }


def command_of(*, queue: str | None = None, window_s: float = WINDOW_S) -> str:
    """The command that shows them."""
    words = ["qwf", "queue", "stats"]
    if queue is not None:
        words += ["--queue", queue]
    return shlex.join(words if window_s == WINDOW_S else [*words, "--since", spans.text_of(window_s)])


def _plain(one: QueueStats) -> dict[str, Any]:
    values = {each.name: getattr(one, each.name) for each in fields(one)}
    return values | {"wishes": wishes.json_of(one.wishes), "at_least": sorted(one.at_least)}
