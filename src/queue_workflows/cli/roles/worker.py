"""`qwf worker`: one worker process."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import click

from queue_workflows.cli import Invocation
from queue_workflows.cli.log.log_options import log_options
from queue_workflows.cli.shared.probe_options import probe_options
from queue_workflows.cli.shared.seconds import Seconds, schema_wait_option
from queue_workflows.errors import ExitCode

MOST_AT_ONCE: Final = 2_000
_AT_ONCE: Final = 8
_BACKGROUND: Final = 64


def _checked(ctx: click.Context, _option: click.Parameter, concurrency: int | None) -> int:
    """How many jobs of this queue a worker runs at once."""
    from queue_workflows.config import RESERVED_QUEUES

    queue = ctx.params.get("queue")
    if queue not in RESERVED_QUEUES or queue == "hooks":
        return _AT_ONCE if concurrency is None else concurrency
    if concurrency not in (None, 1):
        raise click.BadParameter(
            f"a worker of the queue {queue} runs one job at a time: start more workers, as `qwf supervisor"
            f" --worker {queue}:{concurrency}` does"
        )
    return 1


def _checked_background(ctx: click.Context, _option: click.Parameter, most: int | None) -> int:
    """How many background hooks a worker of this queue runs beside its other jobs."""
    if ctx.params.get("queue") == "hooks":
        return _BACKGROUND if most is None else most
    if most:
        raise click.BadParameter("only the queue hooks has background jobs: leave it out")
    return 0


def _checked_dirs(ctx: click.Context, _option: click.Parameter, dirs: tuple[Path, ...]) -> tuple[Path, ...]:
    """Where the scripts lie that a worker of this queue runs."""
    if dirs and ctx.params.get("queue") != "hooks":
        raise click.BadParameter("only workers of the queue hooks run plugins: leave it out")
    return tuple(place.absolute() for place in dirs)


@click.command()
@click.option(
    "--queue", required=True, is_eager=True, help="The queue to work on; cpu, gpu and hooks carry node jobs."
)
@click.option(
    "--concurrency",
    type=click.IntRange(1, MOST_AT_ONCE),
    callback=_checked,
    help="How many jobs at once; 8 for hooks and ingest queues, always 1 for other nodes.",
)
@click.option(
    "--max-background",
    type=click.IntRange(0, MOST_AT_ONCE),
    callback=_checked_background,
    help="How many background hooks beside those; 64 unless said, for the queue hooks alone.",
)
@click.option(
    "--dir",
    "dirs",
    metavar="DIR",
    multiple=True,
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    callback=_checked_dirs,
    help="A directory of hook plugins, for the queue hooks; may be given several times. Else QWF_HOOK_DIRS.",
)
@click.option("--drain", is_flag=True, help="End when there is nothing left to claim.")
@click.option("--once", is_flag=True, help="End after one job, or when there is none.")
@click.option("--max-jobs", type=click.IntRange(1), help="End after so many jobs.")
@click.option("--grace", type=Seconds(), help="Seconds that a stop leaves the current job; QWF_GRACE_S.")
@click.option("--host-label", help="This machine's name in worker ids; QWF_HOST_LABEL.")
@click.option("--recycle-jobs", type=click.IntRange(1), help="Start afresh after so many jobs.")
@click.option("--recycle-mb", type=click.IntRange(1), help="Start afresh when so much memory is in use.")
@schema_wait_option()
@probe_options("worker")
@click.option("--exit-when-off", is_flag=True, help="End with status 77 when switched off, do not wait.")
@log_options
@click.pass_obj
def worker(
    invocation: Invocation,
    *,
    queue: str,
    concurrency: int,
    max_background: int,
    dirs: tuple[Path, ...],
    drain: bool,
    once: bool,
    max_jobs: int | None,
    grace: float | None,
    host_label: str | None,
    recycle_jobs: int | None,
    recycle_mb: int | None,
    schema_wait: float,
    health: tuple[str, int] | None,
    health_file: Path | None,
    exit_when_off: bool,
    log_level: str | None,
    log_format: str | None,
) -> ExitCode:
    """Claim jobs of a queue and run them until told to stop: hooks and ingest jobs several at once.

    The first SIGTERM or Ctrl-C lets the current jobs finish within the grace, else gives them back uncounted;
    a second one gives them back at once.
    """
    from queue_workflows.cli.log.logs import log_to_stderr
    from queue_workflows.config import check_known_queue, effective_settings
    from queue_workflows.db.connections.engine import Database
    from queue_workflows.host.processes.launcher import run_as_child_if_pid1
    from queue_workflows.roles.supervisor.standby import is_called
    from queue_workflows.roles.worker.common.lifecycle import WorkerOptions
    from queue_workflows.roles.worker.process import run_worker

    run_as_child_if_pid1()
    options = WorkerOptions(
        queue=check_known_queue(queue),
        concurrency=concurrency,
        max_background=max_background,
        drain=drain or once,
        max_jobs=1 if once else max_jobs,
        grace_s=grace,
        recycle_jobs=recycle_jobs,
        recycle_mb=recycle_mb,
        exit_when_off=exit_when_off,
        schema_wait_s=schema_wait,
        health=health,
        health_file=health_file,
        app=invocation.app,
    )
    settings = effective_settings(
        {
            "host_label": host_label,
            "hook_dirs": dirs or None,
            "log_level": log_level,
            "log_format": log_format,
        }
    )
    log_to_stderr(invocation, settings, is_of_apps=True)
    if not is_called():
        return ExitCode.DONE
    with Database.open(invocation.db_url, role=f"worker:{queue}", settings=settings) as database:
        return run_worker(database, settings, options)
