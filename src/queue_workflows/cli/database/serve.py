"""`qwf db serve` and `qwf db stop`: keep the embedded database up for other tools, or end one that waits."""

from __future__ import annotations

import shlex

import click

from queue_workflows.cli import Invocation
from queue_workflows.cli.shared.operator import say
from queue_workflows.config import effective_settings, resolve_dsn
from queue_workflows.db.connections.engine import acquire_embedded, stop_embedded
from queue_workflows.errors import ConfigurationError, ExitCode
from queue_workflows.roles.loop import Halt, Waiter

LOOK_EVERY_S = 5.0


@click.command()
@click.pass_obj
def serve(invocation: Invocation) -> ExitCode:
    """Keep the embedded database up until Ctrl-C, and print its URL.

    For psql and other tools: it runs only while something uses it, and this does. It is made if there is none
    yet, and started again if it crashes. A database of your own (QWF_DB_URL) needs no such thing.
    """
    _refuse_named(invocation, "keep up")
    with Waiter() as waiter, acquire_embedded(effective_settings(), lingers=False) as server:
        halt = Halt(waiter.ring)
        with halt.on_signals():
            click.echo(server.dsn())
            look = shlex.join([server.program("psql"), server.dsn()])
            say(f"up until Ctrl-C; look into it with: {look}")
            while not halt.urgency:
                if server.pid is None:
                    server.ensure_running()
                waiter.wait(LOOK_EVERY_S)
        return halt.exit_code


@click.command()
@click.pass_obj
def stop(invocation: Invocation) -> None:
    """Stop the embedded database, which else waits a minute for its next user.

    One that something uses goes on: that is told, and the exit status is 69.
    """
    _refuse_named(invocation, "stop")
    ran = stop_embedded(effective_settings())
    say("stopped" if ran else "it did not run")


def _refuse_named(invocation: Invocation, to: str) -> None:
    named = resolve_dsn(invocation.db_url)
    if named.dsn is not None:
        raise ConfigurationError(
            f"a database is named (from {named.source}), so there is no embedded one to {to}",
            advice="`qwf db url` prints the one that is named; unset that to use the embedded one",
        )
