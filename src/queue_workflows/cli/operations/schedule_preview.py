"""`qwf schedule preview`: the next ticks of a schedule, or of an expression that is none yet."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

import click

from queue_workflows.cli import Invocation
from queue_workflows.cli.shared.operator import (
    json_option,
    operators_connection,
    print_json,
    print_table,
    say,
)
from queue_workflows.views.schedules import preview as ticks


def _moment(_ctx: click.Context, _param: click.Parameter, value: str | None) -> datetime | None:
    if value is None:
        return None
    try:
        moment = datetime.fromisoformat(value)
    except ValueError:
        moment = None
    if moment is None or not ticks.YEARS[0] <= moment.year <= ticks.YEARS[1]:
        raise click.BadParameter(f"{value!r} is no moment; write 2026-10-24 or 2026-10-24T22:00")
    return moment


@click.command()
@click.argument("name", required=False)
@click.option(
    "--count",
    type=click.IntRange(1, ticks.MOST),
    default=ticks.USUAL,
    show_default=True,
    help="How many ticks.",
)
@click.option("--cron", metavar="EXPR", help="Of this expression, instead of a schedule; asks no database.")
@click.option("--timezone", metavar="TZ", help="With --cron: the time zone.  [default: UTC]")
@click.option(
    "--after",
    callback=_moment,
    metavar="MOMENT",
    help="Later than this, as 2026-10-24 or 2026-10-24T22:00, by the zone's clocks.  [default: now]",
)
@json_option
@click.pass_obj
def preview(
    invocation: Invocation,
    *,
    name: str | None,
    count: int,
    cron: str | None,
    timezone: str | None,
    after: datetime | None,
    as_json: bool,
) -> None:
    """Show when schedule NAME ticks next, by the clocks of its zone, whatever jumps they make, and in UTC."""
    if (name is None) == (cron is None):
        raise click.UsageError("say which: the NAME of a schedule, or --cron EXPR")
    if timezone is not None and cron is None:
        raise click.UsageError("--timezone goes with --cron; a schedule has its own")
    if cron is not None:
        zone = "UTC" if timezone is None else timezone
        shown = ticks.preview_of_expression(cron, zone, after=after, count=count)
    else:
        with operators_connection(invocation) as connection:
            shown = ticks.preview_of_schedule(connection, str(name), after=after, count=count)
    if as_json:
        print_json(ticks.json_of(shown))
        return
    with_jitter = ["BEGINS"] if shown.jitter_s else []
    print_table([shown.timezone.upper(), "UTC", *with_jitter, ""], list(_lines(shown)))
    if not shown.ticks:
        say("no tick comes after that")
    if shown.state != "on":
        say(f"{name} is {shown.state}: it does not tick")


def _lines(shown: ticks.SchedulePreview) -> Iterator[list[str]]:
    for tick in shown.ticks:
        cells = [f"{tick.local:%a %Y-%m-%d %H:%M:%S %Z %z}", f"{tick.tick_at:%Y-%m-%d %H:%M:%SZ}"]
        if shown.jitter_s:
            cells.append(f"{tick.begins_at:%H:%M:%S}Z")
        yield [*cells, tick.remark or ""]
