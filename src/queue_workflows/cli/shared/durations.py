"""Lengths of time as options of click."""

from __future__ import annotations

import click

from queue_workflows.views.filters.spans import HOW, is_span, seconds_of


def span(value: str | float) -> float:
    """Seconds, from `90`, `90s`, `15m`, `2h`, `1d`, `1h30m`; for options of click."""
    seconds = value if isinstance(value, float) else seconds_of(value)
    if seconds is None or not is_span(seconds):
        raise click.BadParameter(f"{value!r} is no length of time: {HOW}")
    return seconds
