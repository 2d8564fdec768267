"""`qwf what-if`: when the waiting work is done, as it is and with another fleet."""

from __future__ import annotations

from collections.abc import Sequence

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
from queue_workflows.drawing.words import on_one_line
from queue_workflows.errors import ConfigurationError, ExitCode, PayloadError
from queue_workflows.settings import check_queue_name
from queue_workflows.views.forecast.changes import read_changes
from queue_workflows.views.forecast.drain import QueueForecast, json_of, read_what_if
from queue_workflows.views.forecast.lines import notes_of, said_of_drain, said_of_fleet


@click.command("what-if")
@click.argument("queues", metavar="[QUEUE]...", nargs=-1)
@click.option(
    "--workers", metavar="QUEUE=N", multiple=True, help="N workers of QUEUE, as large as those there are."
)
@click.option("--limit", "limits", metavar="KEY=N", multiple=True, help="N at once of a key or PATTERN*.")
@click.option(
    "--off", metavar="QUEUE@HOST", multiple=True, help="No worker of QUEUE on HOST; its jobs go back."
)
@click.option("--pause", "paused", metavar="QUEUE", multiple=True, help="No worker of QUEUE claims.")
@json_option
@click.pass_obj
def what_if(
    invocation: Invocation,
    *,
    queues: Sequence[str],
    workers: Sequence[str],
    limits: Sequence[str],
    off: Sequence[str],
    paused: Sequence[str],
    as_json: bool,
) -> ExitCode:
    """Play the waiting work of each QUEUE through another fleet, and say when it would be done.

    Durations are those of jobs that ended lately. Each time stands with the range in which eight of ten plays
    come out. Without changes it is the fleet that there is. Changes nothing. Ends with 1 if on some queue the
    work would never be done, or no guess is worth anything.
    """
    try:
        for queue in queues:
            check_queue_name(queue)
        changes = read_changes(workers=workers, limits=limits, off=off, paused=paused)
    except (ConfigurationError, PayloadError) as wrong:
        raise click.UsageError(str(wrong)) from None
    stale_s = effective_settings().stale_heartbeat_s
    with operators_connection(invocation) as connection, at_one_moment(connection):
        try:
            seen = read_what_if(connection, changes, queues=queues, stale_s=stale_s)
        except PayloadError as unknown:
            raise click.UsageError(str(unknown)) from None
    if as_json:
        print_json(json_of(seen))
    else:
        _print(seen.queues)
        for key in seen.unused:
            click.echo(on_one_line(f"no job that waits or runs there has the key {key!r}"))
    is_told = all(one.last.span is not None and not one.last.never for one in seen.queues)
    return ExitCode.DONE if is_told else ExitCode.FAILED


def _print(queues: Sequence[QueueForecast]) -> None:
    if not queues:
        say("nothing waits on any queue")
    is_changed = any(one.then is not None for one in queues)
    titles = ["QUEUE", "WAITING", "FLEET", "DRAINS"]
    if is_changed:
        titles += ["FLEET THEN", "WOULD DRAIN"]
    rows = []
    for one in queues:
        row = [one.queue, f"{one.waiting:,}", said_of_fleet(one.now), said_of_drain(one.now)]
        if one.then is not None:
            row += [said_of_fleet(one.then), said_of_drain(one.then)]
        rows.append(row)
    print_table(titles, rows)
    for one in queues:
        for note in notes_of(one):
            click.echo(on_one_line(note))
