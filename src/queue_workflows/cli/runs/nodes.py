"""`qwf run nodes`: the jobs of one node of a run."""

from __future__ import annotations

import click

from queue_workflows.cli import Invocation
from queue_workflows.cli.shared.operator import (
    json_option,
    operators_connection,
    print_json,
    print_table,
    say,
)
from queue_workflows.cli.shared.run_names import run_named
from queue_workflows.db.connections.snapshot_read import at_one_moment
from queue_workflows.drawing.words import say_time
from queue_workflows.engine.explain.history import held_for, of_error
from queue_workflows.repositories.runs.elements import NodeElement
from queue_workflows.states import JobStatus
from queue_workflows.views.runs import elements

_LONGEST_NOTE = 120
_LARGEST_INDEX = 2**31 - 1


@click.command()
@click.argument("run_name", metavar="RUN")
@click.argument("node")
@click.option(
    "--state", type=click.Choice([status.value for status in JobStatus]), help="Only elements in this state."
)
@click.option(
    "--after",
    metavar="INDEX",
    type=click.IntRange(-2, _LARGEST_INDEX),
    help="Only what comes after the element with this index.",
)
@click.option(
    "--limit",
    type=click.IntRange(1, 10_000),
    default=elements.USUAL,
    show_default=True,
    help="How many.",
)
@json_option
@click.pass_obj
def nodes(
    invocation: Invocation,
    *,
    run_name: str,
    node: str,
    state: str | None,
    after: int | None,
    limit: int,
    as_json: bool,
) -> None:
    """Show the jobs of NODE of RUN: one for each element of a for_each, in the order of the list.

    RUN is an id, or its first eight digits or more. Of a large list a page may be short: what was looked at
    is bounded, and --after goes on.
    """
    with operators_connection(invocation) as connection, at_one_moment(connection):
        run_id = run_named(connection, run_name)
        shown = elements.node_page(connection, run_id, node, state=state, after=after, limit=limit)
    if as_json:
        print_json(elements.json_of(shown))
        return
    found = shown.page.elements
    print_table(["INDEX", "JOB", "STATUS", "TRIES", "TOOK", "NOTE"], [_cells(one) for one in found])
    if shown.page.next is not None:
        say(f"looked as far as element {shown.page.next}; --after {shown.page.next} goes on")
    elif not found:
        say(f"no element of {node} matches" if shown.counts else f"{node} is {shown.state}: it has no jobs")


def _cells(one: NodeElement) -> list[str]:
    took = "-"
    if one.started_at is not None and one.finished_at is not None:
        took = say_time(one.finished_at - one.started_at)
    index = "-" if one.index < 0 else str(one.index)
    return [index, f"node:{one.id}", one.status, str(one.attempt), took, _note(one)[:_LONGEST_NOTE]]


def _note(one: NodeElement) -> str:
    if one.hold_reason is not None:
        return f"held: {held_for(one.hold_reason, one.hold_key)}"
    if one.error is not None and one.status != JobStatus.COMPLETED:
        return of_error(one.error)
    return f"on {one.claimed_by}" if one.status == JobStatus.RUNNING else ""
