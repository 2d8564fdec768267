"""`qwf event`: what durable functions wait for."""

from __future__ import annotations

import json

import click

from queue_workflows.cli import Invocation
from queue_workflows.cli.shared.lazy_group import CommandGroup
from queue_workflows.cli.shared.operator import (
    json_option,
    operators_connection,
    print_json,
    print_table,
    say,
)
from queue_workflows.drawing.words import say_moment
from queue_workflows.repositories.durable.events import emit_event
from queue_workflows.repositories.sql.families import LARGEST_ID
from queue_workflows.views.jobs import steps


@click.group(cls=CommandGroup, no_args_is_help=True)
def event() -> None:
    """Emit events for durable functions, and list those that none has taken."""


@event.command()
@click.argument("name", metavar="EVENT")
@click.option("--payload", metavar="JSON", help="What the function gets.  [default: nothing]")
@json_option
@click.pass_obj
def emit(invocation: Invocation, *, name: str, payload: str | None, as_json: bool) -> None:
    """Emit EVENT: the function that waits for it goes on, or the next one that does."""
    try:
        value = None if payload is None else json.loads(payload)
    except ValueError as wrong:
        raise click.BadParameter(f"it is no JSON: {wrong}", param_hint="--payload") from None
    with operators_connection(invocation) as connection:
        event_id = emit_event(name, value, conn=connection)
    if as_json:
        print_json({"id": event_id, "event": name})
    else:
        say(f"event {event_id} is emitted: what waits for {name} is woken within about a second")


@event.command("list")
@click.option("--name", metavar="EVENT", help="Of this name.")
@click.option(
    "--after", type=click.IntRange(0, LARGEST_ID), default=0, metavar="ID", help="After the one with this id."
)
@click.option("--limit", type=click.IntRange(1, 10_000), default=50, show_default=True, help="How many.")
@json_option
@click.pass_obj
def list_(invocation: Invocation, *, name: str | None, after: int, limit: int, as_json: bool) -> None:
    """Show events that no function has taken, the oldest first."""
    with operators_connection(invocation) as connection:
        found = steps.kept_events(connection, name, after=after, limit=limit)
    if as_json:
        print_json(steps.json_of_events(found))
    elif found:
        print_table(
            ["ID", "EVENT", "EMITTED", "PAYLOAD"],
            [
                [str(one.id), one.name, say_moment(one.emitted_at), json.dumps(one.payload)[:120]]
                for one in found
            ],
        )
    else:
        say("no event waits to be taken")
    if len(found) == limit:
        say(f"--after {found[-1].id} goes on")
