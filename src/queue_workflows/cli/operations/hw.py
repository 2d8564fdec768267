"""`qwf hw`: what the machines and their GPUs are at, and were over the last hour."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from typing import Any

import click
import psycopg

from queue_workflows.cli import Invocation
from queue_workflows.cli.shared.durations import span
from queue_workflows.cli.shared.operator import json_option, operators_connection, print_json, say
from queue_workflows.config import effective_settings
from queue_workflows.db.connections.snapshot_read import at_one_moment
from queue_workflows.drawing.hardware import drawn, drawn_history
from queue_workflows.drawing.terminal import Terminal, stdout_terminal
from queue_workflows.views.hosts import history as past
from queue_workflows.views.hosts.hardware import json_of, read_hardware
from queue_workflows.views.json_values import plain


@click.command()
@click.option("--host", default="*", metavar="HOST", help="Only this host.")
@click.option("--all", "everyone", is_flag=True, help="Also hosts that were not heard of for a day.")
@click.option("--history", is_flag=True, help="Draw the last hour, a reading of each half minute.")
@click.option("--watch", is_flag=True, help="Again and again, until Ctrl-C.")
@click.option(
    "--every", type=span, metavar="SPAN", default=2.0, show_default="2s", help="How often to --watch."
)
@click.option("--ascii", "ascii_only", is_flag=True, help="Draw with ASCII characters alone.")
@json_option
@click.pass_obj
def hw(
    invocation: Invocation,
    *,
    host: str,
    everyone: bool,
    history: bool,
    watch: bool,
    every: float,
    ascii_only: bool,
    as_json: bool,
) -> None:
    """Show processors, memory and GPUs of each host, as its supervisor saw them last.

    A host is marked stale when its supervisor says nothing more: its figures are those of then.
    """
    with operators_connection(invocation) as connection:
        while True:
            with at_one_moment(connection):
                read = _history if history else _now
                told, lines = read(connection, host, everyone, stdout_terminal(ascii_only=ascii_only))
            if watch and not as_json and sys.stdout.isatty():
                click.clear()
            if as_json and watch:
                click.echo(json.dumps(told, default=plain))
            elif as_json:
                print_json(told)
            else:
                _draw(lines)
            if not watch:
                return
            time.sleep(every)


def _now(
    connection: psycopg.Connection[Any], host: str, everyone: bool, terminal: Terminal
) -> tuple[Any, Iterator[str]]:
    stale_s = effective_settings().stale_heartbeat_s
    told = json_of(read_hardware(connection, stale_s=stale_s, host=host, everyone=everyone))
    return told, drawn(told["hosts"], terminal)


def _history(
    connection: psycopg.Connection[Any], host: str, everyone: bool, terminal: Terminal
) -> tuple[Any, Iterator[str]]:
    seen = past.read_history(connection, host=host, everyone=everyone)
    return past.json_of(seen), drawn_history(
        [(one.host_label, past.curves_of(one)) for one in seen], terminal
    )


def _draw(lines: Iterator[str]) -> None:
    is_any = False
    for line in lines:
        is_any = True
        click.echo(line)
    if not is_any:
        say("no supervisor has told of its machine; `qwf supervisor` does so while it runs")
