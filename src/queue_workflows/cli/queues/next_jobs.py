"""`qwf queue next`: the next jobs of a queue, in the order in which they are claimed."""

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
from queue_workflows.config import effective_settings
from queue_workflows.db.connections.snapshot_read import at_one_moment
from queue_workflows.drawing.words import on_one_line, say_moment
from queue_workflows.errors import ConfigurationError
from queue_workflows.settings import check_queue_name
from queue_workflows.views.queues import next_jobs as view
from queue_workflows.views.workers.wishes import told_of


@click.command("next")
@click.argument("queue")
@click.option(
    "--limit", type=click.IntRange(1, 10_000), default=view.JOBS, show_default=True, help="How many."
)
@json_option
@click.pass_obj
def next_(invocation: Invocation, *, queue: str, limit: int, as_json: bool) -> None:
    """Show the next jobs of QUEUE in the order of the claim, and what takes each or keeps it.

    Of the queue gpu it is the order for a worker that has no model loaded. Changes nothing.
    """
    try:
        check_queue_name(queue)
    except ConfigurationError as wrong:
        raise click.BadParameter(str(wrong)) from None
    stale_s = effective_settings().stale_heartbeat_s
    with operators_connection(invocation) as connection, at_one_moment(connection):
        found = view.next_jobs(connection, queue, stale_s=stale_s, limit=limit)
    if as_json:
        print_json(view.json_of(found))
        return
    print_table(
        ["JOB", "WHAT", "PRIORITY", "QUEUED", "NEXT"],
        [
            [one.job.name, one.job.title, str(one.job.priority), say_moment(one.job.run_at), one.note]
            for one in found.jobs
        ],
    )
    if not found.jobs:
        say(f"nothing is queued on {queue}")
    for wish in found.wishes:
        click.echo(on_one_line(told_of(wish)))
