"""Seconds on a command line."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

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


def schema_wait_option(where: str = "") -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """How long a role waits for its schema when it starts; `where` says for which of its places that is."""
    return click.option(
        "--schema-wait",
        type=Seconds(),
        default=60.0,
        show_default=True,
        help=f"Seconds to wait for a schema that is new enough{where}, before ending with status 79.",
    )
