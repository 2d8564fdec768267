"""`qwf queue pause|resume`: short for what `qwf workers` asks of every worker of a queue."""

from __future__ import annotations

from typing import Any

import click

from queue_workflows.cli import Invocation
from queue_workflows.cli.operations.worker_preview import preview_options
from queue_workflows.cli.operations.workers import (
    ask,
    ask_or_preview,
    for_option,
    queue_argument,
    wish_options,
)
from queue_workflows.errors import ExitCode
from queue_workflows.states import DesiredState


@click.command()
@queue_argument
@wish_options
@for_option
@preview_options
@click.pass_obj
def pause(invocation: Invocation, /, **asked: Any) -> ExitCode:
    """Let no worker of QUEUE claim anything more: `qwf workers pause '*' QUEUE`."""
    return ask_or_preview(invocation, DesiredState.PAUSE, host="*", **asked)


@click.command()
@queue_argument
@wish_options
@click.pass_obj
def resume(invocation: Invocation, /, **asked: Any) -> ExitCode:
    """Take the pause of QUEUE back, and say what still blocks: `qwf workers on '*' QUEUE`."""
    return ask(invocation, DesiredState.ON, host="*", lasting=None, **asked)
