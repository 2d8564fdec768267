"""A run on an axis of time: a bar for each node, in which waiting is hatched and work is solid."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, Protocol

from queue_workflows.drawing.svg.hatches import look_of_segment, paint_of
from queue_workflows.drawing.svg.icons import icon_at
from queue_workflows.drawing.svg.looks import look_of, word_of
from queue_workflows.drawing.svg.markup import fitted, linked, number_of, percent_of, picture, titled
from queue_workflows.drawing.svg.segments import Axis, Spanned, rectangles
from queue_workflows.drawing.svg.ticks import share_of, ticks
from queue_workflows.drawing.words import say_time

MOST_ROWS: Final = 400
MOST_BANDS: Final = 50
_ROW: Final = 24
_HEAD: Final = 24
_BAR: Final = 14
# The names at the left, the axis, and how long each took at the right.
_LEFT: Final = 0.23
_WIDTH: Final = 0.69
_NAME_ROOM: Final = 232
_THINNEST: Final = 0.003


class Barred(Protocol):
    """A node, or an element of one: `depth` indents it below the row that it belongs to."""

    @property
    def label(self) -> str: ...
    @property
    def state(self) -> str: ...
    @property
    def segments(self) -> Sequence[Spanned]: ...
    @property
    def href(self) -> str | None: ...
    @property
    def note(self) -> str: ...
    @property
    def depth(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Row:
    """A row by its values alone."""

    label: str
    state: str
    segments: Sequence[Spanned]
    href: str | None = None
    note: str = ""
    depth: int = 0


@dataclass(frozen=True, slots=True)
class Band:
    """A span of time behind all rows, and what was then."""

    start: datetime
    end: datetime
    words: str


def draw_timeline(
    rows: Sequence[Barred],
    *,
    begin: datetime,
    end: datetime,
    is_over: bool = True,
    label: str = "Timeline",
    bands: Sequence[Band] = (),
) -> str:
    """The first MOST_ROWS rows in their order, before bands; `end` is now unless it `is_over`."""
    shown = rows[:MOST_ROWS]
    axis = Axis(begin, max(end, begin + timedelta(milliseconds=1)), _LEFT, _WIDTH)
    height = _HEAD + _ROW * len(shown)
    inner = "".join(_band(band, axis, height) for band in bands[:MOST_BANDS]) + _axis(axis, height)
    for number, row in enumerate(shown):
        inner += _row(row, axis, _HEAD + number * _ROW)
    if not is_over:
        at = axis.at(1)
        inner += f'<line class="now" x1="{at}" x2="{at}" y1="{_HEAD - 4}" y2="{height}"/>'
    return picture(inner, label=label, css="timeline", size=f' height="{height}"', links=True)


def _band(band: Band, axis: Axis, height: int) -> str:
    """Hatched above the rows as a pause is in a bar, and tinted behind them."""
    begin, end = (share_of(at, axis.begin, axis.end) for at in (band.start, band.end))
    place = f'x="{axis.at(begin)}" width="{percent_of(max(_THINNEST, end - begin) * axis.width)}"'
    tinted = f'<rect class="soft" {place} y="{_HEAD - 4}" height="{height - _HEAD + 4}"/>'
    hatched = f'<rect class="seg band" {place} y="{_HEAD - 6}" height="6"{paint_of("paused")}/>'
    return f'<g class="{look_of_segment("paused").css}">{titled(band.words)}{tinted}{hatched}</g>'


def _axis(axis: Axis, height: int) -> str:
    drawn = ""
    for share, words in ticks((axis.end - axis.begin).total_seconds()):
        at = axis.at(share)
        css = "tiny muted end" if share > 0.98 else "tiny muted mid" if share else "tiny muted"
        drawn += f'<line class="rule" x1="{at}" x2="{at}" y1="{_HEAD - 4}" y2="{height}"/>'
        drawn += f'<text class="{css}" x="{at}" y="14">{words}</text>'
    return drawn


def _row(row: Barred, axis: Axis, top: int) -> str:
    look = look_of(row.state)
    indent = 16 * min(4, max(0, row.depth))
    room = _NAME_ROOM - indent - 24
    name = icon_at(row.state, indent, 4)
    name += f'<text x="{indent + 22}" y="16">{fitted(row.label, room)}</text>'
    hover = f"{row.label}: {word_of(row.state)}" + (f" · {row.note}" if row.note else "")
    frame = f'y="{top}" width="{percent_of(_LEFT - 0.01)}" height="{_ROW}"'
    named = linked(f'<rect class="hit" width="100%" height="{_ROW}"/>{name}', row.href)
    left = f'<svg class="{look.css}" {frame}>{titled(hover)}{named}</svg>'
    bars = rectangles(row.segments, axis, top=top + (_ROW - _BAR) / 2, height=_BAR, state=row.state)
    took = f'<text class="tiny muted end" x="100%" y="{top + 16}">{_worked(row, axis)}</text>'
    rule = f'<line class="rule" x1="0" x2="100%" y1="{number_of(top + _ROW)}" y2="{number_of(top + _ROW)}"/>'
    return rule + left + bars + took


def _worked(row: Barred, axis: Axis) -> str:
    """How long it was at work, if it was."""
    work = [segment for segment in row.segments if segment.kind == "running"]
    return say_time(sum(((one.end or axis.end) - one.start for one in work), timedelta())) if work else ""
