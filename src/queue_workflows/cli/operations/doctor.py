"""`qwf doctor`: what is the matter, and what to do about it."""

from __future__ import annotations

import json

import click

from queue_workflows.cli import Invocation
from queue_workflows.db.doctor.findings import Check, Report, Status
from queue_workflows.errors import ExitCode
from queue_workflows.views.doctor import json_of, read_report

COLOURS = {Status.OK: "green", Status.WARN: "yellow", Status.FAIL: "red", Status.SKIP: "blue"}


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_obj
def doctor(invocation: Invocation, as_json: bool) -> ExitCode:
    """Check the database and this set-up, and say what to do.

    Changes nothing. Ends with 0 if nothing failed (warnings do not count), with 69, 78 or 79 if it was the
    connection, the configuration or the schema alone, else with 1.
    """
    report = read_report(invocation.db_url)
    if as_json:
        click.echo(json.dumps(json_of(report), indent=2, default=str))
    else:
        for check in report.checks:
            if check.status is not Status.SKIP:
                _print(check)
        _print_skipped([check for check in report.checks if check.status is Status.SKIP])
        click.echo(_summary(report))
    return report.exit_code


def _print(check: Check) -> None:
    click.echo(f"{_word(check.status)}  {check.name:<15}  {check.found}")
    if check.advice:
        click.echo(f"{'':<23}-> {check.advice}")


def _print_skipped(checks: list[Check]) -> None:
    """One line a reason: without a connection there is one reason for nearly all."""
    for reason in dict.fromkeys(check.found for check in checks):
        names = ", ".join(check.name for check in checks if check.found == reason)
        click.echo(f"{_word(Status.SKIP)}  {names}: {reason}")


def _word(status: Status) -> str:
    return click.style(f"{status:<4}", fg=COLOURS[status], bold=status is Status.FAIL)


def _summary(report: Report) -> str:
    counts = {status: sum(check.status is status for check in report.checks) for status in Status}
    return f"{counts[Status.FAIL]} failed, {counts[Status.WARN]} to look at, {counts[Status.OK]} fine" + (
        f", {counts[Status.SKIP]} skipped" if counts[Status.SKIP] else ""
    )
