"""`--dry-run` of what is asked of workers: the jobs, models and queues that it would concern."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from queue_workflows.cli import Invocation
from queue_workflows.cli.shared.operator import json_option, operators_connection, print_json
from queue_workflows.config import effective_settings
from queue_workflows.db.connections.snapshot_read import at_one_moment
from queue_workflows.drawing.words import on_one_line
from queue_workflows.errors import ExitCode
from queue_workflows.states import DesiredState
from queue_workflows.views.workers.forecast_lines import lines_of
from queue_workflows.views.workers.what_if import json_of, read_preview


def preview_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """What a verb takes that can say what it would do."""
    dry = click.option("--dry-run", is_flag=True, help="Say what it would be, change nothing.")
    return json_option(dry(command))


def preview(
    invocation: Invocation, desired: DesiredState, *, host: str, queue: str, as_json: bool
) -> ExitCode:
    """Say what a wish would do now."""
    stale_s = effective_settings().stale_heartbeat_s
    with operators_connection(invocation) as connection, at_one_moment(connection):
        seen = read_preview(connection, host=host, queue=queue, desired=desired, stale_s=stale_s)
    if as_json:
        print_json(json_of(seen))
        return ExitCode.DONE
    for line in lines_of(seen):
        click.echo(on_one_line(line))
    return ExitCode.DONE
