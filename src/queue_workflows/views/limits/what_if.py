"""What another cap would do, read before it is set: what would be over it, and what could begin.

`foretell` is pure: the lines of the keys that the cap is about go in. Nothing is written, and a job that
holds a slot keeps it whatever the new cap is.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import psycopg

from queue_workflows.drawing.words import on_one_line
from queue_workflows.repositories.limits.caps import LimitRepository, cap_params
from queue_workflows.repositories.limits.overview import COUNTED, LimitLine, LimitLineRepository
from queue_workflows.repositories.sql.checks import EXCLUSIVE

# Of the keys of a pattern, and of those named one by one.
KEYS_LOOKED_AT: Final = 1_000
KEYS_NAMED: Final = 10


@dataclass(frozen=True, slots=True)
class KeyForecast:
    """One key under the new cap: `over` hold more than it allows, `could_begin` wait and would find room."""

    key: str
    cap_now: int | None
    cap_then: int
    taken: int
    waiting: int
    over: int
    could_begin: int
    could_begin_now: int


@dataclass(frozen=True, slots=True)
class OwnCap:
    """The cap that a key or pattern has of its own, None for none, and what code declares of it."""

    most: int | None
    declared: str | None = None
    is_declared: bool = False

    @property
    def words(self) -> str:
        """The cap with the apps that declare it, also where an operator's word stands above theirs."""
        if self.most is None:
            return "no limit of its own"
        told = "" if self.declared is None else f"{', ' if self.is_declared else '; '}{self.declared}"
        return f"{self.most}{told}"


@dataclass(frozen=True, slots=True)
class CapPreview:
    """The keys that a cap is about, those that it changes most first; `is_cut` where there may be more."""

    key: str
    max_slots: int
    own: OwnCap
    keys: Sequence[KeyForecast]
    is_cut: bool

    def total(self, name: str) -> int:
        """One of the figures, over all keys."""
        return sum(getattr(one, name) for one in self.keys)

    @property
    def at_least(self) -> bool:
        """Whether nobody counted all that waits."""
        return self.is_cut or any(one.waiting > COUNTED for one in self.keys)


def foretell(line: LimitLine, max_slots: int) -> KeyForecast:
    """What a cap would mean for a key as it stands."""
    cap = min(max_slots, 1) if line.key.startswith(EXCLUSIVE) else max_slots
    now = line.waiting if line.max_slots is None else min(line.waiting, max(0, line.max_slots - line.taken))
    return KeyForecast(
        line.key,
        cap_now=line.max_slots,
        cap_then=cap,
        taken=line.taken,
        waiting=line.waiting,
        over=max(0, line.taken - cap),
        could_begin=min(line.waiting, max(0, cap - line.taken)),
        could_begin_now=now,
    )


def ruled_by(pattern: str, lines: Sequence[LimitLine], longer: Sequence[str]) -> list[LimitLine]:
    """The keys that go by a pattern: they match it, have no cap of their own and match no longer pattern."""
    prefixes = tuple(other.removesuffix("*") for other in longer)
    return [
        line
        for line in lines
        if line.key.startswith(pattern.removesuffix("*"))
        and not (line.is_own or line.key.endswith("*") or line.key.startswith(prefixes))
    ]


def read_preview(connection: psycopg.Connection[Any], key: str, max_slots: int) -> CapPreview:
    """What setting this cap would do now; a key or cap that `limits set` refuses is refused here too."""
    cap_params(key, max_slots)
    limits, lines = LimitRepository(connection), LimitLineRepository(connection)
    if key.endswith("*"):
        # From right before the first key that may match; what comes behind the last is told by its name.
        found = lines.page(limit=KEYS_LOOKED_AT, after=key[:-2])
        about = ruled_by(key, found, limits.longer_patterns(key))
    else:
        found, about = [], [lines.of(key)]
    told = [foretell(line, max_slots) for line in about]
    told.sort(key=lambda one: (-one.over, -abs(one.could_begin - one.could_begin_now), one.key))
    return CapPreview(key, max_slots, own_cap(connection, key), told, len(found) == KEYS_LOOKED_AT)


def own_cap(connection: psycopg.Connection[Any], key: str) -> OwnCap:
    """The cap of just this key or pattern: an operator's, else what apps declare."""
    set_ = LimitRepository(connection).fetch(key)
    line = LimitLineRepository(connection).of(key)
    if line.is_own and line.source == "declared":
        return OwnCap(line.max_slots, on_one_line(line.said_by or ""), is_declared=True)
    if set_ is None:
        return OwnCap(None)
    beneath = [f"{one['owner']}: {one['max_slots']}" for one in line.declared if one["key"] == key]
    return OwnCap(set_.max_slots, f"declared by {on_one_line(', '.join(beneath))}" if beneath else None)


def json_of(seen: CapPreview) -> dict[str, Any]:
    """What `qwf limits set KEY CAP --dry-run --json` prints."""
    figures = ("taken", "waiting", "over", "could_begin", "could_begin_now")
    return {
        "key": seen.key,
        "max_slots": seen.max_slots,
        "was": seen.own.most,
        **{name: seen.total(name) for name in figures},
        "at_least": seen.at_least,
        "keys": [
            {"key": one.key, "cap_now": one.cap_now, "cap_then": one.cap_then}
            | {name: getattr(one, name) for name in figures}
            for one in seen.keys[:KEYS_NAMED]
        ],
        "keys_looked_at": len(seen.keys),
    }


def command_of(key: str, max_slots: int) -> str:
    """The command that foretells it; without its last word it is done."""
    return shlex.join(["qwf", "limits", "set", key, str(max_slots), "--dry-run"])
