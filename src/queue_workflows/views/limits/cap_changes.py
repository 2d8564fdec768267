"""Setting and clearing caps of keys, and how that is said before and after."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import psycopg

from queue_workflows.drawing.words import on_one_line
from queue_workflows.engine.limits.lane_upkeep import admit_matching
from queue_workflows.repositories.limits.caps import LimitRepository
from queue_workflows.repositories.limits.overview import LimitLine, LimitLineRepository
from queue_workflows.views.limits.what_if import CapPreview


@dataclass(frozen=True, slots=True)
class CapChange:
    """A key's cap as it is now, None for none, and as it was; `let_out` jobs go on by it.

    `declared_by` is said of a cap that code declares: the one that was, where one was set, else the one now.
    """

    key: str
    max_slots: int | None
    was: int | None
    let_out: int
    declared_by: str | None = None


def set_cap(
    connection: psycopg.Connection[Any], key: str, most: int, *, actor: str, reason: str | None
) -> CapChange:
    """Let at most so many jobs hold a key at once."""
    limits = LimitRepository(connection)
    was, declared_by = limits.fetch(key), None
    most_before = None if was is None else was.max_slots
    if was is None:
        before = LimitLineRepository(connection).of(key)
        most_before = before.max_slots if before.is_own else None
        declared_by = _declared(before)
    limits.set(key, most, actor=actor, reason=reason)
    return CapChange(key, most, most_before, admit_matching(connection, key), declared_by)


def clear_cap(connection: psycopg.Connection[Any], key: str, *, actor: str, reason: str | None) -> CapChange:
    """Take a key's own cap back, so that the longest pattern holds that it matches, or none."""
    gone = LimitRepository(connection).clear(key, actor=actor, reason=reason)
    admitted = 0 if gone is None else admit_matching(connection, key)
    now = LimitLineRepository(connection).of(key)
    return CapChange(key, now.max_slots, None if gone is None else gone.max_slots, admitted, _declared(now))


def _declared(line: LimitLine) -> str | None:
    """Which apps declare the key's own cap, where code does."""
    return line.said_by if line.is_own and line.source == "declared" else None


def said_of_set(change: CapChange) -> str:
    """One line of a cap that was set."""
    was = "no limit of its own" if change.was is None else str(change.was)
    by = "" if change.declared_by is None else f", {on_one_line(change.declared_by)}"
    return f"{on_one_line(change.key)}: at most {change.max_slots} at once, was {was}{by}{_let_out(change)}"


def said_of_clear(change: CapChange) -> str:
    """One line of a cap that was taken back."""
    if change.was is None:
        return f"nobody has set a limit for {on_one_line(change.key)}: `qwf limits list` shows what is set"
    by = "by a pattern" if change.declared_by is None else on_one_line(change.declared_by)
    holds = "no limit" if change.max_slots is None else f"at most {change.max_slots}, {by}"
    return f"{on_one_line(change.key)}: {holds}{_let_out(change)}"


def _let_out(change: CapChange) -> str:
    admitted = change.let_out
    return "" if admitted == 0 else f"; {admitted} waiting {'job goes' if admitted == 1 else 'jobs go'} on"


def lines_of(seen: CapPreview) -> Iterator[str]:
    """What another cap would do, in sentences."""
    was = "no limit of its own" if seen.was is None else str(seen.was)
    yield f"{on_one_line(seen.key)}: would be at most {seen.max_slots} at once, is {was}; nothing is changed"
    more = "+" if seen.at_least else ""
    over, taken = seen.total("over"), seen.total("taken")
    keeps = ", and would keep their slots" if over else ""
    yield f"{taken:,} hold it now, {over:,} of them over the new cap{keeps}"
    begin, now = seen.total("could_begin"), seen.total("could_begin_now")
    yield f"{seen.total('waiting'):,}{more} wait, {begin:,}{more} would find room, {now:,}{more} do now"
