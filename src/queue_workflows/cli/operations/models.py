"""`qwf models`: which models are loaded where, and how many queued jobs want each."""

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
from queue_workflows.drawing.words import on_one_line
from queue_workflows.repositories.workers.model_memory import ModelMemoryRow
from queue_workflows.views.models import WantedModel, WarmWorker, json_of, read_models


@click.command()
@json_option
@click.pass_obj
def models(invocation: Invocation, *, as_json: bool) -> None:
    """Show which models workers have loaded on which GPU, and how many queued jobs want each.

    Counts stop at 100,000, shown with a +. What workers saw each model take of a device is shown beside what
    it says of itself. A model that jobs want and nobody has loaded is named last.
    """
    stale_s = effective_settings().stale_heartbeat_s
    with operators_connection(invocation) as connection, at_one_moment(connection):
        seen = read_models(connection, stale_s=stale_s)
    if as_json:
        print_json(json_of(seen))
        return
    print_table(["HOST", "GPU", "WORKER", "STATE", "LOADED"], [_worker(one) for one in seen.workers])
    print_table(["MODEL", "QUEUED", "ON HOLD", "LOADED BY"], [_model(one) for one in seen.models])
    print_table(
        ["MODEL", "DEVICE", "TOOK", "WITH JOBS", "SAYS", "LOADS"], [_took(one) for one in seen.memory]
    )
    if not seen.workers:
        say("no worker that loads models is heard of")
    for one in seen.models:
        if one.is_cold:
            click.echo(on_one_line(f"{one.model} is wanted, and no worker has it loaded"))


def _worker(one: WarmWorker) -> list[str]:
    device = one.device.name or one.device.id or "-"
    return [
        one.worker.host_label,
        device,
        one.worker.worker_id,
        one.worker.state,
        ", ".join(f"{model} (in use)" if model == one.worker.current_model else model for model in one.models)
        or "-",
    ]


def _took(one: ModelMemoryRow) -> list[str]:
    sizes = [_mb(one.held_mb), _mb(one.used_mb), _mb(one.declared_mb)]
    return [one.model, one.device, *sizes, f"{one.loads:,}"]


def _mb(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f} MB"


def _model(one: WantedModel) -> list[str]:
    more = "+" if one.at_least else ""
    return [
        one.model,
        f"{one.queued:,}{more if one.queued else ''}",
        f"{one.held:,}{more if one.held else ''}",
        ", ".join(one.loaded_by) or "-",
    ]
