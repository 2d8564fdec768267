"""Counts and first lines of what a filter matches, which an act never waits for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

import psycopg

from queue_workflows.drawing.words import number_of
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


def say_count(thing: str, count: int | None) -> str:
    """So many of a thing, as a headline says it."""
    return f"all {thing}s that match" if count is None else number_of(thing, count)


def _if_soon(connection: psycopg.Connection[Any], look: Callable[[], T]) -> T | None:
    try:
        with within(connection, WITHIN_MS):
            return look()
    except psycopg.errors.QueryCanceled:
        return None
