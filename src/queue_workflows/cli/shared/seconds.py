"""Seconds on a command line."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any, Final

import click

from queue_workflows.settings import DAY_S


class Seconds(click.FloatRange):
    """From nothing to a day; `nan` is in no range, though it compares as neither too small nor too large."""

    def __init__(self, *, min_open: bool = False) -> None:
        super().__init__(0, DAY_S, min_open=min_open)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        seconds = float(super().convert(value, param, ctx))
        if math.isnan(seconds):
            self.fail(f"{value!r} is not a number of seconds.", param, ctx)
        return seconds


_UNITS: Final = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": DAY_S}
_DURATION: Final = re.compile(r"(?:[0-9]{1,9}(?:\.[0-9]{1,9})?[dhms])+|[0-9]{1,9}(?:\.[0-9]{1,9})?")
_PART: Final = re.compile(r"([0-9.]+)([dhms]?)")
LONGEST_S: Final = 366 * DAY_S


class Duration(click.ParamType[float | None]):
    """Seconds, or with units as in `90s`, `60m`, `1h30m`, `2d`; `none` where that is allowed."""

    name = "duration"

    def __init__(self, *, zero: bool = False, none: bool = False) -> None:
        self._zero, self._none = zero, none

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float | None:
        text = str(value).strip().lower()
        if self._none and text == "none":
            return None
        if not _DURATION.fullmatch(text):
            also = ", or none" if self._none else ""
            self.fail(f"{value!r} is no duration: write it as 90s, 60m, 1h30m or 2d{also}.", param, ctx)
        seconds = sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(text))
        if seconds > LONGEST_S or (seconds == 0 and not self._zero):
            least = "from 0" if self._zero else "more than 0,"
            self.fail(f"{value!r} is out of range: {least} up to 366d.", param, ctx)
        return seconds


def schema_wait_option(where: str = "") -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """How long a role waits for its schema when it starts; `where` says for which of its places that is."""
    return click.option(
        "--schema-wait",
        type=Seconds(),
        default=60.0,
        show_default=True,
        help=f"Seconds to wait for a schema that is new enough{where}, before ending with status 79.",
    )
