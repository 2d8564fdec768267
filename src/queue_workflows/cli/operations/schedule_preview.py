"""`qwf schedule preview`: the next ticks of a schedule, or of an expression that is none yet."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from typing import Any, Final

import click

from queue_workflows.cli import Invocation
from queue_workflows.cli.shared.operator import (
    json_option,
    operators_connection,
    print_json,
    print_table,
    say,
)
from queue_workflows.engine.schedules.cron import is_moved, ticks_after, zone_of
from queue_workflows.engine.schedules.due_ticks import begins_at
from queue_workflows.errors import UnknownSchedule
from queue_workflows.repositories.schedules.schedules import (
    ScheduleRepository,
    cron_expression,
    state_of,
    time_zone,
)
from queue_workflows.repositories.schedules.ticks import TickRepository

# Nearer to the ends of the calendar a time zone leads beyond them.
_YEARS: Final = (1900, 9000)


@dataclass(frozen=True)
class _Asked:
    """The schedule, and the time after which its ticks are shown."""

    cron: str
    timezone: str
    after: datetime
    name: str | None = None
    jitter_s: float = 0.0
    remark: str | None = None


def _moment(_ctx: click.Context, _param: click.Parameter, value: str | None) -> datetime | None:
    if value is None:
        return None
    try:
        moment = datetime.fromisoformat(value)
    except ValueError:
        moment = None
    if moment is None or not _YEARS[0] <= moment.year <= _YEARS[1]:
        raise click.BadParameter(f"{value!r} is no moment; write 2026-10-24 or 2026-10-24T22:00")
    return moment


@click.command()
@click.argument("name", required=False)
@click.option(
    "--count", type=click.IntRange(1, 10_000), default=10, show_default=True, help="How many ticks."
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
        asked = _Asked(
            cron_expression(cron), time_zone("UTC" if timezone is None else timezone), datetime.now(UTC)
        )
    else:
        asked = _of_schedule(invocation, str(name))
    zone = zone_of(asked.timezone)
    since = asked.after if after is None else after if after.tzinfo else after.replace(tzinfo=zone)
    ticks = list(islice(ticks_after(asked.cron, asked.timezone, since), count))
    if as_json:
        print_json([_plain(asked, tick) for tick in ticks])
        return
    with_jitter = ["BEGINS"] if asked.jitter_s else []
    print_table([asked.timezone.upper(), "UTC", *with_jitter, ""], list(_lines(asked, ticks)))
    if not ticks:
        say("no tick comes after that")
    if asked.remark:
        say(asked.remark)


def _of_schedule(invocation: Invocation, name: str) -> _Asked:
    with operators_connection(invocation) as connection:
        found = ScheduleRepository(connection).fetch(name)
        now = TickRepository(connection).now()
    if found is None:
        raise UnknownSchedule(name)
    state = state_of(found)
    remark = None if state == "on" else f"{name} is {state}: it does not tick"
    return _Asked(cron_expression(found.cron), time_zone(found.timezone), now, name, found.jitter_s, remark)


def _lines(asked: _Asked, ticks: list[datetime]) -> Iterator[list[str]]:
    zone = zone_of(asked.timezone)
    for tick in ticks:
        local = tick.astimezone(zone)
        cells = [f"{local:%a %Y-%m-%d %H:%M:%S %Z %z}", f"{tick:%Y-%m-%d %H:%M:%SZ}"]
        if asked.jitter_s:
            cells.append(f"{_begins(asked, tick):%H:%M:%S}Z")
        yield [*cells, _remark(asked, tick)]


def _remark(asked: _Asked, tick: datetime) -> str:
    """What the clock's jumps have to do with it."""
    local = tick.astimezone(zone_of(asked.timezone))
    if is_moved(asked.cron, asked.timezone, tick):
        return "its time is left out; the clock jumps forward to here"
    if local.replace(fold=0).utcoffset() != local.replace(fold=1).utcoffset():
        return f"the {'second' if local.fold else 'first'} of two such times"
    return ""


def _begins(asked: _Asked, tick: datetime) -> datetime:
    return begins_at(asked.name or "", tick, asked.jitter_s)


def _plain(asked: _Asked, tick: datetime) -> dict[str, Any]:
    return {
        "tick_at": tick,
        "local": tick.astimezone(zone_of(asked.timezone)),
        "begins_at": _begins(asked, tick),
        "remark": _remark(asked, tick) or None,
    }
