"""`qwf limits`: how many jobs may hold a key at once, which hold it, and changing that while all runs."""

from __future__ import annotations

import click

from queue_workflows.cli import Invocation
from queue_workflows.cli.operations.rates import RateType, clear_rate, list_rates
from queue_workflows.cli.shared.lazy_group import CommandGroup
from queue_workflows.cli.shared.operator import (
    audit_options,
    json_option,
    operators_connection,
    print_json,
    print_table,
    say,
)
from queue_workflows.db.connections.snapshot_read import at_one_moment
from queue_workflows.drawing.words import on_one_line, say_moment
from queue_workflows.errors import ExitCode
from queue_workflows.repositories.limits.overview import COUNTED, LimitLine
from queue_workflows.views.limits.cap_changes import clear_cap, lines_of, said_of_clear, said_of_set, set_cap
from queue_workflows.views.limits.listing import json_of, limit_json, read_limits
from queue_workflows.views.limits.listing import limit as read_limit
from queue_workflows.views.limits.rate_changes import said_of_rate, set_rate
from queue_workflows.views.limits.what_if import KEYS_NAMED, KeyForecast, read_preview
from queue_workflows.views.limits.what_if import json_of as preview_json

_HOLDERS_SHOWN = 3
_TITLES = ["KEY", "CAP", "TAKEN", "WAITING", "HELD BY", "SET BY", "WHY"]


@click.group(cls=CommandGroup, no_args_is_help=True)
def limits() -> None:
    """Caps and rates of limit keys, across all workers.

    KEY is a key as jobs carry it, such as `host:example.org`, or a beginning with a star, such as `'host:*'`
    (in quotes, against the shell): the cap of each key that has none of its own.
    """


@limits.command("list")
@click.argument("keys", metavar="[KEY]...", nargs=-1)
@click.option(
    "--limit", default=100, show_default=True, type=click.IntRange(1, 10_000), help="At most this many."
)
@click.option("--after", default="", metavar="KEY", help="Go on after this key.")
@click.option("--rates", is_flag=True, help="Show rates and what is in their buckets, instead of caps.")
@json_option
@click.pass_obj
def list_(
    invocation: Invocation, *, keys: tuple[str, ...], limit: int, after: str, rates: bool, as_json: bool
) -> None:
    """Show keys and patterns: the cap, which jobs hold slots, how many wait."""
    with operators_connection(invocation) as connection:
        if rates:
            list_rates(connection, keys, limit=limit, after=after, as_json=as_json)
            return
        found = read_limits(connection, keys, limit=limit, after=after)
    if as_json:
        print_json(json_of(found))
        return
    print_table(_TITLES, list(map(_line, found)))
    if not found:
        say("no key has a limit, a holder or a lane")
    elif not keys and len(found) == limit:
        say(f"there may be more: --after '{on_one_line(found[-1].key)}'")


@limits.command()
@click.argument("key", metavar="KEY")
@json_option
@click.pass_obj
def show(invocation: Invocation, *, key: str, as_json: bool) -> None:
    """Show one key: its cap, which jobs hold its slots since when, and which come next."""
    with operators_connection(invocation) as connection, at_one_moment(connection):
        seen = read_limit(connection, key)
    if as_json:
        print_json(limit_json(seen))
        return
    print_table(_TITLES, [_line(seen.line)])
    print_table(
        ["SLOT", "JOB", "WORKER", "SINCE", "LEASE UNTIL"],
        [
            [
                str(one.slot),
                f"{one.job_family}:{one.job_id}",
                one.claimed_by,
                say_moment(one.acquired_at),
                say_moment(one.lease_expires_at),
            ]
            for one in seen.slots
        ],
    )
    print_table(
        ["NEXT", "QUEUE", "WHAT", "WHERE"],
        [
            [one.name, one.queue, one.title, "in its lane" if one.in_lane else "queued"]
            for one in seen.waiting
        ],
    )
    if not seen.slots and not seen.waiting:
        say(f"nothing holds {on_one_line(key)} and nothing waits for it")


