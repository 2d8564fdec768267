"""`qwf explain`: why a job or run does not go on, what it is at, or how it ended."""

from __future__ import annotations

import click

from queue_workflows.cli import Invocation
from queue_workflows.cli.shared.names import job_named
from queue_workflows.cli.shared.operator import json_option, operators_connection, print_json, schema_refusal
from queue_workflows.cli.shared.run_names import may_be_run, run_named
from queue_workflows.config import effective_settings
from queue_workflows.db.connections.snapshot_read import at_one_moment
from queue_workflows.drawing.words import on_one_line
from queue_workflows.engine.explain.history import length, moment
from queue_workflows.engine.explain.job import Knowledge
from queue_workflows.engine.explain.time_spent import Past, said_of_part, sentence_of
from queue_workflows.engine.explain.wait_bar import A_LOOK
from queue_workflows.views.forecast.lines import lines_of_job
from queue_workflows.views.jobs.explain import explained_job, json_of
from queue_workflows.views.runs.explain import explained_run
from queue_workflows.views.runs.explain import json_of as run_json


@click.command()
@click.argument("what", metavar="JOB|RUN")
@click.argument("node", required=False)
@click.option(
    "--past", "as_past", is_flag=True, help="Of a JOB, each part of its time and what it waited for."
)
@json_option
@click.pass_obj
def explain(invocation: Invocation, *, what: str, node: str | None, as_past: bool, as_json: bool) -> None:
    """Say why a job or run does not go on, what it is at, or how it ended.

    JOB is ingest:7, node:7, or 7 where only one of them exists; RUN is a run's id, or enough of its
    beginning. With NODE it is about that node of the run. Of a job that waits or runs it says when it will
    start and end, by how long jobs took that ended lately, where such a guess is worth anything. Changes
    nothing.
    """
    settings = effective_settings()
    past: Past | None = None
    expected: tuple[str, ...] = ()
    with operators_connection(invocation) as connection:
        known = Knowledge(
            settings.stale_heartbeat_s,
            settings.poll_s,
            schema_refusal(invocation),
            0.0 if settings.affinity_max_wait_s == 0 else settings.affinity_yield_s,
        )
        with at_one_moment(connection):
            if may_be_run(what) and as_past:
                raise click.UsageError("--past goes with a JOB: `qwf run timeline RUN` shows a run's")
            if may_be_run(what):
                run = explained_run(connection, run_named(connection, what), known, node=node)
                told, answer = run.told, run_json(run)
            elif node is None:
                family, job_id = job_named(connection, what)
                job = explained_job(connection, family, job_id, known, foretells=True)
                told, answer, past = job.explanation, json_of(job), job.past
                expected = () if job.forecast is None else tuple(lines_of_job(job.forecast))
            else:
                raise click.UsageError("a NODE goes with a run: qwf explain RUN NODE")
    if as_json:
        print_json(answer)
        return
    click.echo(on_one_line(told.headline))
    for reason in told.reasons:
        click.echo(f"  - {on_one_line(reason.text)}")
    if past is not None:
        _say_past(past, in_parts=as_past)
    for line in expected:
        click.echo(on_one_line(line))
    click.echo("history:")
    for event in told.history:
        click.echo(f"  {moment(event.at)}  {on_one_line(event.text)}")


def _say_past(past: Past, *, in_parts: bool) -> None:
    """Where a job's time went, in a sentence, and part by part where that was asked for."""
    if in_parts or (past.is_over and past.spent.waited >= A_LOOK):
        click.echo(f"  - {on_one_line(sentence_of(past.spent, is_over=past.is_over))}")
    if not in_parts:
        return
    click.echo("where its time went:")
    for part in past.parts:
        lasted = length((part.end - part.start).total_seconds())
        click.echo(f"  {moment(part.start)}  {lasted:>10}  {on_one_line(said_of_part(part))}")
