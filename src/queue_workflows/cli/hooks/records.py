"""`qwf hooks records`: what the hooks of a run have said."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

import click

from queue_workflows.cli import Invocation
from queue_workflows.cli.shared.operator import (
    json_option,
    operators_connection,
    print_json,
    print_table,
    say,
)
from queue_workflows.cli.shared.run_names import run_named
from queue_workflows.repositories.sql.families import LARGEST_ID
from queue_workflows.views.hooks import records as said

if TYPE_CHECKING:
    from queue_workflows.models import HookRecord

_SHOWN: Final = 100
# What tells most of a record, the first that it has.
_TELLING: Final = ("output_str", "url", "abspath", "name", "text")


@click.command()
@click.argument("run_name", metavar="RUN")
@click.option("--type", "kind", metavar="TYPE", help="Of this type: Result, Files, Tag, Run, Warning, yours.")
@click.option("--plugin", metavar="NAME", help="Of this plugin's hooks.")
@click.option("--warnings", is_flag=True, help="Only what has a warning: a malformed line, a refused record.")
@click.option("--all-attempts", is_flag=True, help="Of all attempts, not only of each hook's last one.")
@click.option("--limit", type=click.IntRange(1, 10_000), default=50, show_default=True, help="How many.")
@click.option(
    "--after",
    metavar="ID",
    type=click.IntRange(0, LARGEST_ID),
    help="Only what comes after the record with this id.",
)
@json_option
@click.pass_obj
def records(invocation: Invocation, /, *, run_name: str, limit: int, as_json: bool, **given: Any) -> None:
    """Show what the hooks of RUN have said, the oldest first, with what is wrong with it.

    RUN is an id, or its first eight digits or more.
    """
    with operators_connection(invocation) as connection:
        run_id = run_named(connection, run_name)
        found = said.records(connection, run_id, limit=limit, **given)
    if as_json:
        print_json(said.json_of(found))
        return
    print_table(["ID", "HOOK", "ATTEMPT", "LINE", "TYPE", "WHAT"], [_cells(record) for record in found])
    if not found:
        say("no record matches")
    elif len(found) == limit:
        say(f"the first {limit}; --after {found[-1].id} goes on, --limit shows more")


def _cells(record: HookRecord) -> list[str]:
    place = [str(record.id), f"{record.plugin}/{record.hook}", str(record.attempt), str(record.line_no)]
    what = _what(record.payload)[:_SHOWN]
    return [*place, record.type, f"warning: {record.warning}" if record.warning else what]


def _what(payload: dict[str, Any]) -> str:
    """A record in a few words; all of it is in the JSON."""
    if isinstance(files := payload.get("files"), list):
        paths = [str(found.get("path", "")) for found in files if isinstance(found, dict)]
        return f"{len(files)}: {', '.join(paths)}" if files else "0"
    parts = [str(payload["status"])] if isinstance(payload.get("status"), str) else []
    parts += [str(payload[name]) for name in _TELLING if payload.get(name)][:1]
    rest = {name: value for name, value in payload.items() if name != "type"}
    return " ".join(parts) or json.dumps(rest, ensure_ascii=False)