@limits.command("set")
@click.argument("key", metavar="KEY")
@click.argument("most", metavar="[CAP]", type=click.IntRange(0, 2_147_483_647), required=False)
@click.option("--rate", "per_s", type=RateType(), help="Let KEY be used so often: 5/s, 100/min, 1000/h.")
@click.option("--burst", type=float, help="With --rate: how often at once; else what comes in a second.")
@click.option("--dry-run", is_flag=True, help="Of a CAP: say what it would be, change nothing.")
@audit_options
@json_option
@click.pass_obj
def set_(
    invocation: Invocation,
    *,
    key: str,
    most: int | None,
    per_s: float | None,
    burst: float | None,
    dry_run: bool,
    actor: str,
    reason: str | None,
    as_json: bool,
) -> None:
    """Let at most CAP jobs hold KEY at once, 0 closes it; or, with --rate, say how fast it may be used.

    What holds a slot keeps it, also where the cap is lowered; what a higher cap has room for starts at once.
    """
    if (most is None) == (per_s is None):
        raise click.UsageError("give a CAP or a --rate, one of them at a time")
    if burst is not None and per_s is None:
        raise click.UsageError("--burst goes with --rate")
    if dry_run and most is None:
        raise click.UsageError("--dry-run goes with a CAP")
    if most is None:
        assert per_s is not None  # noqa: S101 - one of them is given
        with operators_connection(invocation) as connection:
            rate = set_rate(connection, key, per_s, burst, actor=actor, reason=reason)
        print_json(rate.as_json()) if as_json else click.echo(said_of_rate(rate))
        return
    if dry_run:
        _preview(invocation, key, most, as_json=as_json)
        return
    with operators_connection(invocation) as connection:
        change = set_cap(connection, key, most, actor=actor, reason=reason)
    if as_json:
        print_json({"key": key, "max_slots": most, "was": change.was, "let_out": change.let_out})
        return
    click.echo(said_of_set(change))


def _preview(invocation: Invocation, key: str, most: int, *, as_json: bool) -> None:
    with operators_connection(invocation) as connection, at_one_moment(connection):
        seen = read_preview(connection, key, most)
    if as_json:
        print_json(preview_json(seen))
        return
    for line in lines_of(seen):
        click.echo(line)
    if key.endswith("*"):
        titles = ["KEY", "CAP", "THEN", "TAKEN", "OVER", "WAITING", "ROOM FOR"]
        print_table(titles, [_forecast(one) for one in seen.keys[:KEYS_NAMED]])


def _forecast(one: KeyForecast) -> list[str]:
    cap = "-" if one.cap_now is None else str(one.cap_now)
    figures = (one.cap_then, one.taken, one.over, one.waiting, one.could_begin)
    return [one.key, cap, *(f"{figure:,}" for figure in figures)]


@limits.command()
@click.argument("key", metavar="KEY")
@click.option("--rate", is_flag=True, help="Take its rate back, and not its cap.")
@audit_options
@json_option
@click.pass_obj
def clear(
    invocation: Invocation, *, key: str, rate: bool, actor: str, reason: str | None, as_json: bool
) -> ExitCode:
    """Take the limit of KEY back: what code declares holds, else the longest pattern, or none."""
    with operators_connection(invocation) as connection:
        if rate:
            return clear_rate(connection, key, actor=actor, reason=reason, as_json=as_json)
        change = clear_cap(connection, key, actor=actor, reason=reason)
    if as_json:
        cap = change.max_slots
        print_json({"key": key, "max_slots": cap, "was": change.was, "let_out": change.let_out})
    elif change.was is None:
        say(said_of_clear(change))
    else:
        click.echo(said_of_clear(change))
    return ExitCode.FAILED if change.was is None else ExitCode.DONE


def _line(line: LimitLine) -> list[str]:
    cap = "-" if line.max_slots is None else str(line.max_slots)
    more = line.taken - _HOLDERS_SHOWN
    held_by = " ".join(line.holders[:_HOLDERS_SHOWN]) + (f" and {more} more" if more > 0 else "")
    is_pattern = line.key.endswith("*")
    return [
        line.key,
        cap if line.is_own or line.max_slots is None else f"{cap} (pattern)",
        "-" if is_pattern else str(line.taken),
        "-" if is_pattern else (f"{COUNTED}+" if line.waiting > COUNTED else str(line.waiting)),
        held_by or "-",
        line.said_by or "-",
        line.said_of_it or "-",
    ]
