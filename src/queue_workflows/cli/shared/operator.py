"""What the operators' commands share: a connection, the user that is asking, and how an answer is printed."""

from __future__ import annotations

import getpass
import json
import os
import socket
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any, Final

import click
import psycopg

from queue_workflows.cli import Invocation
from queue_workflows.cli.shared.root_options import is_quiet
from queue_workflows.drawing.words import on_one_line, say_moment
from queue_workflows.views.json_values import plain

if TYPE_CHECKING:
    from queue_workflows.repositories.reports.job_search import JobPage
    from queue_workflows.repositories.reports.run_search import RunPage

_ALONE: Final = "nobody is there to be asked: say --yes, or --dry-run to see what it would be"


@contextmanager
def operators_connection(invocation: Invocation) -> Iterator[psycopg.Connection[Any]]:
    """An autocommit connection to the configured database: each statement is a transaction."""
    from queue_workflows.db.connections.engine import Database

    with (
        Database.open(invocation.db_url, role="cli", creates=False) as database,
        closing(database.connect(autocommit=True)) as connection,
    ):
        yield connection


def schema_refusal(invocation: Invocation) -> str | None:
    """Why workers of this version refuse the database's schema; None if they do not.

    For an older schema they wait, and nothing else of this version can read it either: `SchemaBehind`.
    """
    from queue_workflows.db.connections.engine import Database
    from queue_workflows.errors import SchemaAhead
    from queue_workflows.roles.schema_check import wait_for_schema
    from queue_workflows.roles.worker.single import MIN_SCHEMA

    try:
        with Database.open(invocation.db_url, role="cli", creates=False) as database:
            wait_for_schema(database, MIN_SCHEMA, 0)
    except SchemaAhead as refused:
        return str(refused)
    return None


def before_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Lists go on where one ended."""
    return click.option(
        "--before", metavar="CURSOR", help="Go on where a list ended, at the cursor that it names."
    )(command)


def json_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Machines read JSON."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON.")(command)


def audit_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The account and the reason, for the audit log."""
    with_reason = click.option("--reason", metavar="TEXT", help="Why, for the audit log and for colleagues.")
    with_actor = click.option(
        "--actor",
        default=asking_user,
        metavar="NAME",
        help="Your name, for the audit log.  [default: USER@HOST]",
    )
    return with_reason(with_actor(command))


def deciding_options(
    filter_options: Callable[[Callable[..., Any]], Callable[..., Any]], names: str
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """What every command takes that decides over many: by their names, or all that match."""

    def decorated(command: Callable[..., Any]) -> Callable[..., Any]:
        for decorate in (
            audit_options,
            json_option,
            click.option("--yes", is_flag=True, help="Do not ask."),
            click.option("--dry-run", is_flag=True, help="Say what it would be, change nothing."),
            filter_options,
            click.argument("names", metavar=names, nargs=-1),
        ):
            command = decorate(command)
        return command

    return decorated


def asking_user() -> str:
    """The user that asks, as far as the machine knows."""
    try:
        name = getpass.getuser()
    except (KeyError, OSError):  # an account without a name, as containers have them
        name = f"uid-{os.getuid()}"
    return f"{name}@{socket.gethostname()}"


def say(message: str) -> None:
    """A remark beside the output, unless --quiet was said."""
    if not is_quiet():
        click.echo(message, err=True)


def confirm(question: str, *, yes: bool, alone: str = _ALONE) -> bool:
    """Whether to go on, said if not; a script that pipes nothing in must not hang or be taken for a yes."""
    if yes:
        return True
    # Without a standard input at all, Python has None there.
    if sys.stdin is None or sys.stdin.closed or not sys.stdin.isatty():
        raise click.UsageError(alone)
    is_agreed = click.confirm(question, err=True)
    if not is_agreed:
        say("nothing done")
    return is_agreed


def say_where_it_ends(
    thing: str, page: JobPage | RunPage, limit: int, *, before: str | None, as_json: bool
) -> None:
    """Say of a list that shows the newest first that nothing matches, or how to see what may follow."""
    shown = len(page.lines)
    if page.searched_back_to is not None:
        since = say_moment(page.searched_back_to)
        say(f"searched back to {since}; --before {page.cursor} searches further")
    elif as_json:
        return
    elif not shown:
        say(f"no {thing} matches")
    elif shown == limit and before is None:
        say(f"the newest {limit}; --limit shows more")
    elif shown == limit and page.cursor is not None:
        say(f"{limit} more; --before {page.cursor} goes on")


def tell_each(thing: str, answers: Mapping[str, str], *, as_json: bool) -> None:
    """What became of each that was named, a line each; `thing` is what answers call it, such as `job`."""
    if as_json:
        print_json([{thing: name, "answer": answer} for name, answer in answers.items()])
        return
    for name, answer in answers.items():
        click.echo(f"{name}: {answer}")


def print_json(value: Any) -> None:
    """For machines: times in ISO 8601 with their zone. A line at a time, as what reads may go away."""
    for line in json.dumps(value, indent=2, default=plain, ensure_ascii=False).split("\n"):
        click.echo(line)


def print_table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Columns as wide as they need to be; the last one may be ragged."""
    if not rows:
        return
    rows = [[on_one_line(cell) for cell in row] for row in rows]
    widths = [max(len(row[place]) for row in [titles, *rows]) for place in range(len(titles))]
    for row in [titles, *rows]:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        click.echo("  ".join(cells).rstrip())
