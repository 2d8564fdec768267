"""The rates among `qwf limits`: how fast a key may be used, and changing that while all runs."""

from __future__ import annotations

import math
import re
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

import click
import psycopg

from queue_workflows.cli.shared.operator import print_json, print_table, say
from queue_workflows.drawing.words import on_one_line
from queue_workflows.errors import ExitCode
from queue_workflows.repositories.limits.rates import RateRepository
from queue_workflows.views.limits.rates import blocked_s, json_of, read_rates, tokens

if TYPE_CHECKING:
    from queue_workflows.models import RateLimit

_UNITS: Final = {"s": 1, "min": 60, "h": 3600, "d": 86_400}
_RATE: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)(?:/(s|min|h|d))?")


class RateType(click.ParamType[float]):
    """So many in a time: `5/s`, `100/min`, `1000/h`, `10000/d`."""

    name = "N/s"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Tokens per second."""
        found = _RATE.fullmatch(str(value))
        if found is None or not float(found[1]):
            self.fail(f"{value!r} is no rate: write 5/s, 100/min, 1000/h or 10000/d", param, ctx)
        return float(found[1]) / _UNITS[found[2] or "s"]


def shown_rate(per_s: float) -> str:
    """A rate in the first unit in which it is a whole number, else in the first in which it is one."""
    fitting = [unit for unit, seconds in _UNITS.items() if per_s * seconds >= 0.999_999]
    whole = [unit for unit in fitting if math.isclose(per_s * _UNITS[unit], round(per_s * _UNITS[unit]))]
    unit = (whole or fitting or ["d"])[0]
    return f"{per_s * _UNITS[unit]:g}/{unit}"


def set_rate(
    connection: psycopg.Connection[Any],
    key: str,
    per_s: float,
    burst: float | None,
    *,
    actor: str,
    reason: str | None,
) -> dict[str, Any]:
    """Say how fast a key may be used; what to tell of it."""
    rates = RateRepository(connection)
    before = rates.fetch(key)
    now = rates.set(key, per_s, burst, actor=actor, reason=reason)
    was = None if before is None else {"per_s": before.tokens_per_s, "burst": before.burst}
    return {"key": key, "per_s": now.tokens_per_s, "burst": now.burst, "was_rate": was}


def say_rate(told: dict[str, Any]) -> None:
    """One line."""
    was = told["was_rate"]
    before = "no rate of its own" if was is None else _rule(was["per_s"], was["burst"])
    click.echo(f"{on_one_line(told['key'])}: {_rule(told['per_s'], told['burst'])}, was {before}")


def clear_rate(
    connection: psycopg.Connection[Any], key: str, *, actor: str, reason: str | None, as_json: bool
) -> ExitCode:
    """Take a rate back, with its bucket."""
    gone = RateRepository(connection).clear(key, actor=actor, reason=reason)
    if as_json:
        was = None if gone is None else {"per_s": gone.tokens_per_s, "burst": gone.burst}
        print_json({"key": key, "was_rate": was})
    elif gone is None:
        say(f"{on_one_line(key)} has no rate: `qwf limits list --rates` shows those that have")
    else:
        click.echo(f"{on_one_line(key)}: no rate of its own any more")
    return ExitCode.FAILED if gone is None else ExitCode.DONE


def list_rates(
    connection: psycopg.Connection[Any], keys: tuple[str, ...], *, limit: int, after: str, as_json: bool
) -> None:
    """Patterns and buckets, with what is in them."""
    seen = read_rates(connection, keys, limit=limit, after=after)
    found, now = seen.rates, seen.now
    if seen.missing:
        say(f"without a rate of its own: {', '.join(map(on_one_line, seen.missing))}")
    if as_json:
        print_json(json_of(seen))
        return
    print_table(
        ["KEY", "RATE", "BURST", "TOKENS", "BLOCKED FOR", "SET BY", "WHY"],
        [_line(row, now) for row in found],
    )
    if not found and not keys:
        say("no key has a rate")
    elif not keys and len(found) == limit:
        say(f"there may be more: --after '{on_one_line(found[-1].rate_key)}'")


def _rule(per_s: float, burst: float) -> str:
    return f"{shown_rate(per_s)}, {burst:g} at once"


def _line(row: RateLimit, now: datetime) -> list[str]:
    blocked = blocked_s(row, now)
    return [
        row.rate_key,
        shown_rate(row.tokens_per_s),
        f"{row.burst:g}",
        "-" if row.rate_key.endswith("*") else f"{int(tokens(row, now))}",
        f"{blocked:.0f} s" if blocked else "-",
        row.updated_by or "-",
        row.reason or "-",
    ]
