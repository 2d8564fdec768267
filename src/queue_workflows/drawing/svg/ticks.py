"""An axis of time: where its marks stand and what they say."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Final

from queue_workflows.drawing.words import say_span

_MINUTE, _HOUR, _DAY = 60, 3600, 86_400
_STEPS: Final = (
    *(0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30),
    *(_MINUTE, 2 * _MINUTE, 5 * _MINUTE, 10 * _MINUTE, 15 * _MINUTE, 30 * _MINUTE),
    *(_HOUR, 2 * _HOUR, 3 * _HOUR, 6 * _HOUR, 12 * _HOUR),
    *(_DAY, 2 * _DAY, 7 * _DAY, 14 * _DAY, 28 * _DAY),
)


def ticks(seconds: float, most: int = 7) -> Iterator[tuple[float, str]]:
    """Marks at even steps from the beginning on: the share of the whole, and how long after it that is."""
    if seconds <= 0:
        yield 0.0, "0s"
        return
    step = next((one for one in _STEPS if seconds / one <= most), None)
    if step is None:
        step = _STEPS[-1] * (int(seconds / _STEPS[-1] / most) + 1)
    for number in range(int(seconds / step + 1e-9) + 1):
        passed = number * step
        yield passed / seconds, f"{passed:.1f}s" if step < 1 and number else say_span(passed)


def share_of(moment: datetime, begin: datetime, end: datetime) -> float:
    """Where a moment lies between two others, 0 to 1."""
    whole = (end - begin).total_seconds()
    passed = (moment - begin).total_seconds()
    return min(1.0, max(0.0, passed / whole)) if whole > 0 else 0.0
