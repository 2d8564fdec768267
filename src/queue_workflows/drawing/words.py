"""Points and spans of time, labels and others' text, as they stand in one line of a drawing or a table."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final

# Beyond this many nobody counts.
COUNTED: Final = 100_000


def on_one_line(text: str, *, squeeze: bool = True) -> str:
    """A job's own words must neither break the table nor steer the terminal."""
    line = " ".join(text.split()) if squeeze else text.expandtabs(4)
    return "".join(char if char.isprintable() else "?" for char in line)


def say_moment(moment: datetime, *, now: datetime | None = None) -> str:
    """A point in time, in UTC: of today without its date."""
    now = now or datetime.now(UTC)
    there = moment.astimezone(UTC)
    if there.date() == now.astimezone(UTC).date():
        return f"{there:%H:%M:%S}Z"
    return f"{there:%Y-%m-%d %H:%M:%S}Z"


def say_span(seconds: float) -> str:
    """Two units at the most: `0s`, `42s`, `3m 5s`, `2h 10m`, `5d 3h`."""
    whole = max(0, int(seconds))
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return _two(whole, "m", 60, "s", 1)
    if whole < 86_400:
        return _two(whole, "h", 3600, "m", 60)
    return _two(whole, "d", 86_400, "h", 3600)


def say_time(length: timedelta) -> str:
    """Tenths below ten seconds, where most jobs are; milliseconds where tenths would say nothing."""
    seconds = length.total_seconds()
    if 0.0005 <= seconds < 0.05:
        return f"{seconds * 1000:.0f}ms"
    return f"{max(0.0, seconds):.1f}s" if seconds < 10 else say_span(seconds)


def _two(whole: int, large: str, size: int, small: str, part: int) -> str:
    rest = whole % size // part
    return f"{whole // size}{large}" + (f" {rest}{small}" if rest else "")


def number_of(thing: str, count: int) -> str:
    """So many jobs or runs, which are counted up to `COUNTED`."""
    if count >= COUNTED:
        return f"{COUNTED:,} or more {thing}s"
    return f"1 {thing}" if count == 1 else f"{count:,} {thing}s" if count else f"no {thing}s"


def say_labels(labels: Mapping[str, Any]) -> list[str]:
    """As `--label` takes them, so that a number is not taken for the text that looks like it."""
    return [
        f"{name}={value}" if isinstance(value, str) else f"{name}:={json.dumps(value, ensure_ascii=False)}"
        for name, value in labels.items()
    ]
