"""What templates may call for a mark: the shape of a state, that of the page, and the patterns of waiting."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from markupsafe import Markup

from queue_workflows.drawing.svg import hatches as patterns
from queue_workflows.drawing.svg import icons


def icon(state: str, label: str | None = None) -> Markup:
    """A state's shape in its tone, beside a word or told aloud by `label`."""
    return _drawn(icons.icon(state, label=label))


def state_mark(state: str) -> Markup:
    """A state's shape and its word."""
    return _drawn(icons.state_mark(state))


def brand() -> Markup:
    """The mark of the page."""
    return _drawn(icons.brand())


def hatches() -> Markup:
    """The patterns that bars refer to; once a page."""
    return _drawn(patterns.hatches())


def legend(kinds: list[str]) -> Markup:
    """What the patterns mean, for the kinds of segments that a drawing has."""
    return _drawn(patterns.legend(kinds))


def _drawn(svg: str) -> Markup:
    """Every text in it was escaped where it was drawn."""
    return Markup(svg)  # noqa: S704


GLOBALS: Final[Mapping[str, Callable[..., Markup]]] = {
    "icon": icon,
    "state_mark": state_mark,
    "brand": brand,
    "hatches": hatches,
    "legend": legend,
}
