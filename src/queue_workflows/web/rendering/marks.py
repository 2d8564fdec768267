"""What templates may call for a mark: the shape of a state, that of the page, and the patterns of waiting."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import Final

from markupsafe import Markup, escape

from queue_workflows.drawing.svg import charts, gauges, icons
from queue_workflows.drawing.svg import hatches as patterns
from queue_workflows.web.rendering.hostile_text import in_line

LONGEST_SAID: Final = 1_000
# A point in time as explanations tell it, in UTC.
_MOMENT: Final = re.compile(r"\b(\d{4}-\d\d-\d\d) (\d\d:\d\d:\d\d)Z")
_TIME: Final = r'<time datetime="\1T\2+00:00" title="\g<0>">\g<0></time>'


def icon(state: str, label: str | None = None) -> Markup:
    """A state's shape in its tone, beside a word or told aloud by `label`."""
    return _drawn(icons.icon(state, label=label))


@lru_cache(maxsize=256)
def state_mark(state: str, word: str | None = None) -> Markup:
    """A state's shape and its word, or another one."""
    return _drawn(icons.state_mark(state, word))


def when(at: datetime | None, missing: str = "\N{EN DASH}") -> Markup:
    """A point in time: UTC here, the reader's zone where there is a script.

    No macro, as a page of rows calls it a hundred times.
    """
    if at is None:
        return Markup('<span class="muted">{}</span>').format(missing)
    utc = at.astimezone(UTC)
    day, clock = utc.date().isoformat(), utc.time().isoformat(timespec="seconds")
    said = f"{day} {clock}Z"
    return Markup(f'<time datetime="{day}T{clock}+00:00" title="{said}">{said}</time>')  # noqa: S704 - digits


def brand() -> Markup:
    """The mark of the page."""
    return _drawn(icons.brand())


def hatches() -> Markup:
    """The patterns that bars refer to; once a page."""
    return _drawn(patterns.hatches())


def legend(kinds: Collection[str] = tuple(patterns.SEGMENTS), state: str | None = None) -> Markup:
    """What the patterns mean, for the kinds of segments that a drawing has."""
    return _drawn(patterns.legend(kinds, state))


def said(text: object) -> Markup:
    """A sentence: its moments are times, what stands between backticks is code, its words are harmless."""
    parts = in_line(text, LONGEST_SAID).split("`")
    # A backtick that none follows is only itself.
    if len(parts) % 2 == 0:
        parts[-2:] = [f"{parts[-2]}`{parts[-1]}"]
    marked = (
        Markup("<code>{}</code>").format(part) if at % 2 else _timed(escape(part))
        for at, part in enumerate(parts)
    )
    return Markup("").join(marked)


def _timed(escaped: Markup) -> Markup:
    """The moments of a sentence so that a script can put them into its reader's zone, as all others."""
    return Markup(_MOMENT.sub(_TIME, str(escaped)))  # noqa: S704 - it was escaped


def gauge(used: float, limit: float | None, label: str = "", full_is_bad: bool = True) -> Markup:
    """How much of a limit is used; where `full_is_bad`, also how near its end that is."""
    return _drawn(gauges.gauge(used, limit, label=label, full_is_bad=full_is_bad))


def counts_bar(counts: Mapping[str, int], label: str = "") -> Markup:
    """Counts by state, side by side."""
    return _drawn(gauges.counts_bar(counts, label=label))


def counts_line(counts: Mapping[str, int]) -> Markup:
    """Counts with the marks of their states, which say without colour what the bar says."""
    return _drawn(gauges.counts_line(counts))


def spark(values: Sequence[float], label: str) -> Markup:
    """A line in a cell of a table."""
    return _drawn(charts.spark(values, label=label))


def bar_chart(values: Sequence[int], label: str, bad: Sequence[int] = (), first: str = "") -> Markup:
    """What ended in each minute, what failed among it marked."""
    return _drawn(charts.bar_chart(values, label=label, bad=bad, first=first))


def _drawn(svg: str) -> Markup:
    """Every text in it was escaped where it was drawn."""
    return Markup(svg)  # noqa: S704


GLOBALS: Final[Mapping[str, Callable[..., Markup]]] = {
    "icon": icon,
    "state_mark": state_mark,
    "when": when,
    "brand": brand,
    "hatches": hatches,
    "legend": legend,
    "said": said,
    "gauge": gauge,
    "counts_bar": counts_bar,
    "counts_line": counts_line,
    "spark": spark,
    "bar_chart": bar_chart,
}
