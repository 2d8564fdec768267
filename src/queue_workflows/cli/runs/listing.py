"""`qwf run list` and `qwf run show`."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from typing import Any

import click

from queue_workflows.cli import Invocation
from queue_workflows.cli.shared.durations import span
from queue_workflows.cli.shared.operator import (
    before_option,
    json_option,
    operators_connection,
    print_json,
    print_table,
    say_where_it_ends,
)
from queue_workflows.cli.shared.run_names import run_named
from queue_workflows.cli.shared.values import pairs
from queue_workflows.db.connections.snapshot_read import at_one_moment
from queue_workflows.drawing.run import MOST_ROWS, draw
from queue_workflows.drawing.terminal import stdout_terminal
from queue_workflows.drawing.words import on_one_line, say_labels, say_moment, say_time
from queue_workflows.repositories.reports.run_search import RunLine
from queue_workflows.repositories.runs.listing import RunFilter
from queue_workflows.states import RunStatus
from queue_workflows.views.filters.runs import with_text
from queue_workflows.views.runs import listing as run_list
from queue_workflows.views.runs import show as run_show


def filter_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """What runs can be found by."""
    statuses = click.Choice([status.value for status in RunStatus])
    for option in (
        click.option("--workflow", metavar="NAME", help="Of this workflow."),
        click.option(
            "--label", multiple=True, metavar="K=TEXT|K:=JSON", help="With this label; may be repeated."
        ),
        click.option("--status", type=statuses, multiple=True, help="In this status; may be repeated."),
        click.option("--poisoned", is_flag=True, help="With events that were given up."),
        click.option("--parent", type=click.UUID, metavar="RUN", help="Started by this run."),
        click.option("--older-than", type=span, metavar="SPAN", help="Started at least so long ago."),
        click.option("--newer-than", type=span, metavar="SPAN", help="Started at most so long ago."),
        click.option(
            "--where", metavar="TEXT", help="All of that in one text: 'workflow:film label:k=v newer:1d'."
        ),
    ):
        command = option(command)
    return command


def filter_of(
    *,
    workflow: str | None,
    label: Sequence[str],
    status: Sequence[str],
    poisoned: bool,
    parent: uuid.UUID | None,
    older_than: float | None,
    newer_than: float | None,
    where: str | None,
) -> RunFilter:
    """The filter that these options and the text of --where ask for."""
    by_options = RunFilter(
        workflow=workflow,
        labels=pairs("--label", label) or None,
        status=tuple(status) or None,
        poisoned=poisoned or None,
        parent=parent,
        older_than_s=older_than,
        newer_than_s=newer_than,
    )
    return with_text(by_options, where)


@click.command("list")
@filter_options
@click.option("--limit", type=click.IntRange(1, 10_000), default=50, show_default=True, help="How many.")
@before_option
@json_option
@click.pass_obj
def list_(invocation: Invocation, /, *, limit: int, before: str | None, as_json: bool, **given: Any) -> None:
    """Show the newest runs that match."""
    with operators_connection(invocation) as connection:
        page = run_list.run_page(connection, filter_of(**given), limit=limit, before=before)
    if as_json:
        print_json(run_list.json_of(page))
    else:
        print_lines(page.lines)
    say_where_it_ends("run", page, limit, before=before, as_json=as_json)


def print_lines(lines: Sequence[RunLine]) -> None:
    """A table, a run a line."""
    print_table(
        ["RUN", "WORKFLOW", "STATUS", "LEFT", "FAILED", "STARTED", "TOOK", "NOTE"],
        [_cells(one) for one in lines],
    )


def _cells(line: RunLine) -> list[str]:
    is_over = line.finished_at is not None
    left = "-" if is_over or line.started_at is None else f"{line.nodes_left:,}"
    took = say_time((line.finished_at or line.at) - (line.started_at or line.created_at))
    failed = f"{line.nodes_failed:,}" if line.nodes_failed else "-"
    started = say_moment(line.created_at, now=line.at)
    return [str(line.id), line.workflow, line.status, left, failed, started, took, _note(line)[:120]]


def _note(line: RunLine) -> str:
    parts = []
    if line.poisoned:
        parts.append("poisoned")
    if line.hold_reason is not None:
        parts.append(f"on hold: {line.hold_reason}")
    if (error := run_list.error_of(line)) is not None:
        parts.append(error)
    elif line.cancel_requested_at is not None:
        parts.append(f"cancel asked for{f': {line.cancel_reason}' if line.cancel_reason else ''}")
    parts += say_labels(line.labels)
    return " ".join(part for part in parts if part)


@click.command()
@click.argument("run_name", metavar="RUN")
@click.option("--all", "every", is_flag=True, help="Each node in a row of its own, however many there are.")
@click.option("--ascii", "ascii_only", is_flag=True, help="Draw with plain characters.")
@json_option
@click.pass_obj
def show(invocation: Invocation, *, run_name: str, every: bool, ascii_only: bool, as_json: bool) -> None:
    """Draw RUN: its nodes with their states, attempts, times, and what runs where.

    RUN is an id, or its first eight digits or more. Of more than 60 nodes, those that are alike share a row.
    """
    with operators_connection(invocation) as connection, at_one_moment(connection):
        run_id = run_named(connection, run_name)
        shown = run_show.shown_run(connection, run_id)
    if as_json:
        print_json(run_show.json_of(shown))
        return
    seen = shown.run
    for line in draw(seen, stdout_terminal(ascii_only=ascii_only), most_rows=None if every else MOST_ROWS):
        click.echo(line)
    for one in shown.audit:
        why = f": {one.reason}" if one.reason else ""
        when = say_moment(one.at, now=seen.at)
        click.echo(on_one_line(f"{one.action} by {one.actor} at {when}{why}"))
