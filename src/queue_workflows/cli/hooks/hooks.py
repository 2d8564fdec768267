"""`qwf hooks`: the scripts of an event, runs of them, and what these have said."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import click

from queue_workflows.cli import Invocation
from queue_workflows.cli.hooks.records import records
from queue_workflows.cli.runs.watch import follow
from queue_workflows.cli.shared.lazy_group import CommandGroup
from queue_workflows.cli.shared.operator import json_option, print_json, print_table, say
from queue_workflows.cli.shared.values import mapping_in, pairs
from queue_workflows.config import HOOKS_QUEUE, effective_settings
from queue_workflows.db.connections.engine import Database
from queue_workflows.engine.runs.verbs import start_run
from queue_workflows.errors import ExitCode
from queue_workflows.hooks.plugins.compile import compile_hooks
from queue_workflows.hooks.plugins.discovery import Hook, plugins_in
from queue_workflows.hooks.plugins.hooks_file import DESCENDANTS, ORDERS, Descendants, Order, Setup
from queue_workflows.hooks.plugins.order import SEQUENTIAL_STEPS
from queue_workflows.hooks.script.arguments import config_in, hook_arguments
from queue_workflows.payload import check_payload
from queue_workflows.repositories.runs.runs import StartedRun
from queue_workflows.views.hooks.scripts import json_of, scripts_of, state_of

_dir_option = click.option(
    "--dir",
    "dirs",
    metavar="DIR",
    multiple=True,
    help="A directory of plugins; may be given several times. Else QWF_HOOK_DIRS.",
)

_setup_option = click.option(
    "--setup",
    metavar="EVENT",
    help="The event with the hooks that set up the tree before its first run; else as hooks.toml says.",
)
_no_setup_option = click.option("--no-setup", is_flag=True, help="Set up nothing, whatever hooks.toml says.")

_order_option = click.option(
    "--order",
    type=click.Choice(ORDERS),
    help="By steps, or strictly by name; else as hooks.toml in the directory says, or by steps.",
)


@click.group(cls=CommandGroup, no_args_is_help=True)
def hooks() -> None:
    """See the hook scripts of an event, run them as a workflow, and see what they have said."""


@hooks.command("list")
@click.argument("event")
@_dir_option
@_order_option
@_setup_option
@_no_setup_option
@json_option
def list_(
    event: str,
    *,
    dirs: Sequence[str],
    order: Order | None,
    setup: str | None,
    no_setup: bool,
    as_json: bool,
) -> ExitCode:
    """List the hooks of EVENT in their order, with those that set up its tree, and those of both ends."""
    places = _places(dirs)
    found = scripts_of(event, places, order=order, setup=_setup(setup, no_setup=no_setup))
    if setup is not None and not found.is_set_up:
        raise click.UsageError(f"--setup: there are no hooks of {setup} below {', '.join(map(str, places))}")
    for said in found.warnings:
        say(f"warning: {said}")
    if as_json:
        print_json(json_of(found))
        return ExitCode.DONE
    rows = [
        [str(hook.step), hook.event, _beside(hook), hook.label, state_of(hook)] for _, hook in found.scripts
    ]
    print_table(["STEP", "EVENT", "", "HOOK", "STATE"], rows)
    if not found.scripts:
        say(f"no hooks of {event} below {', '.join(map(str, places))}")
    return ExitCode.DONE


@hooks.command("run")
@click.argument("event")
@_dir_option
@click.option("--input", "-i", "given", metavar="K=TEXT|K:=JSON", multiple=True, help="An argument of each.")
@click.option("--inputs", "file", metavar="FILE", help="All arguments, as JSON or YAML; - is standard input.")
@click.option("--plugins", metavar="A,B", help="Only the hooks of these plugins.")
@click.option(
    "--sequential",
    metavar="N,N",
    default=",".join(map(str, sorted(SEQUENTIAL_STEPS))),
    show_default=True,
    help="The steps in which hooks run one after the other.",
)
@_order_option
@_setup_option
@_no_setup_option
@click.option(
    "--descendants",
    type=click.Choice(DESCENDANTS),
    help="Wait for the runs that its records begin, or leave them; else as hooks.toml says, or wait for any.",
)
@click.option(
    "--max-open-runs",
    type=click.IntRange(1),
    metavar="N",
    help="How many runs of the tree may be open at once, with this one; else as hooks.toml says, or any.",
)
@click.option(
    "--shared-directory/--no-shared-directory",
    default=None,
    help="Let any host run its hooks, as all see its directory; else as hooks.toml says, or one host alone.",
)
@click.option("--dedupe-key", metavar="KEY", help="Start nothing if a run of it has this key already.")
@click.option("--watch", is_flag=True, help="Follow the run, and end as it does; see `qwf run watch`.")
@click.option("--here", is_flag=True, help="Do all of it in this command, and end as the run does.")
@json_option
@click.pass_obj
def run(
    invocation: Invocation,
    event: str,
    *,
    dirs: Sequence[str],
    given: Sequence[str],
    file: str | None,
    plugins: str | None,
    sequential: str,
    order: Order | None,
    setup: str | None,
    no_setup: bool,
    descendants: Descendants | None,
    max_open_runs: int | None,
    shared_directory: bool | None,
    dedupe_key: str | None,
    watch: bool,
    here: bool,
    as_json: bool,
) -> ExitCode:
    """Start a run of EVENT's hooks, and print its id.

    Workers of the queue hooks look the scripts up below their own QWF_HOOK_DIRS. With --here this command is
    the worker, of the scripts below --dir, and shows each hook as it goes. Without a database of yours an
    embedded one is started in .qwf/.
    """
    places = _places(dirs)
    wanted = _named(plugins, places)
    document = compile_hooks(
        event,
        places,
        _steps(sequential),
        plugins=wanted,
        order=order,
        wait_for_descendants=None if descendants is None else descendants == "wait",
        max_open_runs=max_open_runs,
        shared_directory=shared_directory,
        setup=_setup(setup, no_setup=no_setup),
    )
    inputs = mapping_in("--inputs", file) if file is not None else {}
    inputs |= pairs("--input", given)
    config_in(inputs)
    check_payload(inputs)
    # What no hook could be handed would fail in each of them.
    hook_arguments(inputs)

    def start(database: Database) -> StartedRun:
        with closing(database.connect(autocommit=True)) as connection:
            started = start_run(document, inputs, conn=connection, dedupe_key=dedupe_key)
        if not started.created:
            say(f"run {started.id} of {event} has this key already: nothing was started")
        return started

    if here:
        from queue_workflows.cli.runs.here import run_here

        return run_here(
            invocation,
            lambda database: start(database).id,
            queues=[HOOKS_QUEUE],
            places=places,
            as_json=as_json,
        )
    with Database.open(invocation.db_url, role="cli", creates=False) as database:
        started = start(database)
        if watch:
            return follow(database, started.id, as_json=as_json)
    if as_json:
        nodes = [
            *document["nodes"],
            *(one for node in document["nodes"] for one in node.get("tree", {}).get("nodes", [])),
        ]
        print_json({"run": started.id, "created": started.created, "hooks": len(nodes)})
    else:
        click.echo(str(started.id))
        say(f"`qwf run watch {started.id}` follows it")
    return ExitCode.DONE


hooks.add_command(records)


def _places(dirs: Sequence[str]) -> list[Path]:
    places = [Path(os.path.expanduser(one)) for one in dirs] or list(effective_settings().hook_dirs)
    if not places:
        raise click.UsageError("where are the plugins? Say --dir DIR, or set QWF_HOOK_DIRS")
    return places


def _setup(event: str | None, *, no_setup: bool) -> Setup | None:
    """What was asked for of a setup."""
    if event is not None and no_setup:
        raise click.UsageError("say --setup EVENT or --no-setup, not both")
    return False if no_setup else event


def _named(plugins: str | None, places: Sequence[Path]) -> list[str] | None:
    """The plugins of `--plugins`; one that is not there is misspelt."""
    if plugins is None:
        return None
    wanted, there = [name.strip() for name in plugins.split(",") if name.strip()], plugins_in(places)
    if not wanted:
        raise click.UsageError("--plugins names none; without it there are all")
    missing = [name for name in wanted if name not in there]
    if missing:
        known = ", ".join(sorted(there)) or "none"
        raise click.UsageError(f"--plugins: there is no plugin {', '.join(missing)}; there are {known}")
    return wanted


def _steps(text: str) -> set[int]:
    words = [word.strip() for word in text.split(",") if word.strip()]
    if not all(re.fullmatch("[0-9]", word) for word in words):
        raise click.UsageError(f"--sequential {text!r}: steps are from 0 to 9, as in 5 or 2,5")
    return {int(word) for word in words}


def _beside(hook: Hook) -> str:
    """Whether it runs in the background, and what its name says of how it ends there."""
    return " ".join(["background", hook.hint or ""]).strip() if hook.is_background else ""
