"""Bars of a whole: how much of a limit is used, and how many of all are in which state."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from queue_workflows.drawing.svg.icons import icon
from queue_workflows.drawing.svg.looks import look_of, word_of
from queue_workflows.drawing.svg.markup import number_of, percent_of, picture, text_of, titled

# From here on a bar changes its tone.
_HIGH, _FULL = 0.75, 0.95
# What is left to be done comes last, so that a bar fills from the left.
_FIRST: Final = ("completed", "skipped", "cancelled", "failed", "awaiting_input", "running", "active")
_THINNEST: Final = 0.012


def gauge(used: float, limit: float | None, *, label: str = "", full_is_bad: bool = True) -> str:
    """So much of a limit; beyond it the bar shows where the limit is, without one it is empty."""
    share = 0.0 if not limit else max(0.0, used / limit)
    figures = f"{used:,.0f} of {limit:,.0f}" if limit is not None else f"{used:,.0f}, no limit"
    words = f"{label}: {figures}" if label else figures
    whole = max(1.0, share)
    inner = titled(words) + '<rect class="track" y="4" width="100%" height="8" rx="4"/>'
    if share > 0:
        inner += f'<rect class="tone" y="4" width="{percent_of(min(1.0, share / whole))}" height="8" rx="4"/>'
    if whole > 1:
        at = percent_of(1 / whole)
        inner += f'<line class="limit" x1="{at}" x2="{at}" y1="1" y2="15"/>'
    return picture(inner, label=words, css=f"gauge tone-{_tone(share, full_is_bad)}")


def _tone(share: float, full_is_bad: bool) -> str:
    if not full_is_bad or share < _HIGH:
        return "work"
    return "bad" if share >= _FULL else "hold"


def counts_bar(counts: Mapping[str, int], *, label: str = "") -> str:
    """One bar of which each state has its share."""
    words = label or ", ".join(f"{count:,} {word_of(state)}" for state, count in _sorted(counts))
    inner = titled(words) + '<rect class="track" y="4" width="100%" height="8" rx="4"/>'
    for state, count, begin, share in _shares(counts):
        inner += (
            f'<rect class="tone {look_of(state).css}" x="{percent_of(begin)}" y="4"'
            f' width="{percent_of(share)}" height="8">{titled(f"{count:,} {word_of(state)}")}</rect>'
        )
    return picture(inner, label=words or "none", css="gauge")


def counts_line(counts: Mapping[str, int]) -> str:
    """The counts with the marks of their states, as HTML: what a bar says, without colour."""
    told = "".join(
        f'<li class="{look_of(state).css}">{icon(state)}{count:,} {text_of(word_of(state))}</li>'
        for state, count in _sorted(counts)
    )
    return f'<ul class="legend">{told}</ul>' if told else ""


def stacked_rects(counts: Mapping[str, int], *, left: float, width: float, top: float, height: float) -> str:
    """The bar within another picture, in its pixels."""
    place = f'y="{number_of(top)}" height="{number_of(height)}"'
    rects = f'<rect class="track" x="{number_of(left)}" width="{number_of(width)}" {place} rx="2"/>'
    for state, _, begin, share in _shares(counts):
        rects += (
            f'<rect class="tone {look_of(state).css}" x="{number_of(left + begin * width)}"'
            f' width="{number_of(share * width)}" {place}/>'
        )
    return rects


def _sorted(counts: Mapping[str, int]) -> list[tuple[str, int]]:
    known = {state: number for number, state in enumerate(_FIRST)}
    told = [(state, count) for state, count in counts.items() if count > 0]
    return sorted(told, key=lambda one: known.get(one[0], len(known)))


def _shares(counts: Mapping[str, int]) -> Iterator[tuple[str, int, float, float]]:
    """Each state with where it begins and how much it has: the fewest can still be seen."""
    told = _sorted(counts)
    total = sum(count for _, count in told)
    wide = {state: max(count / total, _THINNEST) for state, count in told}
    whole, begin = sum(wide.values()), 0.0
    for state, count in told:
        share = wide[state] / whole
        yield state, count, begin, share
        begin += share
