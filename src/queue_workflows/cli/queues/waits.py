"""`qwf queue waits`: what jobs waited for that ended lately."""

from __future__ import annotations

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
from queue_workflows.db.connections.snapshot_read import at_one_moment
from queue_workflows.drawing.words import say_span
from queue_workflows.engine.explain.queue_waits import QueueWaits, WaitCause
from queue_workflows.errors import ConfigurationError
from queue_workflows.settings import check_queue_name
from queue_workflows.views.queues import waits as view

_HOUR_S = 3600.0


@click.command()
@click.option("--queue", "name", metavar="QUEUE", help="Only this queue.")
@click.option(
    "--since",
    type=span,
    metavar="SPAN",
    default=view.SINCE_S,
    show_default="1d",
    help="Of jobs that ended in it.",
)
@json_option
@click.pass_obj
def waits(invocation: Invocation, *, name: str | None, since: float, as_json: bool) -> None:
    """Show what jobs waited for before they ended, the dearest cause first.

    A few thousand jobs are looked at, spread over the time; where more ended they stand for all, and the
    figures have a ~ before them. `qwf explain JOB --past` says it of one job.
    """
    try:
        name = None if name is None else check_queue_name(name)
    except ConfigurationError as unfit:
        raise click.BadParameter(str(unfit), param_hint="--queue") from None
    with operators_connection(invocation) as connection, at_one_moment(connection):
        found = view.queue_waits(connection, since_s=since, queue=name)
        is_known = bool(found.queues) or name is None or view.is_known(connection, name)
    if as_json:
        print_json(view.json_of(found))
        return
    rows = [_cells(one, cause) for one in found.queues for cause in one.causes]
    print_table(["QUEUE", "JOBS", "CAUSE", "WAITED", "JOB-HOURS", "SHARE"], rows)
    for one in found.queues:
        about = "at least " if one.is_at_least else "about " if one.is_about else ""
        say(
            f"{one.queue}: {about}{one.jobs:,} {one.family} jobs ended, which waited"
            f" {say_span(one.waited_s)} and worked {say_span(one.worked_s)}"
        )
    if not found.queues:
        say(f"no job ended in the last {say_span(since)}")
    if not is_known:
        say(f"there is no queue {name!r} now: nothing waits or runs on it, and no worker serves it")


def _cells(one: QueueWaits, cause: WaitCause) -> list[str]:
    about = "~" if one.is_about else ""
    share = cause.seconds / one.waited_s if one.waited_s else 0.0
    hours = f"{about}{cause.seconds / _HOUR_S:,.2f}"
    said = view.said_of_cause(cause)
    return [one.queue, f"{about}{cause.jobs:,}", said, say_span(cause.seconds), hours, f"{share:.0%}"]
