"""The life of one job as a bar: what it waited for, and when it was worked on."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from queue_workflows.drawing.svg.hatches import SEGMENTS, WORDS
from queue_workflows.drawing.svg.markup import percent_of, picture, text_of
from queue_workflows.drawing.svg.segments import Axis, Spanned, length_of, rectangles, told, whole_of
from queue_workflows.drawing.svg.ticks import share_of

_HEIGHT = 44
_BAR = 20
# What is narrower says on hover only what it is.
_NAMED = 0.11


def draw_wait_bar(
    segments: Sequence[Spanned], *, state: str | None = None, now: datetime | None = None
) -> str:
    """The pieces in their order, the wide ones named below."""
    segments = [segment for segment in segments if segment.kind in SEGMENTS]
    whole = whole_of(segments, now)
    if whole is None:
        return ""
    axis = Axis(*whole)
    inner = '<rect class="track" y=".5" width="100%" height="20"/>'
    inner += rectangles(segments, axis, top=0.5, height=_BAR, state=state)
    for segment in segments:
        inner += _name(segment, axis)
    label = "; ".join(told(segment, axis.end) for segment in segments[:20])
    return picture(inner, label=label, css="wait-bar", size=f' height="{_HEIGHT}"')


def _name(segment: Spanned, axis: Axis) -> str:
    """Its kind and its length, cut where the piece ends."""
    begin = share_of(segment.start, axis.begin, axis.end)
    share = share_of(segment.end or axis.end, axis.begin, axis.end) - begin
    if share < _NAMED:
        return ""
    words = text_of(f"{WORDS.get(segment.kind, segment.kind)} {length_of(segment, axis.end)}")
    return (
        f'<svg x="{percent_of(begin)}" y="{_BAR + 2}" width="{percent_of(share)}" height="20">'
        f'<text class="tiny muted" x="1" y="14">{words}</text></svg>'
    )
