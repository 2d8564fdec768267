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
from queue_workflows.views.limits.what_if import CapPreview, OwnCap, own_cap


@dataclass(frozen=True, slots=True)
class CapChange:
    """A key's cap as it is now, None for none, and its own as it was; `let_out` jobs go on by it.

    `declared_by` is said of one that was taken back: the apps that declare the cap that holds now.
    """

    key: str
    max_slots: int | None
    before: OwnCap
    let_out: int
    declared_by: str | None = None

    @property
    def was(self) -> int | None:
        """The cap that it had of its own."""
        return self.before.most


def set_cap(
    connection: psycopg.Connection[Any], key: str, most: int, *, actor: str, reason: str | None
) -> CapChange:
    """Let at most so many jobs hold a key at once."""
    before = own_cap(connection, key)
    LimitRepository(connection).set(key, most, actor=actor, reason=reason)
    return CapChange(key, most, before, admit_matching(connection, key))


def clear_cap(connection: psycopg.Connection[Any], key: str, *, actor: str, reason: str | None) -> CapChange:
    """Take a key's own cap back, so that the longest pattern holds that it matches, or none."""
    gone = LimitRepository(connection).clear(key, actor=actor, reason=reason)
    admitted = 0 if gone is None else admit_matching(connection, key)
    now = LimitLineRepository(connection).of(key)
    before = OwnCap(None if gone is None else gone.max_slots)
    return CapChange(key, now.max_slots, before, admitted, _declared(now))


def _declared(line: LimitLine) -> str | None:
    """Which apps declare the key's own cap, where code does."""
    return line.said_by if line.is_own and line.source == "declared" else None


def said_of_set(change: CapChange) -> str:
    """One line of a cap that was set."""
    was = change.before.words
    return f"{on_one_line(change.key)}: at most {change.max_slots} at once, was {was}{_let_out(change)}"


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
    is_now = f"is {seen.own.words}"
    yield f"{on_one_line(seen.key)}: would be at most {seen.max_slots} at once, {is_now}; nothing is changed"
    more = "+" if seen.at_least else ""
    over, taken = seen.total("over"), seen.total("taken")
    keeps = ", and would keep their slots" if over else ""
    yield f"{taken:,} hold it now, {over:,} of them over the new cap{keeps}"
    begin, now = seen.total("could_begin"), seen.total("could_begin_now")
    yield f"{seen.total('waiting'):,}{more} wait, {begin:,}{more} would find room, {now:,}{more} do now"
