"""`qwf audit`: what operators did."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from queue_workflows.cli import Invocation
from queue_workflows.cli.shared.operator import (
    json_option,
    operators_connection,
    print_json,
    print_table,
    say,
)
from queue_workflows.drawing.words import say_moment
from queue_workflows.repositories.sql.families import LARGEST_ID
from queue_workflows.views import audit as log

if TYPE_CHECKING:
    from queue_workflows.models import AuditLog


@click.command()
@click.option("--actor", metavar="NAME", help="By this actor.")
@click.option("--action", metavar="ACTION", help="Of this kind, such as run.cancel or workers.pause.")
@click.option(
    "--target",
    metavar="KIND:NAME",
    help="On this: ingest:7, node:7, run:ID, schedule:NAME, limit:KEY, rate:KEY, 'workers:HOST QUEUE'.",
)
@click.option(
    "--before",
    metavar="ID",
    type=click.IntRange(0, LARGEST_ID),
    help="Only what came before the entry with this id.",
)
@click.option(
    "--limit", type=click.IntRange(1, 10_000), default=log.USUAL, show_default=True, help="How many."
)
@json_option
@click.pass_obj
def audit(invocation: Invocation, /, *, as_json: bool, **given: Any) -> None:
    """Show what operators did, the latest first: the actor, when, what to, and why."""
    with operators_connection(invocation) as connection:
        page = log.audit(connection, **given)
    if as_json:
        print_json(log.json_of(page))
    else:
        print_table(
            ["ID", "AT", "ACTOR", "ACTION", "TARGET", "REASON"], [_cells(one) for one in page.entries]
        )
    if page.next is not None:
        say(f"--before {page.next} shows what came earlier")
    elif not page.entries:
        say("nothing was done that matches")


def _cells(one: AuditLog) -> list[str]:
    return [str(one.id), say_moment(one.at), one.actor, one.action, log.target_of(one), one.reason or ""]
