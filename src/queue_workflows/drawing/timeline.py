"""What ran when, and what ran it: a bar a job, below one another on one scale of time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple

from queue_workflows.drawing.run import LOOKS
from queue_workflows.drawing.terminal import Terminal, padded, wide
from queue_workflows.drawing.words import on_one_line, say_time

_USUAL_COLUMNS: Final = 100
_NARROWEST: Final = 10
_WIDEST: Final = 48
_NO_TIME: Final = {"dim": True}


class Bar(NamedTuple):
    """One job: waiting until `started`, if it ever did, and then at work, or parked, until `finished`."""

    name: str
    state: str
    place: str
    created: datetime
    started: datetime | None
    finished: datetime | None
    is_parked: bool = False


def draw_timeline(bars: Sequence[Bar], terminal: Terminal) -> list[str]:
    """The bars as lines, in the given order."""
    if not bars:
        return []
    # What waited for the first worker to come says nothing of the jobs.
    begin = min((bar.started for bar in bars if bar.started), default=min(bar.created for bar in bars))
    end = max(moment for bar in bars for moment in (bar.created, bar.started, bar.finished) if moment)
    names = max(wide(on_one_line(bar.name)) for bar in bars)
    rest = max(wide(bar.place) for bar in bars) + names + len("  ▕▏  00.0s  ")
    width = min(_WIDEST, max(_NARROWEST, (terminal.columns or _USUAL_COLUMNS) - rest))
    head = f"{say_time(end - begin)} from left to right; ░ waiting, █ at work, ◇ parked without a worker"
    lines = [head, *_rows(bars, _Scale(begin, end, width), names, terminal)]
    return [terminal.glyphs(line) for line in lines]


class _Scale(NamedTuple):
    """So many columns for so long a time."""

    begin: datetime
    end: datetime
    width: int

    def column(self, moment: datetime) -> int:
        """Where a moment lies."""
        whole = (self.end - self.begin).total_seconds()
        passed = max(0.0, (moment - self.begin).total_seconds())
        return round(passed / whole * self.width) if whole > 0 else 0


def _rows(bars: Sequence[Bar], scale: _Scale, names: int, terminal: Terminal) -> Iterator[str]:
    for bar in bars:
        wait, work = _cells(bar, scale)
        style: dict[str, Any] = dict(LOOKS[bar.state].style) if bar.state in LOOKS else {}
        drawn = wait + terminal.paint(work, **style) + " " * (scale.width - len(wait) - len(work))
        took = say_time(bar.finished - bar.started) if bar.started and bar.finished else bar.state
        name = padded(on_one_line(bar.name), names)
        yield f"{name}  {drawn}  {took:>6}  {terminal.paint(bar.place, **_NO_TIME)}".rstrip()


def _cells(bar: Bar, scale: _Scale) -> tuple[str, str]:
    """The blank and waiting part, then that at work, of which there is at least one cell if it ever was."""
    created = min(scale.column(bar.created), scale.width - 1)
    if bar.started is None:
        over = scale.column(bar.finished or scale.end)
        return " " * created + "░" * (over - created), ""
    started = min(scale.column(bar.started), scale.width - 1)
    finished = max(started + 1, scale.column(bar.finished or scale.end))
    glyph = "◇" if bar.is_parked else "█"
    return " " * created + "░" * (started - created), glyph * (finished - started)
