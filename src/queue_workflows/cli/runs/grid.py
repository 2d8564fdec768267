"""`qwf run grid` and `qwf run workflows`: a workflow by its last runs, and which workflows there are."""

from __future__ import annotations

import uuid

import click

from queue_workflows.cli import Invocation
from queue_workflows.cli.shared.operator import (
    json_option,
    operators_connection,
    print_json,
    print_table,
    say,
)
from queue_workflows.db.connections.snapshot_read import at_one_moment
from queue_workflows.drawing.run import LOOKS
from queue_workflows.drawing.terminal import Terminal, padded, stdout_terminal, wide
from queue_workflows.drawing.words import on_one_line, say_moment
from queue_workflows.repositories.reports.run_grid import MOST_RUNS
from queue_workflows.views import workflows as views


@click.command()
@click.argument("workflow")
@click.option(
    "--limit",
    type=click.IntRange(1, MOST_RUNS),
    default=views.USUAL,
    show_default=True,
    help="How many runs.",
)
@click.option("--before", metavar="RUN", type=click.UUID, help="Only runs from before this one, by its id.")
@click.option("--ascii", "ascii_only", is_flag=True, help="Draw with plain characters.")
@json_option
@click.pass_obj
def grid(
    invocation: Invocation,
    *,
    workflow: str,
    limit: int,
    before: uuid.UUID | None,
    ascii_only: bool,
    as_json: bool,
) -> None:
    """Show what each node of WORKFLOW came to in its last runs: a line a node, a column a run.

    The newest run is the last column, and its nodes are shown; `qwf run workflows` lists workflows.
    """
    with operators_connection(invocation) as connection, at_one_moment(connection):
        found = views.workflow_grid(connection, workflow, before=before, limit=limit)
    if as_json:
        print_json(views.json_of(found))
    else:
        for line in _drawn(found, stdout_terminal(ascii_only=ascii_only)):
            click.echo(line)
    if found.next is not None:
        say(f"--before {found.next} shows what came earlier")
    elif not found.rows:
        say(f"there is no earlier run of {on_one_line(workflow)}")


def _drawn(found: views.WorkflowGrid, terminal: Terminal) -> list[str]:
    rows = found.rows[::-1]
    if not rows:
        return []
    names = [on_one_line(node) for node in found.nodes]
    width = max(wide(name) for name in ["(run)", *names])
    head = f"{padded('(run)', width)}  {''.join(_cell(row.status, terminal) for row in rows)}  {rows[-1].run}"
    lines = [head]
    for place, name in enumerate(names):
        states = [None if (cell := row.cells[place]) is None else cell.state for row in rows]
        lines.append(f"{padded(name, width)}  {''.join(_cell(state, terminal) for state in states)}")
    return [terminal.glyphs(line) for line in lines]


def _cell(state: str | None, terminal: Terminal) -> str:
    if state is None:
        return " "
    look = LOOKS.get(state, LOOKS["waiting"])
    return terminal.paint(look.glyph, **look.style)


@click.command("workflows")
@json_option
@click.pass_obj
def workflows(invocation: Invocation, *, as_json: bool) -> None:
    """List the workflows of the latest runs, that which ran last first."""
    with operators_connection(invocation) as connection:
        found = views.recent_workflows(connection)
    if as_json:
        print_json(views.json_of_workflows(found))
        return
    print_table(
        ["WORKFLOW", "RUNS", "OPEN", "FAILED", "LAST", "LAST RUN"],
        [
            [
                one.workflow,
                f"{one.runs:,}",
                f"{one.unfinished:,}",
                f"{one.failed:,}",
                f"{one.last_status} {say_moment(one.last_created_at)}",
                str(one.last_run),
            ]
            for one in found
        ],
    )
    if not found:
        say("there is no run yet")
