"""`qwf demo`: the bundled example, told line by line, and the table of what happened."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict

import click

from queue_workflows.cli import Invocation
from queue_workflows.demo import Outcome, run_demo
from queue_workflows.errors import ExitCode

HEADINGS = ("job", "task", "priority", "status", "claimed by", "attempt", "wait", "result")
NEXT = """\
Try next:
  qwf demo             again: another batch in the same database
  qwf db current       where the schema stands
  qwf doctor           what the database is like, and what to do about it
  docs/how-to-enqueue.md, to do the same from an application of your own"""


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON; the story goes to stderr.")
@click.pass_obj
def demo(invocation: Invocation, as_json: bool) -> ExitCode:
    """Run the bundled example.

    Migrates the database, enqueues a batch of jobs in one transaction with the rows that they belong to,
    rolls another back, has two workers run the jobs, and shows what happened. Without a database it starts
    an embedded Postgres in .qwf/. May be run as often as you like; it only ever touches its own queue and
    the schema qwf_demo.
    """
    outcome = run_demo(invocation.db_url, lambda line: click.echo(line, err=as_json))
    if as_json:
        click.echo(json.dumps(asdict(outcome), indent=2))
    else:
        click.echo()
        click.echo("\n".join(table(outcome)))
        click.echo()
        click.echo(where(outcome))
        click.echo()
        click.echo(NEXT)
    return ExitCode.DONE if outcome.complete else ExitCode.FAILED


def table(outcome: Outcome) -> Iterable[str]:
    """One line a job, in the order in which they were started."""
    lines = [HEADINGS]
    for row in outcome.jobs:
        wait = "" if row.wait_ms is None else f"{row.wait_ms} ms"
        result = "" if row.result is None else json.dumps(row.result)
        lines.append(
            (
                *(str(row.job), row.task, str(row.priority), row.status),
                *(row.claimed_by or "", str(row.attempt), wait, result),
            )
        )
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for cells in lines:
        yield "  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip()


def where(outcome: Outcome) -> str:
    """Where the data lies, and how to be rid of it."""
    if outcome.data_directory:
        return f"The data stays in {outcome.data_directory}; the server stops with its last user."
    return (
        f"The data stays in {outcome.database}: the engine's tables, and the schema qwf_demo,\n"
        "which `DROP SCHEMA qwf_demo CASCADE` removes."
    )
