"""`qwf metrics`: the database's own figures, for Prometheus."""

from __future__ import annotations

from contextlib import closing

import click

from queue_workflows.cli import Invocation
from queue_workflows.cli.shared.lazy_group import CommandGroup
from queue_workflows.cli.shared.seconds import Seconds
from queue_workflows.errors import ExitCode


@click.group(cls=CommandGroup, no_args_is_help=True)
def metrics() -> None:
    """Serve figures of queues, workers, runs and schedules."""


def _host(_ctx: click.Context, _param: click.Parameter, value: str) -> str:
    """An address or a name; IPv6 in brackets or without."""
    host = value[1:-1] if value.startswith("[") and value.endswith("]") else value
    if not host or host.startswith("[") or "/" in host or any(char.isspace() for char in host):
        raise click.BadParameter(f"{value!r} is no address")
    return host


@metrics.command()
@click.option(
    "--host", default="127.0.0.1", show_default=True, callback=_host, help="The address to listen on."
)
@click.option(
    "--port",
    type=click.IntRange(0, 65_535),
    default=9464,
    show_default=True,
    help="The port; 0 takes a free one and says which.",
)
@click.option(
    "--every",
    type=Seconds(),
    default=10.0,
    show_default=True,
    help="Read the database at most every so many seconds, however often somebody asks.",
)
@click.pass_obj
def serve(invocation: Invocation, *, host: str, port: int, every: float) -> ExitCode:
    """Answer GET /metrics for Prometheus until Ctrl-C, from the database's own figures.

    One is enough for a database; more say the same. While the database is away it says `qwf_database_up 0`.
    """
    from queue_workflows.cli.log.logs import log_to_stderr
    from queue_workflows.config import effective_settings
    from queue_workflows.db.connections.engine import Database
    from queue_workflows.repositories.retention import RetentionTimes
    from queue_workflows.roles.loop import Halt, Waiter
    from queue_workflows.roles.probes.figures import FigureReader
    from queue_workflows.roles.probes.metrics import MetricsServer

    settings = effective_settings()
    log_to_stderr(invocation, settings)
    with Waiter() as waiter, Database.open(invocation.db_url, role="metrics", creates=False) as database:
        halt = Halt(waiter.ring)
        reader = FigureReader(
            lambda: database.connect(autocommit=True),
            stale_s=settings.stale_heartbeat_s,
            every_s=every,
            kept=RetentionTimes.of(settings),
            waits=settings.wait_causes,
        )
        with closing(reader), halt.on_signals(), MetricsServer(reader.figures, (host, port)) as server:
            click.echo(f"{server.url}/metrics")
            while not halt.urgency:
                waiter.wait(3600)
        return halt.exit_code
