"""`qwf schedule`: look at schedules, switch them, have them enqueue a job at once."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click
import psycopg

from queue_workflows.cli import Invocation
from queue_workflows.cli.operations.schedule_preview import preview
from queue_workflows.cli.shared.lazy_group import CommandGroup
from queue_workflows.cli.shared.operator import (
    audit_options,
    json_option,
    operators_connection,
    print_json,
    print_table,
    say,
)
from queue_workflows.drawing.words import say_moment
from queue_workflows.engine.schedules.declared import task_options
from queue_workflows.errors import ExitCode, UnknownSchedule
from queue_workflows.repositories.schedules.schedules import ScheduleRepository, state_of
from queue_workflows.views.schedules import listing

if TYPE_CHECKING:
    from queue_workflows.models import Schedule


@click.group(cls=CommandGroup, no_args_is_help=True)
def schedule() -> None:
    """See schedules and when they tick; pause and resume them, or have one enqueue its job now.

    A scheduler (`qwf scheduler`) inserts their jobs. Schedules are declared in the host app's wiring.
    """


schedule.add_command(preview)


@schedule.command("list")
@json_option
@click.pass_obj
def list_(invocation: Invocation, *, as_json: bool) -> None:
    """Show every schedule: its times, its job, when it ticked and when it will."""
    with operators_connection(invocation) as connection:
        found = listing.schedules(connection)
    if as_json:
        print_json(listing.json_of(found))
        return
    print_table(
        ["NAME", "STATE", "CRON", "TIMEZONE", "TASK", "QUEUE", "LAST", "NEXT"], [_line(one) for one in found]
    )
    if not found:
        say("there is no schedule; the host app's wiring declares some with set_ingest_schedule")


def _line(one: Schedule) -> list[str]:
    now = datetime.now(UTC)
    ticks = state_of(one) == "on"
    return [
        one.name,
        state_of(one),
        one.cron,
        one.timezone,
        one.task_name,
        one.queue,
        say_moment(one.last_tick_at, now=now) if one.last_tick_at else "-",
        say_moment(one.next_tick_at, now=now) if ticks and one.next_tick_at else "-",
    ]


@schedule.command()
@click.argument("name")
@audit_options
@json_option
@click.pass_obj
def trigger(invocation: Invocation, *, name: str, actor: str, reason: str | None, as_json: bool) -> ExitCode:
    """Enqueue the job of schedule NAME now, beside its ticks, and print which it is."""
    with operators_connection(invocation) as connection:
        schedules = ScheduleRepository(connection)
        found = listing.schedule(connection, name)
        job = schedules.trigger(name, actor=actor, reason=reason, options=task_options(found))
    if job is None:
        raise UnknownSchedule(name)
    if as_json:
        print_json({"schedule": name, "job": f"ingest:{job}"})
    else:
        click.echo(f"ingest:{job}")
    return ExitCode.DONE


def _switching(command: Any) -> Any:
    return click.argument("names", metavar="NAME...", nargs=-1, required=True)(audit_options(command))


@schedule.command()
@_switching
@click.pass_obj
def pause(invocation: Invocation, /, **asked: Any) -> ExitCode:
    """Have schedules tick no more until they are resumed, whatever is restarted or deployed meanwhile."""
    return _switch(invocation, enabled=False, **asked)


@schedule.command()
@_switching
@click.pass_obj
def resume(invocation: Invocation, /, **asked: Any) -> ExitCode:
    """Have paused schedules tick again; what fell due meanwhile does not come."""
    return _switch(invocation, enabled=True, **asked)


def _switch(
    invocation: Invocation, *, names: tuple[str, ...], enabled: bool, actor: str, reason: str | None
) -> ExitCode:
    """All names are looked up before the first is switched."""
    with operators_connection(invocation) as connection:
        schedules = ScheduleRepository(connection)
        for name in names:
            listing.schedule(connection, name)
        for name in dict.fromkeys(names):
            changed = schedules.set_enabled(name, enabled, actor=actor, reason=reason)
            word = "on" if enabled else "paused"
            click.echo(f"{name} is {word}" if changed else f"{name} was {word} already")
            if enabled:
                _name_what_else(connection, name)
    return ExitCode.DONE


def _name_what_else(connection: psycopg.Connection[Any], name: str) -> None:
    found = ScheduleRepository(connection).fetch(name)
    if found is not None and state_of(found) == "not declared":
        say(f"{name} does not tick all the same: {found.declared_by} does not declare it any more")
