"""Lengths of time as operators write them, `2h` or `1h30m`, and as they like to read them."""

from __future__ import annotations

import re
from typing import Final

import click

_UNITS: Final = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0}
_PART: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)([smhdw]?)")
LONGEST_S: Final = 10 * 365 * 86_400.0


def span(value: str | float) -> float:
    """Seconds, from `90`, `90s`, `15m`, `2h`, `1d`, `1h30m`; for options of click."""
    seconds = value if isinstance(value, float) else _seconds(value.strip().lower())
    if seconds is None or not 0 < seconds <= LONGEST_S:
        raise click.BadParameter(f"{value!r} is no length of time: write 90s, 15m, 2h, 1d or 1h30m")
    return seconds


def _seconds(text: str) -> float | None:
    parts = _PART.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        return None
    if len(parts) > 1 and not all(unit for _, unit in parts):
        return None
    return sum(float(number) * _UNITS[unit or "s"] for number, unit in parts)
