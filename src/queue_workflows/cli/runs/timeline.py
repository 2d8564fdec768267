"""`qwf run timeline`: what of a run waited and what was at work, on one scale of time."""

from __future__ import annotations

import click

from queue_workflows.cli import Invocation
from queue_workflows.cli.shared.operator import json_option, operators_connection, print_json, say
from queue_workflows.cli.shared.run_names import run_named
from queue_workflows.db.connections.snapshot_read import at_one_moment
from queue_workflows.drawing import timeline as drawing
from queue_workflows.drawing.terminal import stdout_terminal
from queue_workflows.drawing.words import on_one_line
from queue_workflows.views.runs import timeline as times


@click.command()
@click.argument("run_name", metavar="RUN")
@click.option("--ascii", "ascii_only", is_flag=True, help="Draw with plain characters.")
@json_option
@click.pass_obj
def timeline(invocation: Invocation, *, run_name: str, ascii_only: bool, as_json: bool) -> None:
    """Draw what of RUN ran when, and what waited: a bar a job, or a bar for many that are alike.

    RUN is an id, or its first eight digits or more. With --json each bar tells what it waited for.
    """
    with operators_connection(invocation) as connection, at_one_moment(connection):
        found = times.run_timeline(connection, run_named(connection, run_name))
    if as_json:
        print_json(times.json_of(found))
        return
    terminal = stdout_terminal(ascii_only=ascii_only)
    for line in drawing.draw_timeline([_drawn(bar) for bar in found.bars], terminal):
        click.echo(line)
    for pause in found.pauses:
        click.echo(terminal.glyphs(on_one_line(times.said_of_pause(pause))))
    if not found.bars:
        say("nothing of it has begun")


def _drawn(bar: times.Bar) -> drawing.Bar:
    """From its first to its last time at work; what is between them is in the JSON."""
    own = [one for one in bar.segments if one.kind != "parents"] or list(bar.segments)
    active = [one for one in own if one.kind in ("running", "parked")]
    is_over = any(one.kind == "ended" for one in own)
    return drawing.Bar(
        name=bar.label,
        state=bar.state,
        place="" if bar.members == 1 else f"{bar.members:,} nodes",
        created=own[0].start,
        started=active[0].start if active else None,
        finished=own[-1].end if active or is_over else None,
        is_parked=bool(active) and all(one.kind == "parked" for one in active),
    )
