"""The options of a role's log; `logs` sets it up, with all that takes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import click

JSON: Final = "json"
_LEVELS: Final = ("debug", "info", "warning", "error", "critical")
_FORMATS: Final = ("text", JSON)


def log_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """What a role writes of itself and of its jobs, and how."""
    level = click.option(
        "--log-level",
        type=click.Choice(_LEVELS, case_sensitive=False),
        help="Write what is at least so grave; QWF_LOG_LEVEL, else info.",
    )
    form = click.option(
        "--log-format",
        type=click.Choice(_FORMATS),
        help="Lines to read, or a JSON object each; QWF_LOG_FORMAT, else text.",
    )
    return level(form(command))
