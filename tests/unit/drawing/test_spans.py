"""Lengths of time on command lines."""

from __future__ import annotations

from datetime import timedelta

import click
import pytest

from queue_workflows.cli.shared.durations import span
from queue_workflows.drawing.words import say_span, say_time


@pytest.mark.parametrize(
    ("written", "seconds"),
    [
        ("90", 90.0),
        ("90s", 90.0),
        (" 15M ", 900.0),
        ("2h", 7200.0),
        ("1.5h", 5400.0),
        ("1h30m", 5400.0),
        ("1d", 86_400.0),
        ("2w", 1_209_600.0),
    ],
)
def test_a_span_is_read(written: str, seconds: float) -> None:
    """Plain seconds, or numbers with their units."""
    assert span(written) == seconds


@pytest.mark.parametrize(
    "written", ["", "0", "0s", "-5", "nan", "inf", "1e9", "h", "2 h", "1h30", "2y", "99999w", "٣s", "1_0"]
)
def test_what_is_no_span_is_refused(written: str) -> None:
    """With the forms that are."""
    with pytest.raises(click.BadParameter, match="write 90s, 15m, 2h"):
        span(written)


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (-1, "0s"),
        (0.9, "0s"),
        (59.9, "59s"),
        (60, "1m"),
        (185, "3m 5s"),
        (7800, "2h 10m"),
        (86_400, "1d"),
        (442_800, "5d 3h"),
    ],
)
def test_a_span_is_said_in_two_units(seconds: float, said: str) -> None:
    """As coarse as a person needs it."""
    assert say_span(seconds) == said


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (0, "0.0s"),
        (0.0002, "0.0s"),
        (0.003, "3ms"),
        (0.0494, "49ms"),
        (0.05, "0.1s"),
        (9.96, "10.0s"),
        (10, "10s"),
    ],
)
def test_a_short_time_is_said_by_its_thousandths(seconds: float, said: str) -> None:
    """What took a few milliseconds did not take nothing."""
    assert say_time(timedelta(seconds=seconds)) == said
