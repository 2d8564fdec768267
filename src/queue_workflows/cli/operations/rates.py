"""The rates among `qwf limits`: how fast a key may be used, and changing that while all runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
import psycopg

from queue_workflows.cli.shared.operator import print_json, print_table, say
from queue_workflows.drawing.words import on_one_line
from queue_workflows.errors import ExitCode
from queue_workflows.repositories.limits.rates import RateRepository
from queue_workflows.settings.declared_limits import per_s_of
from queue_workflows.views.limits.rate_changes import HOW, shown_rate
from queue_workflows.views.limits.rates import RateList, blocked_s, json_of, read_rates, tokens

if TYPE_CHECKING:
    from queue_workflows.models import RateLimit


class RateType(click.ParamType[float]):
    """So many in a time: `5/s`, `100/min`, `1000/h`, `10000/d`."""

    name = "N/s"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Tokens per second."""
        per_s = per_s_of(str(value))
        if per_s is None:
            self.fail(f"{value!r} is no rate: {HOW}", param, ctx)
        return per_s


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
    found = seen.rates
    if seen.missing:
        say(f"without a rate of its own: {', '.join(map(on_one_line, seen.missing))}")
    if as_json:
        print_json(json_of(seen))
        return
    print_table(
        ["KEY", "RATE", "BURST", "TOKENS", "BLOCKED FOR", "SET BY", "WHY"],
        [_line(seen, row) for row in found],
    )
    if not found and not keys:
        say("no key has a rate")
    elif not keys and len(found) == limit:
        say(f"there may be more: --after '{on_one_line(found[-1].rate_key)}'")


def _line(seen: RateList, row: RateLimit) -> list[str]:
    now = seen.now
    blocked = blocked_s(row, now)
    return [
        row.rate_key,
        shown_rate(seen.per_s(row)),
        f"{row.burst:g}",
        "-" if row.rate_key.endswith("*") else f"{int(tokens(row, now))}",
        f"{blocked:.0f} s" if blocked else "-",
        seen.said_by(row) or "-",
        seen.said_of_it(row) or "-",
    ]
