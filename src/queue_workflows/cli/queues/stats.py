"""`qwf queue stats`: how full the queues are, and how fast they move."""

from __future__ import annotations

import json
import sys
import time

import click

from queue_workflows.cli import Invocation
from queue_workflows.cli.shared.durations import span
from queue_workflows.cli.shared.operator import (
    json_option,
    operators_connection,
    print_json,
    print_table,
    say,
)
from queue_workflows.config import effective_settings
from queue_workflows.db.connections.snapshot_read import at_one_moment
from queue_workflows.drawing.words import on_one_line, say_moment, say_span
from queue_workflows.repositories.reports.queue_statistics import QueueStats, Statistics
from queue_workflows.states import JobStatus, WorkerState
from queue_workflows.views.json_values import plain
from queue_workflows.views.queues import stats as view
from queue_workflows.views.workers.wishes import told_of


@click.command()
@click.option("--queue", "name", metavar="QUEUE", help="Only this queue.")
@click.option(
    "--since",
    type=span,
    metavar="SPAN",
    default=view.WINDOW_S,
    show_default="1h",
    help="Count what ended in it.",
)
@click.option("--watch", is_flag=True, help="Again and again, until Ctrl-C.")
@click.option(
    "--every", type=span, metavar="SPAN", default=2.0, show_default="2s", help="How often to --watch."
)
@json_option
@click.pass_obj
def stats(
    invocation: Invocation, *, name: str | None, since: float, watch: bool, every: float, as_json: bool
) -> None:
    """Show what waits, runs and ended on each queue, how fast, and which workers are there.

    Counts stop at 100,000, shown with a +, so that looking is cheap however much is stored.
    """
    stale_s = effective_settings().stale_heartbeat_s
    with operators_connection(invocation) as connection:
        while True:
            with at_one_moment(connection):
                seen = view.queue_stats(connection, stale_s=stale_s, window_s=since, queue=name)
            if watch and not as_json and sys.stdout.isatty():
                click.clear()
            _print(seen, as_json=as_json, on_a_line=watch)
            if not watch:
                return
            time.sleep(every)


def _print(seen: Statistics, *, as_json: bool, on_a_line: bool) -> None:
    if as_json:
        told = view.json_of(seen)
        if on_a_line:
            click.echo(json.dumps(told, default=plain))
        else:
            print_json(told)
        return
    ended = f"ENDED {say_span(seen.window_s)}"
    print_table(
        ["QUEUE", "JOBS", "QUEUED", "OLDEST", "LATER", "HELD", "RUNNING", ended, "FAILED", "/MIN", "WORKERS"],
        [_cells(one) for one in seen.queues],
    )
    if not seen.queues:
        say("nothing waits, runs or ended lately, and no worker is heard of")
    for line in dict.fromkeys(told_of(wish) for one in seen.queues for wish in one.wishes):
        click.echo(on_one_line(line))
    if on_a_line:
        click.echo(say_moment(seen.at, now=seen.at))


def _cells(one: QueueStats) -> list[str]:
    held = ", ".join(f"{count:,} {reason}" for reason, count in one.held.most_common())
    later = _count(one, "scheduled", one.scheduled)
    if one.awaiting_input:
        later += f", {one.awaiting_input:,} asked"
    longest = "" if one.longest_running_s is None else f" ({say_span(one.longest_running_s)})"
    return [
        one.queue,
        one.family,
        _count(one, "queued", one.queued),
        "-" if one.oldest_queued_s is None else say_span(one.oldest_queued_s),
        later,
        held or "-",
        f"{one.running:,}{longest}",
        _count(one, "finished", one.finished.total()),
        _count(one, "finished", one.finished[JobStatus.FAILED]),
        f"{one.per_minute['1m']:,.0f}" if one.finished else "-",
        _workers(one),
    ]


def _count(one: QueueStats, name: str, count: int) -> str:
    return f"{count:,}" + ("+" if name in one.at_least else "")


def _workers(one: QueueStats) -> str:
    """The workers that live, by what they do; silent ones last."""
    parts = [f"{one.workers[state]} {state}" for state in WorkerState if one.workers[state]]
    if one.silent_workers:
        parts.append(f"{one.silent_workers} silent")
    return ", ".join(parts) or "none"
