"""`qwf queue retry-failed`: run again what failed, by what it was and how it failed."""

from __future__ import annotations

from typing import Any

import click

from queue_workflows.cli import Invocation
from queue_workflows.cli.jobs.job import decide_on_all
from queue_workflows.cli.shared.durations import span
from queue_workflows.cli.shared.operator import audit_options, json_option, operators_connection
from queue_workflows.engine.operate.many_jobs import Verb
from queue_workflows.errors import ExitCode
from queue_workflows.repositories.reports.job_listing import JobFilter
from queue_workflows.repositories.sql.families import INGEST
from queue_workflows.states import JobStatus


@click.command("retry-failed")
@click.option("--queue", metavar="QUEUE", help="On this queue.")
@click.option("--task", metavar="NAME", help="Of this task.")
@click.option("--since", type=span, metavar="SPAN", help="That failed at most so long ago.")
@click.option(
    "--error",
    metavar="TEXT",
    help="Last error, `TYPE: MESSAGE`, contains this.",
)
@click.option("--all", "everything", is_flag=True, help="Whatever failed.")
@click.option("--dry-run", is_flag=True, help="Say what it would be, change nothing.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@json_option
@audit_options
@click.pass_obj
def retry_failed(
    invocation: Invocation,
    /,
    *,
    queue: str | None,
    task: str | None,
    since: float | None,
    error: str | None,
    everything: bool,
    actor: str,
    reason: str | None,
    **how: Any,
) -> ExitCode:
    """Run failed ingest jobs again: a new generation each, with no failures yet; actor and reason are kept.

    They go in pages of 500 that are committed one by one, oldest first; an interruption says how many.
    Each is retried once, however soon it fails again. Nodes of workflows are for `qwf run retry`.
    """
    wanted = JobFilter(
        family=INGEST.name,
        queue=queue,
        task=task,
        error=error,
        ended_within_s=since,
        status=(JobStatus.FAILED.value,),
    )
    if everything == any(one is not None for one in (queue, task, since, error)):
        raise click.UsageError("say by --queue, --task, --since and --error which are meant, or --all")
    with operators_connection(invocation) as connection:
        return decide_on_all(connection, Verb.RETRY, wanted, {"actor": actor, "reason": reason}, **how)
