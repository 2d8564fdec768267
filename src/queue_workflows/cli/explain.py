"""`qwf explain`: why a job does not run, what it is at, or how it ended."""

from __future__ import annotations

from dataclasses import asdict

import click

from queue_workflows.cli import Invocation
from queue_workflows.cli.job_names import job_named
from queue_workflows.cli.operating import (
    json_option,
    on_one_line,
    operators_connection,
    print_json,
    schema_refusal,
)
from queue_workflows.config import effective_settings
from queue_workflows.db.looking import at_one_moment
from queue_workflows.errors import UnknownJob
from queue_workflows.jobs.explaining import Knowledge
from queue_workflows.jobs.explaining import explain as explained
from queue_workflows.jobs.recounting import moment
from queue_workflows.repositories.explaining import ExplainingRepository


@click.command()
@click.argument("job")
@json_option
@click.pass_obj
def explain(invocation: Invocation, *, job: str, as_json: bool) -> None:
    """Say why JOB does not run, what it is at, or how it ended.

    JOB is ingest:7, node:7, or 7 where only one of them exists. Changes nothing.
    """
    settings = effective_settings()
    with operators_connection(invocation) as connection:
        refusal = schema_refusal(invocation)
        with at_one_moment(connection):
            family, job_id = job_named(connection, job)
            there = ExplainingRepository(connection).circumstances(family, job_id)
        if there is None:
            raise UnknownJob(f"{family.name}:{job_id}")
    told = explained(there, Knowledge(settings.stale_heartbeat_s, settings.poll_s, refusal))
    if as_json:
        name = {"job": f"{family.name}:{job_id}", "status": there.job.status, "queue": there.job.queue}
        print_json(name | asdict(told))
        return
    click.echo(on_one_line(told.headline))
    for reason in told.reasons:
        click.echo(f"  - {on_one_line(reason.text)}")
    click.echo("history:")
    for event in told.history:
        click.echo(f"  {moment(event.at)}  {on_one_line(event.text)}")
