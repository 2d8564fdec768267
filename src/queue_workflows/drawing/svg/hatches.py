"""The patterns by which kinds of waiting differ in a bar, drawn once a page and referred to by each bar.

What works is solid; what waits is hatched, each kind in its own way, so that a bar is read without colour.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

from queue_workflows.drawing.svg.looks import Look, look_of
from queue_workflows.drawing.svg.markup import text_of

_SOLID: Final = ""
_ENDS: Final = ("completed", "failed", "cancelled")

# Kind of a segment: its tone, and what its pattern of eight by eight consists of.
SEGMENTS: Final[Mapping[str, Look]] = {
    "parents": Look("idle", '<circle class="hatch dotty" cx="2" cy="2" r="1"/>'),
    "due": Look("due", '<path class="hatch" d="M0 4h8"/>'),
    "held": Look("hold", '<path class="hatch" d="M-1 9 9-1M-1 1l2-2M7 9l2-2"/>'),
    "queued": Look("idle", '<path class="hatch" d="M2 0v8"/>'),
    "unserved": Look("idle", '<path class="hatch" d="M0 2h4M4 6h4"/>'),
    "paused": Look("hold", '<path class="hatch" d="M2 0v8M4.5 0v8"/>'),
    "running": Look("work", _SOLID),
    "over": Look("idle", '<circle class="hatch dotty" cx="6" cy="6" r="1"/>'),
    "retry": Look("bad", '<path class="hatch" d="M-1-1 9 9M-1 7l2 2M7-1l2 2"/>'),
    "parked": Look("ask", '<path class="hatch" d="M0 4l4-4 4 4-4 4z"/>'),
}
# In what a segment is called where a bar is explained.
WORDS: Final[Mapping[str, str]] = {
    "parents": "waits for parents",
    "due": "not due yet",
    "held": "held",
    "queued": "queued",
    "unserved": "nothing of its queue ran",
    "paused": "paused",
    "running": "at work",
    "over": "over, until it was retried",
    "retry": "before a retry",
    "parked": "parked",
}


def look_of_segment(kind: str, state: str | None = None) -> Look:
    """Work has the tone of what it came to, if it has come to an end; waiting has its kind's."""
    if kind == "running" and state in _ENDS:
        return Look(look_of(state).tone, _SOLID)
    return SEGMENTS.get(kind, SEGMENTS["queued"])


def paint_of(kind: str) -> str:
    """The attribute that fills a segment of this kind, if it is not solid."""
    known = kind if kind in SEGMENTS else "queued"
    return f' fill="url(#hatch-{known})"' if SEGMENTS[known].shape else ""


def hatches() -> str:
    """All patterns; stands once in a page, before what refers to them."""
    patterns = "".join(
        f'<pattern id="hatch-{kind}" class="{look.css}" width="8" height="8" patternUnits="userSpaceOnUse">'
        f'<rect class="soft" width="8" height="8"/>{look.shape}</pattern>'
        for kind, look in SEGMENTS.items()
        if look.shape
    )
    return f'<svg class="defs" aria-hidden="true" focusable="false"><defs>{patterns}</defs></svg>'


def legend(kinds: Collection[str], state: str | None = None) -> str:
    """What the patterns mean, for the kinds that a picture has; work has the tone of a job's `state`.

    Of a picture of many jobs, which has no such state, also what the tones of their work mean.
    """
    entries = [_entry(kind, state, WORDS[kind]) for kind in SEGMENTS if kind in kinds]
    if state is None and "running" in kinds:
        entries += [_entry("running", end, end) for end in ("completed", "failed")]
    return f'<ul class="legend">{"".join(entries)}</ul>'


def _entry(kind: str, state: str | None, word: str) -> str:
    return (
        f'<li><svg class="{look_of_segment(kind, state).css}" aria-hidden="true">'
        f'<rect class="seg{_work(kind)}"'
        f' x=".5" y=".5" width="23" height="11"{paint_of(kind)}/></svg>{text_of(word)}</li>'
    )


def _work(kind: str) -> str:
    return "" if SEGMENTS[kind].shape else " work"
