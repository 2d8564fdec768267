"""`qwf agent`: the host agent of one supervisor, which starts it."""

from __future__ import annotations

import click

from queue_workflows.cli import Invocation
from queue_workflows.cli.log.log_options import log_options
from queue_workflows.errors import ExitCode


@click.command()
@log_options
@click.pass_obj
def agent(invocation: Invocation, *, log_level: str | None, log_format: str | None) -> ExitCode:
    """Listen for all idle workers of a supervisor, and ask for those that rest.

    `qwf supervisor` starts it beside its workers. One that ends is started again; meanwhile the workers have
    connections of their own.
    """
    from queue_workflows.cli.log.logs import log_to_stderr
    from queue_workflows.config import effective_settings
    from queue_workflows.db.connections.engine import Database
    from queue_workflows.roles.agent.process import ROLE, run_agent

    settings = effective_settings({"log_level": log_level, "log_format": log_format})
    log_to_stderr(invocation, settings)
    with Database.open(invocation.db_url, role=ROLE, settings=settings) as database:
        return run_agent(database, settings)
