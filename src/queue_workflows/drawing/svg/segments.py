"""A life in pieces: what a job waited for, and when it was worked on, as rectangles on an axis of time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import zip_longest
from typing import Protocol

from queue_workflows.drawing.svg.hatches import SEGMENTS, WORDS, look_of_segment, paint_of
from queue_workflows.drawing.svg.markup import number_of, percent_of, titled
from queue_workflows.drawing.svg.ticks import share_of
from queue_workflows.drawing.words import say_time

# Work for a moment can still be seen, as this share of the axis.
_THINNEST = 0.003


class Spanned(Protocol):
    """A piece: one of the kinds in `hatches.SEGMENTS`, from `start` to `end`; None is now."""

    @property
    def kind(self) -> str: ...
    @property
    def start(self) -> datetime: ...
    @property
    def end(self) -> datetime | None: ...
    @property
    def note(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Segment:
    """A piece by its values alone."""

    kind: str
    start: datetime
    end: datetime | None = None
    note: str = ""


@dataclass(frozen=True, slots=True)
class Axis:
    """The part of a picture's width, in shares, on which a span of time lies."""

    begin: datetime
    end: datetime
    left: float = 0.0
    width: float = 1.0

    def at(self, share: float) -> str:
        """A place on it."""
        return percent_of(self.left + share * self.width)


def rectangles(
    segments: Sequence[Spanned], axis: Axis, *, top: float, height: float, state: str | None
) -> str:
    """The pieces in a row, of which work has the tone of `state`."""
    place = f'y="{number_of(top)}" height="{number_of(height)}"'
    drawn = ""
    for segment, after in zip_longest(segments, segments[1:]):
        begin = share_of(segment.start, axis.begin, axis.end)
        share = share_of(segment.end or axis.end, axis.begin, axis.end) - begin
        works = segment.kind == "running"
        if share <= 0 and not works:
            continue
        share = max(share, _THINNEST) if works else share
        begin = min(begin, 1 - share)
        # What is tried again did not go well; what is not the last work came to nothing known.
        look = look_of_segment(segment.kind, _end_of(after, state))
        drawn += (
            f'<rect class="seg {look.css}{" work" if works else ""}" x="{axis.at(begin)}"'
            f' width="{percent_of(share * axis.width)}" {place}{paint_of(segment.kind)}>'
            f"{titled(told(segment, axis.end))}</rect>"
        )
    return drawn


def _end_of(after: Spanned | None, state: str | None) -> str | None:
    """What a piece of work came to: the state at the end, or a failure where a retry follows."""
    if after is None or after.kind not in SEGMENTS:
        return state
    return "failed" if after.kind == "retry" else None


def told(segment: Spanned, now: datetime) -> str:
    """A piece in words."""
    words = f"{WORDS.get(segment.kind, segment.kind)} for {length_of(segment, now)}"
    return f"{words}: {segment.note}" if segment.note else words


def length_of(segment: Spanned, now: datetime) -> str:
    """How long it took."""
    return say_time((segment.end or now) - segment.start)


def whole_of(segments: Sequence[Spanned], now: datetime | None) -> tuple[datetime, datetime] | None:
    """From the first beginning to the last end, or to `now` where one goes on."""
    if not segments:
        return None
    begin = min(segment.start for segment in segments)
    end = max(segment.end or now or segment.start for segment in segments)
    return begin, max(end, begin + timedelta(milliseconds=1))
