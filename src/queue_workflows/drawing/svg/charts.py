"""Figures over time: how many jobs ended in each minute, or how a machine was used."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from queue_workflows.drawing.svg.markup import number_of, percent_of, picture, text_of, titled

# More points than that are not told apart on a screen.
MOST_POINTS: Final = 400
_TOP: Final = 18
_PLOT: Final = 72
_HEIGHT: Final = 112


def spark(values: Sequence[float], *, label: str) -> str:
    """A small curve without an axis, for a table or a card."""
    shown = [max(0.0, float(value)) for value in values[-MOST_POINTS:]]
    top = max(shown, default=0.0)
    inner = '<line class="base" x1="0" x2="100%" y1="31.5" y2="31.5"/>'
    if top > 0 and len(shown) > 1:
        width = len(shown) - 1
        line = _line(shown, top, 30.0)
        inner += (
            f'<svg viewBox="0 0 {width} 32" preserveAspectRatio="none" width="100%" height="100%">'
            f'<path class="area" d="M0 32L{line}L{width} 32z"/><path class="curve" d="M{line}"/></svg>'
        )
    return picture(
        titled(label) + inner,
        label=label,
        css="spark",
        size=' viewBox="0 0 120 32" preserveAspectRatio="none"',
    )


def _line(values: Sequence[float], top: float, height: float) -> str:
    return "L".join(
        f"{number} {number_of(height - value / top * (height - 2) + 1)}"
        for number, value in enumerate(values)
    )


def bar_chart(
    values: Sequence[int],
    *,
    label: str,
    bad: Sequence[int] = (),
    first: str = "",
    last: str = "now",
    unit: str = "a minute",
) -> str:
    """A bar for each stretch of time, of which `bad` is a part; the axis says the highest."""
    shown = list(values[-MOST_POINTS:])
    of_which = [*bad[-MOST_POINTS:], *[0] * len(shown)][: len(shown)]
    top = nice_top(max(shown, default=0))
    inner = _frame(f"{top:,} {unit}", first, last)
    for number, (value, wrong) in enumerate(zip(shown, of_which, strict=True)):
        inner += _bar(number, len(shown), value, min(value, wrong), top)
    return picture(inner, label=label, css="chart")


def _bar(number: int, count: int, value: int, wrong: int, top: int) -> str:
    x, width = percent_of(number / count), percent_of(0.8 / count)
    words = f"{value:,}" + (f", {wrong:,} of them failed" if wrong else "")
    whole = f'x="{x}" y="{_TOP}" width="{percent_of(1 / count)}" height="{_PLOT}"'
    drawn = f'<rect class="hit" {whole}>{titled(words)}</rect>'
    if not value:
        return drawn
    high = max(1.5, value / top * _PLOT)
    low = max(1.5, wrong / top * _PLOT) if wrong else 0.0
    base = _TOP + _PLOT
    # Work that went wrong stands at the bottom and has a tone of its own, and a gap above it.
    good = f'<rect class="bars" {_column(base - high, high - low)} x="{x}" width="{width}"/>'
    failed = f'<rect class="bars tone tone-bad" {_column(base - low + 1, low)} x="{x}" width="{width}"/>'
    return (good if high > low else "") + (failed if wrong else "") + drawn


def _column(top: float, height: float) -> str:
    return f'y="{number_of(top)}" height="{number_of(height)}"'


def line_chart(
    values: Sequence[float | None],
    *,
    top: float,
    label: str,
    unit: str = "",
    first: str = "",
    last: str = "now",
) -> str:
    """A curve from the left to the right, broken where nothing is known."""
    shown = [None if value is None else min(top, max(0.0, float(value))) for value in values[-MOST_POINTS:]]
    inner = _frame(f"{top:,.0f}{unit}", first, last)
    width = max(1, len(shown) - 1)
    curves = "".join(_piece(piece, top, width) for piece in _pieces(shown))
    scale = f'viewBox="0 0 {width} {_PLOT}" preserveAspectRatio="none"'
    inner += f'<svg y="{_TOP}" width="100%" height="{_PLOT}" {scale}>{curves}</svg>'
    return picture(titled(label) + inner, label=label, css="chart")


def _pieces(values: Sequence[float | None]) -> Iterator[list[tuple[int, float]]]:
    """What is known without a gap; a single point is as wide as one."""
    piece: list[tuple[int, float]] = []
    for number, value in enumerate([*values, None]):
        if value is not None:
            piece.append((number, value))
        elif piece:
            yield piece if len(piece) > 1 else [*piece, (piece[0][0] + 1, piece[0][1])]
            piece = []


def _piece(points: Sequence[tuple[int, float]], top: float, width: int) -> str:
    line = "L".join(
        f"{min(number, width)} {number_of(_PLOT - (value / top * (_PLOT - 2) if top > 0 else 0) - 1)}"
        for number, value in points
    )
    first, last = points[0][0], min(points[-1][0], width)
    return (
        f'<path class="area" d="M{first} {_PLOT}L{line}L{last} {_PLOT}z"/><path class="curve" d="M{line}"/>'
    )


def _frame(top: str, first: str, last: str) -> str:
    """The lines of nothing and of the highest, and what they are."""
    base = _TOP + _PLOT
    return (
        f'<line class="rule" x1="0" x2="100%" y1="{_TOP}" y2="{_TOP}"/>'
        f'<line class="rule" x1="0" x2="100%" y1="{base}" y2="{base}"/>'
        f'<text class="tiny muted" x="0" y="{_TOP - 5}">{text_of(top)}</text>'
        f'<text class="tiny muted" x="0" y="{_HEIGHT - 6}">{text_of(first)}</text>'
        f'<text class="tiny muted end" x="100%" y="{_HEIGHT - 6}">{text_of(last)}</text>'
    )


def nice_top(highest: float) -> int:
    """The next of 1, 2, 5, 10, 20 …, so that the axis seldom changes while the figures do."""
    power = 1
    while True:
        for step in (1, 2, 5):
            if step * power >= highest:
                return step * power
        power *= 10
