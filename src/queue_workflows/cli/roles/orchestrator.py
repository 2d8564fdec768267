"""`qwf orchestrator`: one orchestrator process."""

from __future__ import annotations

from pathlib import Path

import click

from queue_workflows.cli import Invocation
from queue_workflows.cli.log.log_options import log_options
from queue_workflows.cli.shared.probe_options import probe_options
from queue_workflows.cli.shared.seconds import schema_wait_option
from queue_workflows.errors import ExitCode


@click.command()
@click.option("--once", is_flag=True, help="End when there is nothing left to do now, as for cron and tests.")
@click.option("--host-label", help="This machine's name; QWF_HOST_LABEL.")
@schema_wait_option(", where it may not migrate by itself")
@probe_options("orchestrator")
@log_options
@click.pass_obj
def orchestrator(
    invocation: Invocation,
    *,
    once: bool,
    host_label: str | None,
    schema_wait: float,
    health: tuple[str, int] | None,
    health_file: Path | None,
    log_level: str | None,
    log_format: str | None,
) -> ExitCode:
    """Advance workflow runs: open nodes, resume parked ones, close runs, call their hooks, prune.

    Migrates the database first, or waits for the schema where it may not. Any number may run at once.
    """
    from queue_workflows.cli.log.logs import log_to_stderr
    from queue_workflows.config import effective_settings
    from queue_workflows.db.connections.engine import Database
    from queue_workflows.host.processes.launcher import run_as_child_if_pid1
    from queue_workflows.roles.orchestrator.orchestrator import OrchestratorOptions
    from queue_workflows.roles.orchestrator.process import ROLE, run_orchestrator

    run_as_child_if_pid1()
    options = OrchestratorOptions(
        once=once, schema_wait_s=schema_wait, health=health, health_file=health_file
    )
    settings = effective_settings(
        {"host_label": host_label, "log_level": log_level, "log_format": log_format}
    )
    log_to_stderr(invocation, settings, is_of_apps=True)
    with Database.open(invocation.db_url, role=ROLE, settings=settings) as database:
        return run_orchestrator(database, settings, options)
