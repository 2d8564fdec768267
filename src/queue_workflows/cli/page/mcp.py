"""`qwf mcp`: the page's questions for the program that starts it, over standard input and output."""

from __future__ import annotations

import click

from queue_workflows.cli import Invocation
from queue_workflows.cli.shared.operator import asking_user
from queue_workflows.errors import ConfigurationError


@click.command()
@click.option(
    "--allow-acts",
    "acts",
    multiple=True,
    metavar="NAME",
    help="Let it do this act too, such as job.retry; may be repeated.",
)
@click.pass_obj
def mcp(invocation: Invocation, *, acts: tuple[str, ...]) -> None:
    """Answer a program's questions by the Model Context Protocol, until standard input closes.

    A coding assistant starts it and asks why a job does not run, what failed, how full the queues are. It
    reads, and changes nothing but by acts that are allowed one by one; these are in the audit log as yours,
    "via mcp". Standard output is the protocol's; the log goes to stderr.
    """
    import asyncio

    from queue_workflows.cli.log.logs import log_to_stderr
    from queue_workflows.config import effective_settings
    from queue_workflows.web.mcp import check_installed

    check_installed()
    from queue_workflows.web.mcp.stdio import serve_stdio, tool_calls

    settings = effective_settings()
    log_to_stderr(invocation, settings)
    check_acts(acts)
    with tool_calls(invocation.db_url, settings, acts) as calls:
        asyncio.run(serve_stdio(calls, asking_user()))


def check_acts(acts: tuple[str, ...]) -> None:
    """A name that is none is a slip in the command line."""
    from queue_workflows.web.mcp.act_calls import allowed_acts

    try:
        allowed_acts(acts)
    except ConfigurationError as unknown:
        raise click.BadParameter(str(unknown), param_hint="--allow-acts") from unknown
