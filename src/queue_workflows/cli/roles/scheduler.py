"""`qwf scheduler`: one scheduler process."""

from __future__ import annotations

from pathlib import Path

import click

from queue_workflows.cli import Invocation
from queue_workflows.cli.log.log_options import log_options
from queue_workflows.cli.shared.probe_options import probe_options
from queue_workflows.cli.shared.seconds import schema_wait_option
from queue_workflows.errors import ExitCode


@click.command()
@click.option("--once", is_flag=True, help="Declare and insert what is due now, then end, as for cron.")
@click.option("--host-label", help="This machine's name; QWF_HOST_LABEL.")
@schema_wait_option()
@probe_options("scheduler")
@log_options
@click.pass_obj
def scheduler(
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
    """Enqueue the jobs of schedules when their time has come.

    What `set_ingest_schedule` declares in the host app's wiring is put into the database first. Any number of
    schedulers may run at once: each tick becomes one job. `qwf schedule` looks at schedules and steers them.
    """
    from queue_workflows.cli.log.logs import log_to_stderr
    from queue_workflows.config import effective_settings
    from queue_workflows.db.connections.engine import Database
    from queue_workflows.host.processes.launcher import run_as_child_if_pid1
    from queue_workflows.roles.scheduler.process import ROLE, run_scheduler
    from queue_workflows.roles.scheduler.scheduler import SchedulerOptions

    run_as_child_if_pid1()
    settings = effective_settings(
        {"host_label": host_label, "log_level": log_level, "log_format": log_format}
    )
    log_to_stderr(invocation, settings, is_of_apps=True)
    options = SchedulerOptions(
        once=once,
        app=invocation.app or settings.app,
        schema_wait_s=schema_wait,
        health=health,
        health_file=health_file,
    )
    with Database.open(invocation.db_url, role=ROLE, settings=settings) as database:
        return run_scheduler(database, settings, options)
