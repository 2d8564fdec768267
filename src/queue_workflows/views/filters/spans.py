"""Lengths of time as operators write them: `90s`, `2h`, `1h30m`."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Final

_UNITS: Final = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0}
_PART: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)([smhdw]?)")
LONGEST_S: Final = 10 * 365 * 86_400.0
HOW: Final = "write 90s, 15m, 2h, 1d or 1h30m"


def seconds_of(text: str) -> float | None:
    """Seconds, from `90`, `90s`, `15m`, `2h`, `1d`, `1h30m`; None for what is no length of time."""
    seconds = _seconds(text.strip().lower())
    return seconds if seconds is not None and is_span(seconds) else None


def is_span(seconds: float) -> bool:
    """Whether a length of time is one that a filter or an option takes."""
    return 0 < seconds <= LONGEST_S


def text_of(seconds: float) -> str:
    """A length of time in words that are read as exactly that."""
    if not seconds.is_integer():
        return f"{Decimal(repr(seconds)):f}s"
    parts, left = [], int(seconds)
    for unit in ("d", "h", "m", "s"):
        count, left = divmod(left, int(_UNITS[unit]))
        parts.append(f"{count}{unit}" if count else "")
    return "".join(parts)


def _seconds(text: str) -> float | None:
    parts = _PART.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        return None
    if len(parts) > 1 and not all(unit for _, unit in parts):
        return None
    return sum(float(number) * _UNITS[unit or "s"] for number, unit in parts)
