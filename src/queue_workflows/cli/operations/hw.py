"""`qwf hw`: what the machines and their GPUs are at."""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import click

from queue_workflows.cli import Invocation
from queue_workflows.cli.shared.durations import span
from queue_workflows.cli.shared.operator import json_option, operators_connection, print_json, say
from queue_workflows.config import effective_settings
from queue_workflows.db.connections.snapshot_read import at_one_moment
from queue_workflows.drawing.hardware import drawn
from queue_workflows.drawing.terminal import stdout_terminal
from queue_workflows.views.hosts.hardware import json_of, read_hardware
from queue_workflows.views.json_values import plain


@click.command()
@click.option("--host", default="*", metavar="HOST", help="Only this host.")
@click.option("--all", "everyone", is_flag=True, help="Also hosts that were not heard of for a day.")
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
    watch: bool,
    every: float,
    ascii_only: bool,
    as_json: bool,
) -> None:
    """Show processors, memory and GPUs of each host, as its supervisor saw them last.

    A host is marked stale when its supervisor says nothing more: its figures are those of then.
    """
    stale_s = effective_settings().stale_heartbeat_s
    with operators_connection(invocation) as connection:
        while True:
            with at_one_moment(connection):
                seen = read_hardware(connection, stale_s=stale_s, host=host, everyone=everyone)
            told = json_of(seen)
            if watch and not as_json and sys.stdout.isatty():
                click.clear()
            if as_json and watch:
                click.echo(json.dumps(told, default=plain))
            elif as_json:
                print_json(told)
            else:
                _draw(told["hosts"], ascii_only=ascii_only)
            if not watch:
                return
            time.sleep(every)


def _draw(hosts: list[dict[str, Any]], *, ascii_only: bool) -> None:
    for line in drawn(hosts, stdout_terminal(ascii_only=ascii_only)):
        click.echo(line)
    if not hosts:
        say("no supervisor has told of its machine; `qwf supervisor` does so while it runs")
