"""`qwf deploy check`: what a deploy of this code would meet in the database, before it is deployed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import click

from queue_workflows.cli import Invocation
from queue_workflows.cli.shared.lazy_group import CommandGroup
from queue_workflows.cli.shared.operator import json_option, print_json
from queue_workflows.config import effective_settings
from queue_workflows.drawing.words import on_one_line
from queue_workflows.engine.deploy.findings import Finding, Level, LookedAt
from queue_workflows.errors import ConfigurationError, ExitCode
from queue_workflows.settings import check_queue_name
from queue_workflows.views.deploy import DeployCheck, json_of, read_deploy_check

_COLOURS: Final = {Level.BREAKS: "red", Level.CHANGES: "yellow", Level.UNSEEN: "blue"}


@click.group(cls=CommandGroup, no_args_is_help=True)
def deploy() -> None:
    """Look at a deploy before it happens."""


@deploy.command()
@click.option(
    "--queue",
    "queues",
    metavar="QUEUE",
    multiple=True,
    help="A queue to look at that the wiring does not name; may be given several times.",
)
@click.option(
    "--instead-of",
    "replaced",
    metavar="MODULE",
    help="The wiring that runs now, where it is another module than --app: its limits and schedules count.",
)
@click.option(
    "--not-ours",
    metavar="NAME",
    multiple=True,
    help="A task, module or schedule of another host app on this database, or a pattern as in 'films.*'.",
)
@click.option("--strict", is_flag=True, help="End with 1 for what changes or was not looked at, too.")
@json_option
@click.pass_obj
def check(
    invocation: Invocation,
    *,
    queues: Sequence[str],
    replaced: str | None,
    not_ours: Sequence[str],
    strict: bool,
    as_json: bool,
) -> ExitCode:
    """Compare the code of --app with what is queued, held, scheduled, parked and running.

    Names tasks and node modules that jobs and runs need and the code does not have, jobs with arguments that
    it would not take, models, schedules and limits that change, and a schema that does not fit; with how many
    rows each concerns. Changes nothing. Ends with 0 if nothing would break, else with 1.
    """
    app = invocation.app or effective_settings().app
    if app is None:
        raise ConfigurationError(
            "there is no code to look at", advice="name the new wiring: qwf --app new.wiring deploy check"
        )
    for queue in queues:
        check_queue_name(queue)
    found = read_deploy_check(invocation.db_url, app=replaced or app, queues=queues, not_ours=not_ours)
    if as_json:
        print_json(json_of(found))
    else:
        for one in found.findings:
            click.echo(f"{_word(one.level)}  {on_one_line(_told(one))}")
        click.echo(_summary(found))
    is_bad = bool(found.findings if strict else found.at(Level.BREAKS))
    return ExitCode.FAILED if is_bad else ExitCode.DONE


def _told(one: Finding) -> str:
    about = f"{one.kind} {one.name}: {one.says}"
    if not one.rows or one.of == "schedule":
        return about
    counted = f"{one.rows:,} {one.of}{'' if one.rows == 1 else 's'}"
    return f"{about} ({counted}{f', as {one.example}' if one.example else ''})"


def _word(level: Level) -> str:
    return click.style(f"{level:<7}", fg=_COLOURS[level], bold=level is Level.BREAKS)


def _summary(found: DeployCheck) -> str:
    looked: LookedAt = found.report.looked_at
    counts = [f"{len(found.at(level))} {level}" for level in Level if found.at(level)]
    told = ", ".join(counts) or "nothing breaks and nothing changes"
    names = f"{looked.tasks} tasks and {looked.modules} modules"
    declared = f"{looked.schedules} schedules, {looked.limits} limits"
    return f"{told}; looked at {looked.jobs:,} open jobs of {names}, {declared}"
