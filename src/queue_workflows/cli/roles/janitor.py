"""`qwf janitor`: ends what dead jobs left behind on this machine."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from typing import TYPE_CHECKING, Final

import click

from queue_workflows.cli import Invocation
from queue_workflows.cli.log.log_options import log_options
from queue_workflows.cli.shared.operator import json_option, print_json, print_table, say
from queue_workflows.cli.shared.seconds import Seconds
from queue_workflows.errors import ExitCode

if TYPE_CHECKING:
    from queue_workflows.roles.janitor.process import Outcome

_STDOUT: Final = 1
_STDERR: Final = 2


@click.command()
@click.option("--once", is_flag=True, help="One look at everything, then end, as for cron.")
@click.option("--dry-run", is_flag=True, help="Say what one look would do, and do nothing.")
@json_option
@click.option(
    "--every",
    type=Seconds(min_open=True),
    default=30.0,
    show_default=True,
    metavar="SECONDS",
    help="How long from one look to the next.",
)
@click.option("--reap", type=(str, str, int, int), hidden=True)
@log_options
@click.pass_obj
def janitor(
    invocation: Invocation,
    *,
    once: bool,
    dry_run: bool,
    as_json: bool,
    every: float,
    reap: tuple[str, str, int, int] | None,
    log_level: str | None,
    log_format: str | None,
) -> ExitCode:
    """End what has no owner any more: things of the kinds that the host app registers, and old lock files.

    What has a live owner is never touched, however old. Any number of janitors may run, also below
    supervisors; no database is needed. With --once it ends with 1 if something could not be ended.
    """
    from queue_workflows.cli.log.logs import log_arguments, log_to_stderr
    from queue_workflows.cli.roles.supervisor import before_the_command
    from queue_workflows.config import effective_settings
    from queue_workflows.host.processes.launcher import own_command, run_as_child_if_pid1
    from queue_workflows.roles.janitor.janitor import JanitorOptions
    from queue_workflows.roles.janitor.process import ROLE, run_janitor, run_reaper

    if as_json and not (once or dry_run):
        raise click.UsageError("--json goes with --once or --dry-run: a janitor that runs on has a log")
    settings = effective_settings({"log_level": log_level, "log_format": log_format})
    log_to_stderr(invocation, settings)
    if reap is not None:
        return run_reaper(*reap)
    run_as_child_if_pid1()
    command = own_command([*before_the_command(invocation), ROLE, *log_arguments(settings)])
    options = JanitorOptions(once=once, dry=dry_run, every_s=every)
    if not (once or dry_run):
        return run_janitor(settings, options, command, invocation.db_url).status
    with _stdout_for_us():
        outcome = run_janitor(settings, options, command, invocation.db_url)
    _tell(outcome, as_json=as_json)
    return outcome.status


@contextmanager
def _stdout_for_us() -> Iterator[None]:
    """Inside the block what is printed goes to stderr: what a host app's functions and their commands print
    would stand in our table, or in our JSON.
    """
    sys.stdout.flush()
    ours = os.dup(_STDOUT)
    os.dup2(_STDERR, _STDOUT)
    try:
        yield
    finally:
        with suppress(OSError):
            sys.stdout.flush()
        os.dup2(ours, _STDOUT)
        os.close(ours)


def _tell(outcome: Outcome, *, as_json: bool) -> None:
    from queue_workflows.host.janitor.decisions import Action

    if as_json:
        print_json(asdict(outcome))
        return
    # A lock that is free and has no thing is what every owner leaves that ends in order.
    verdicts = [one for one in outcome.verdicts if one.kind or one.deed is not Action.LEAVE or one.pid]
    print_table(
        ("KIND", "NAME", "DEED", "WHY"), [(one.kind or "-", one.name, one.deed, one.why) for one in verdicts]
    )
    counts = Counter(one.deed for one in verdicts)
    said = [f"{count} {deed}" for deed, count in sorted(counts.items())]
    said += [f"{len(outcome.directories)} directories of runs"] if outcome.directories else []
    say(", ".join(said) or "nothing was found")
    for failure in outcome.failures:
        say(failure)
