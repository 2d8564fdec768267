"""Counts, first lines of what a filter matches, and forecasts, which an act never waits for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

import psycopg

from queue_workflows.drawing.words import number_of
from queue_workflows.settings import Settings
from queue_workflows.views.forecast.changes import Changes
from queue_workflows.views.forecast.drain import brief_forecasts
from queue_workflows.views.forecast.lines import lines_of_queue
from queue_workflows.web.database.readers import within

T = TypeVar("T")

WITHIN_MS: Final = 300
NOT_COUNTED: Final = "They are too many to be counted while you wait, or rare among very many."


def counted(connection: psycopg.Connection[Any], count: Callable[[], int]) -> int | None:
    """What `count` says, or None if that takes long."""
    return _if_soon(connection, count)


def first(connection: psycopg.Connection[Any], look: Callable[[], Sequence[T]]) -> Sequence[T]:
    """What `look` says, or nothing if that takes long."""
    return _if_soon(connection, look) or ()


def drains(connection: psycopg.Connection[Any], changes: Changes, settings: Settings) -> list[str]:
    """When queues would be done, now and after changes; nothing of it if that takes long to be read.

    It is asked last, as all else of a preview must be there before an act is done.
    """
    found = first(
        connection, lambda: brief_forecasts(connection, changes, stale_s=settings.stale_heartbeat_s)
    )
    return [line for one in found for line in lines_of_queue(one)]


def say_count(thing: str, count: int | None) -> str:
    """So many of a thing, as a headline says it."""
    return f"all {thing}s that match" if count is None else number_of(thing, count)


def _if_soon(connection: psycopg.Connection[Any], look: Callable[[], T]) -> T | None:
    try:
        with within(connection, WITHIN_MS):
            return look()
    except psycopg.errors.QueryCanceled:
        return None
