"""`qwf binaries`: the programs that plugins need, on each machine; and having them on this one."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, TypeVar

import click
import psycopg

from queue_workflows.cli import Invocation
from queue_workflows.cli.shared.lazy_group import CommandGroup
from queue_workflows.cli.shared.operator import (
    asking_user,
    json_option,
    operators_connection,
    print_json,
    print_table,
    say,
)
from queue_workflows.errors import ExitCode

if TYPE_CHECKING:
    from queue_workflows.hooks.plugins.needs import Need
    from queue_workflows.hooks.programs.install import Asking, Installer
    from queue_workflows.models import Binary

T = TypeVar("T")


@click.group(cls=CommandGroup, no_args_is_help=True)
def binaries() -> None:
    """Programs that plugins need, as found or installed on each machine."""


@binaries.command("list")
@click.option("--host-label", metavar="HOST", help="Of this machine only.")
@json_option
@click.pass_obj
def list_(invocation: Invocation, *, host_label: str | None, as_json: bool) -> None:
    """Show each machine's programs: where they are, their versions, or why they are missing."""
    from queue_workflows.views.hooks import binaries as programs

    with operators_connection(invocation) as connection:
        found = programs.binaries(connection, host_label=host_label)
    if as_json:
        print_json(programs.json_of(found))
        return
    print_table(
        ["HOST", "NAME", "STATUS", "PROVIDER", "VERSION", "WHERE, OR WHY NOT"],
        [_line(host, binary) for host, binary in found],
    )
    if not found:
        say("no plugin has asked for a program yet")


@binaries.command("ensure")
@click.argument("names", metavar="[NAME]...", nargs=-1)
@click.option(
    "--dir",
    "dirs",
    multiple=True,
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="A directory of plugins, with providers of yours; the setting hook_dirs if absent.",
)
@click.option("--providers", metavar="A,B", help="What may install NAME, in order: env,pip,npm,apt,brew.")
@click.option("--host-label", metavar="HOST", help="What this machine is called; its host name if absent.")
@json_option
@click.pass_obj
def ensure_(
    invocation: Invocation,
    *,
    names: tuple[str, ...],
    dirs: tuple[Path, ...],
    providers: str | None,
    host_label: str | None,
    as_json: bool,
) -> ExitCode:
    """Find or install programs on this machine: each NAME, or all that plugins need and hooks have asked for.

    What is there stays as it is, and for what a worker installs at this moment it waits. Exits with 1 if one
    cannot be had; the others are tried all the same.
    """
    from queue_workflows.config import effective_settings
    from queue_workflows.db.connections.dsn import secrets_of
    from queue_workflows.engine.execution.redaction import Redactor
    from queue_workflows.hooks.programs.ensure import asked_for
    from queue_workflows.hooks.programs.install import Installer
    from queue_workflows.host.commands.client import Spawner
    from queue_workflows.repositories.hooks.binaries import BinaryRepository
    from queue_workflows.repositories.workers.machines import MachineRepository
    from queue_workflows.views.hooks.binaries import json_of

    settings = effective_settings({"host_label": host_label})
    places = dirs or tuple(settings.hook_dirs)
    needs = _needs(names, places, providers)
    from queue_workflows.db.connections.engine import Database

    with (
        Database.open(invocation.db_url, role="cli", creates=False) as database,
        closing(database.connect(autocommit=True)) as connection,
        Spawner() as spawner,
    ):
        workshop = Installer(
            ask=_one_at_a_time(connection),
            host_label=settings.host_label,
            machine_id=MachineRepository(connection).seen(settings.host_label),
            hook_dirs=tuple(place.absolute() for place in places),
            data_dir=settings.data_dir,
            spawner=spawner,
            claimed_by=asking_user(),
            dsns=tuple(dsn for dsn in (database.dsn, database.direct_dsn) if dsn),
            redactor=Redactor(secrets_of(database.params)),
        )
        known = BinaryRepository(connection)
        if not names:
            queued = known.list(machine_id=workshop.machine_id, status="queued")
            named = {need.name for need in needs}
            needs += [need for need in map(asked_for, queued) if need is not None and need.name not in named]
        missing = [need.name for need in needs if not _is_had(need, workshop)]
        found = known.named(workshop.machine_id, [need.name for need in needs])
    if as_json:
        print_json(json_of((settings.host_label, binary) for binary in found.values()))
    else:
        rows = [_line(settings.host_label, binary) for binary in found.values()]
        print_table(["HOST", "NAME", "STATUS", "PROVIDER", "VERSION", "WHERE, OR WHY NOT"], rows)
    if not needs:
        say("no plugin needs a program")
    if missing:
        say(f"missing: {', '.join(missing)}")
    return ExitCode.FAILED if missing else ExitCode.DONE


def _needs(names: tuple[str, ...], dirs: tuple[Path, ...], providers: str | None) -> list[Any]:
    """What is named, as the plugins want it where they do; or all that the plugins need."""
    from queue_workflows.hooks.plugins.needs import need_of, needs_below

    known = needs_below(dirs, strict=True)
    try:
        if not names:
            return [known[name] for name in sorted(known)]
        return [
            known[name]
            if name in known and providers is None
            else replace(need_of(name, providers), is_exact=providers is not None)
            for name in names
        ]
    except ValueError as wrong:
        raise click.UsageError(str(wrong)) from None


def _is_had(need: Need, workshop: Installer) -> bool:
    from queue_workflows.hooks.programs.ensure import ensure

    return ensure([need], workshop, at_once=True, on_wait=say).is_ready


def _one_at_a_time(connection: psycopg.Connection[Any]) -> Asking:
    """For an installation and its renewals: no statement of one may come between those of the other."""
    turn = Lock()

    def ask(question: Callable[[psycopg.Connection[Any]], T]) -> T:
        with turn:
            return question(connection)

    return ask


def _line(host: str, binary: Binary) -> list[str]:
    where = binary.abspath if binary.status == "installed" else binary.error or binary.claimed_by
    return [host, binary.name, binary.status, binary.provider or "", binary.version or "", where or ""]
