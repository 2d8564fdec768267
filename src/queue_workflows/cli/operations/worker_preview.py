"""`--dry-run` of what is asked of workers: the jobs, models and queues that it would concern."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import click

from queue_workflows.cli import Invocation
from queue_workflows.cli.operations.worker_lines import scope_of
from queue_workflows.cli.shared.operator import json_option, number_of, operators_connection, print_json
from queue_workflows.config import effective_settings
from queue_workflows.db.connections.snapshot_read import at_one_moment
from queue_workflows.drawing.words import on_one_line
from queue_workflows.errors import ExitCode
from queue_workflows.states import DesiredState
from queue_workflows.views.workers.what_if import WishPreview, json_of, read_preview

_NAMED = 10
_WOULD_BE = {DesiredState.PAUSE: "paused", DesiredState.OFF: "off"}


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
    for line in _lines(seen):
        click.echo(on_one_line(line))
    return ExitCode.DONE


def _lines(seen: WishPreview) -> Iterable[str]:
    forecast = seen.forecast
    yield f"{scope_of(seen.host_label, seen.queue)} would be {_WOULD_BE[seen.desired]}; nothing is changed"
    names = [one.worker_id for one in forecast.obeying]
    yield f"{number_of('worker', len(names))} would obey{_named(names)}"
    if forecast.already:
        yield f"asked for as much already{_named(forecast.already)}"
    if forecast.silent:
        yield f"not heard of now{_named(forecast.silent)}"
    jobs = seen.finished + seen.given_back + seen.failed
    named = _named([one.name for one in seen.first], jobs)
    if seen.desired is DesiredState.PAUSE:
        yield f"{number_of('job', seen.finished)} would be finished first{named}"
    else:
        failed = f", {number_of('job', seen.failed)} would fail, begun once for all" if seen.failed else ""
        yield f"{number_of('job', seen.given_back)} would be given back uncounted{failed}{named}"
    for model in forecast.models:
        kept = f"; loaded still{_named(model.still_loaded_by)}" if model.still_loaded_by else "; then nowhere"
        yield f"the model {model.model} would be unloaded{_named(model.by)}{kept}"
    for left in seen.left:
        queued = f"{left.queued:,}{'+' if left.at_least else ''} queued"
        yield f"the queue {left.queue} would be left without a worker that claims, with {queued}"


def _named(names: list[str], count: int | None = None) -> str:
    """These, or the first of them and how many more."""
    more = (len(names) if count is None else count) - len(names[:_NAMED])
    if not names:
        return ""
    return f": {', '.join(names[:_NAMED])}" + (f" and {more:,} more" if more else "")
