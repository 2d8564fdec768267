"""`qwf run watch` and `qwf run start --watch`: a run drawn live, or told line by line to what reads it."""

from __future__ import annotations

import json
import logging
import os
import shutil
import sys
import uuid
from collections.abc import Callable
from typing import Final

import click

from queue_workflows.cli import Invocation
from queue_workflows.cli.shared.operator import json_option, say
from queue_workflows.cli.shared.root_options import typed_again
from queue_workflows.cli.shared.run_names import run_named
from queue_workflows.config import HOOKS_QUEUE, effective_settings
from queue_workflows.db.connections.engine import Database
from queue_workflows.drawing.changes import Change, changes, in_words
from queue_workflows.drawing.run import draw, draw_within
from queue_workflows.drawing.terminal import Terminal, stdout_terminal
from queue_workflows.engine.watch.follow import watch_run
from queue_workflows.engine.watch.missing_roles import MissingRoles, RoleWatch
from queue_workflows.engine.watch.run_view import RunOverview
from queue_workflows.errors import ExitCode
from queue_workflows.states import RunStatus
from queue_workflows.views.json_values import plain

# To the top of what was drawn last, and everything below it gone; to the end of a line the same.
_UP: Final = "\x1b[{}F"
_CLEAR_BELOW: Final = "\x1b[J"
_CLEAR_LINE: Final = "\x1b[K"


@click.command()
@click.argument("run_name", metavar="RUN")
@click.option("--ascii", "ascii_only", is_flag=True, help="Draw with plain characters.")
@json_option
@click.pass_obj
def watch(invocation: Invocation, *, run_name: str, ascii_only: bool, as_json: bool) -> ExitCode:
    """Follow RUN until it is over, and end as it did: 0 if it completed, 1 if it failed or was cancelled.

    In a terminal the run is drawn anew whenever something changes; elsewhere each change is a line, with
    --json an object. Ctrl-C ends the watching with 130, and the run goes on.
    """
    with Database.open(invocation.db_url, role="cli", creates=False) as database:
        connection = database.connect(autocommit=True)
        try:
            run_id = run_named(connection, run_name)
        finally:
            connection.close()
        return follow(database, run_id, as_json=as_json, ascii_only=ascii_only)


def follow(
    database: Database,
    run_id: uuid.UUID,
    *,
    as_json: bool,
    ascii_only: bool = False,
    is_enough: Callable[[], bool] = lambda: False,
    tells_missing: bool = True,
) -> ExitCode:
    """Show a run until it is over, or until what was seen `is_enough`; the status to end with.

    What it waits for and nobody runs is told, with the command that starts it, unless the caller starts it.
    """
    terminal = stdout_terminal(ascii_only=ascii_only)
    show: _Drawn | _Told
    if as_json:
        show = _Told(_in_json)
    elif sys.stdout.isatty() and os.environ.get("TERM") != "dumb":
        show = _Drawn(terminal)
    else:
        show = _Told(lambda change: in_words(change, terminal))
    last: RunOverview | None = None
    # It polls where it cannot listen, and says itself when it sees nothing.
    for name in ("queue_workflows.db.listen.listener", "psycopg"):
        logging.getLogger(name).addHandler(logging.NullHandler())
    try:
        with RoleWatch(database, stale_s=effective_settings().stale_heartbeat_s) as roles:
            for seen in watch_run(database, run_id):
                if is_enough():
                    break
                last = seen or last
                if seen is not None and tells_missing:
                    show.remark(_missing(roles.look(seen)))
                show(seen)
    except KeyboardInterrupt:
        say(f"the run goes on; `qwf run watch {run_id}` shows it again")
        raise
    return ExitCode.DONE if last and last.status == RunStatus.COMPLETED else ExitCode.FAILED


def _missing(roles: MissingRoles) -> list[str]:
    """A line for each, with the command that starts it."""
    told = click.get_current_context().find_root().obj
    qwf = typed_again(told if isinstance(told, Invocation) else Invocation())
    lines = []
    if roles.orchestrator:
        lines.append(f"no orchestrator runs: `{qwf} orchestrator` starts one")
    for queue in roles.queues:
        more = " --dir PLUGINS" if queue == HOOKS_QUEUE else ""
        lines.append(f"no worker of {queue} runs: `{qwf} worker --queue {queue}{more}` starts one")
    if lines:
        begins = "hooks run" if HOOKS_QUEUE in roles.queues else "run start"
        lines.append(f"`{qwf} up` runs all roles in one terminal; with --here `qwf {begins}` needs none")
    return lines


class _Drawn:
    """The run at one place of the terminal, drawn over again; whole when it is over."""

    def __init__(self, terminal: Terminal) -> None:
        self._terminal = terminal
        self._height = 0
        self._last: RunOverview | None = None
        self._remarks: list[str] = []

    def remark(self, lines: list[str]) -> None:
        """Have these below the picture, as long as they are true."""
        self._remarks = lines

    def __call__(self, seen: RunOverview | None) -> None:
        """Draw it; while the database is away the last that was seen, with a word of it."""
        self._last = seen or self._last
        if self._last is None:
            return
        terminal, lines_there = stdout_terminal(), shutil.get_terminal_size().lines - 1
        terminal = Terminal(self._terminal.colour, self._terminal.unicode, terminal.columns)
        if self._last.is_over:
            lines = draw(self._last, terminal)
        else:
            lines = draw_within(self._last, terminal, lines_there - 1 - len(self._remarks))
            lines += self._remarks
        if seen is None:
            lines.append("the database is away; waiting for it")
        lines = [_fitting(line, terminal) for line in lines]
        back = _UP.format(self._height) if self._height else ""
        sys.stdout.write(back + "".join(f"{line}{_CLEAR_LINE}\n" for line in lines) + _CLEAR_BELOW)
        sys.stdout.flush()
        self._height = len(lines)


def _fitting(line: str, terminal: Terminal) -> str:
    """No longer than a line of the terminal, or what is above could not be reached again."""
    text = click.unstyle(line)
    cut = terminal.cut(text, terminal.columns)
    return line if cut == text else cut


class _Told:
    """Each change as a line."""

    def __init__(self, line_of: Callable[[Change], str]) -> None:
        self._line_of = line_of
        self._before: RunOverview | None = None
        self._is_away = False
        self._remarks: list[str] = []

    def remark(self, lines: list[str]) -> None:
        """Say these beside the output, once until there is something else to say."""
        for line in lines if lines != self._remarks else ():
            say(line)
        self._remarks = lines

    def __call__(self, seen: RunOverview | None) -> None:
        """Print what changed; that the database went away is a remark beside it, once."""
        if seen is None:
            if not self._is_away:
                say("the database is away; waiting for it")
            self._is_away = True
            return
        self._is_away = False
        for change in changes(self._before, seen):
            click.echo(self._line_of(change))
        self._before = seen


def _in_json(change: Change) -> str:
    return json.dumps(change._asdict(), default=plain, ensure_ascii=False)
