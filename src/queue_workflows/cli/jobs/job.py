"""`qwf job`: jobs of both families, one or many."""

from __future__ import annotations

import json
import uuid
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import click
import psycopg

from queue_workflows.cli import Invocation
from queue_workflows.cli.shared.durations import span
from queue_workflows.cli.shared.lazy_group import CommandGroup
from queue_workflows.cli.shared.names import job_named
from queue_workflows.cli.shared.operator import (
    audit_options,
    before_option,
    confirm,
    deciding_options,
    json_option,
    operators_connection,
    print_json,
    print_table,
    say,
    say_where_it_ends,
    tell_each,
)
from queue_workflows.drawing.words import COUNTED, number_of, on_one_line, say_moment, say_span, say_time
from queue_workflows.engine.operate.many_jobs import RUN_OVER, Verb, decide_matching
from queue_workflows.errors import ExitCode
from queue_workflows.repositories.reports.job_listing import (
    FAILURES_READ,
    Failures,
    JobFilter,
    SelectingRepository,
)
from queue_workflows.repositories.reports.job_search import JobLine, JobSearch
from queue_workflows.repositories.sql.families import Family
from queue_workflows.states import JobStatus, StepKind
from queue_workflows.views.filters.jobs import with_text
from queue_workflows.views.jobs import failures as failing
from queue_workflows.views.jobs import job as stored
from queue_workflows.views.jobs import listing, steps
from queue_workflows.views.jobs.decisions import BECAME, DONE, applies, decide, foretell, meant


@click.group(cls=CommandGroup, no_args_is_help=True)
def job() -> None:
    """List, show, cancel and retry jobs.

    JOB is ingest:7, node:7, or 7 where only one of them exists.
    """


def filter_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """What jobs can be found by."""
    statuses = click.Choice([status.value for status in JobStatus])
    for option in (
        click.option("--queue", metavar="QUEUE", help="On this queue."),
        click.option("--status", type=statuses, multiple=True, help="In this status; may be repeated."),
        click.option("--task", metavar="NAME", help="Ingest jobs of this task."),
        click.option("--node", metavar="NAME", help="Node jobs of this node or module."),
        click.option("--run", "run_id", type=click.UUID, metavar="RUN", help="Node jobs of this run."),
        click.option("--error", metavar="TEXT", help="Last error contains TEXT."),
        click.option("--worker", metavar="WORKER_ID", help="That this worker has, or had last."),
        click.option("--held", metavar="REASON", help="On hold for that reason, such as limit_full, or any."),
        click.option("--older-than", type=span, metavar="SPAN", help="Enqueued at least so long ago."),
        click.option("--newer-than", type=span, metavar="SPAN", help="Enqueued at most so long ago."),
        click.option(
            "--where", metavar="TEXT", help="All of that in one text: 'queue:fetch status:failed newer:1d'."
        ),
    ):
        command = option(command)
    return command


def _filter(
    *,
    queue: str | None,
    status: Sequence[str],
    task: str | None,
    node: str | None,
    run_id: uuid.UUID | None,
    error: str | None,
    worker: str | None,
    held: str | None,
    older_than: float | None,
    newer_than: float | None,
    where: str | None,
) -> JobFilter:
    by_options = JobFilter(
        queue=queue,
        status=tuple(status) or None,
        task=task,
        node=node,
        run_id=run_id,
        error=error,
        worker=worker,
        held=held,
        older_than_s=older_than,
        newer_than_s=newer_than,
    )
    return with_text(by_options, where)


@job.command("list")
@filter_options
@click.option("--limit", type=click.IntRange(1, 10_000), default=50, show_default=True, help="How many.")
@before_option
@json_option
@click.pass_obj
def list_(invocation: Invocation, /, *, limit: int, before: str | None, as_json: bool, **given: Any) -> None:
    """Show the newest jobs that match."""
    with operators_connection(invocation) as connection:
        page = listing.job_page(connection, _filter(**given), limit=limit, before=before)
    if as_json:
        print_json(listing.json_of(page))
    else:
        _print_lines(page.lines)
    say_where_it_ends("job", page, limit, before=before, as_json=as_json)


def _print_lines(lines: Sequence[JobLine]) -> None:
    print_table(
        ["JOB", "STATUS", "QUEUE", "WHAT", "ENQUEUED", "TOOK", "TRIES", "NOTE"],
        [_cells(one) for one in lines],
    )


def _cells(line: JobLine) -> list[str]:
    note = line.error or ""
    if line.hold_reason is not None:
        note = f"held: {line.hold_reason}" + (f" {line.hold_key}" if line.hold_key else "")
    elif line.status == JobStatus.RUNNING:
        note = f"on {line.claimed_by}"
    elif line.status == JobStatus.SCHEDULED:
        note = f"until {say_moment(line.run_at)} {note}"
    tries = f"{line.attempt}" + (f" ({line.failures}/{line.max_attempts} failed)" if line.failures else "")
    enqueued = say_moment(line.created_at)
    took = "" if line.took is None else say_time(line.took)
    return [line.name, line.status, line.queue, line.title, enqueued, took, tries, note[:120]]


@job.command()
@click.argument("job_name", metavar="JOB")
@json_option
@click.pass_obj
def show(invocation: Invocation, *, job_name: str, as_json: bool) -> None:
    """Show everything that is stored of JOB; `qwf explain` says why."""
    with operators_connection(invocation) as connection:
        family, job_id = job_named(connection, job_name)
        found = stored.stored_job(connection, family, job_id)
    if as_json:
        print_json(stored.json_of(found))
    else:
        _show(found)


def _show(found: stored.StoredJob) -> None:
    click.echo(on_one_line(f"{found.name} {found.title}"))
    width = max(map(len, found.columns))
    for column, value in found.columns.items():
        if value not in (None, [], {}) and column not in ("id", "errors"):
            click.echo(f"  {column:<{width}}  {on_one_line(str(value))}")
    _show_steps(found)
    for entry in found.errors:
        click.echo(f"  error of attempt {entry.get('attempt')}:")
        for name, value in entry.items():
            for line in str(value).splitlines() or [""]:
                click.echo(f"    {name}: {on_one_line(line, squeeze=False)}")
    for one in found.audit:
        why = f": {one.reason}" if one.reason else ""
        click.echo(on_one_line(f"  {one.action} by {one.actor} at {say_moment(one.at)}{why}"))


def _show_steps(found: stored.StoredJob) -> None:
    for step in found.steps:
        took = steps.took_s(step)
        lasted = f", {say_span(took)}" if took is not None else ""
        until = ""
        if took is None and step.wake_at is not None:
            until = f", until {say_moment(step.wake_at)}"
        what = "" if step.kind == StepKind.STEP else f" ({step.kind})"
        came_to = json.dumps(step.error if step.error is not None else step.result)[:120]
        said = f"  step {step.position} {steps.label_of(step)}{what}: {step.status}"
        click.echo(on_one_line(f"{said} at {say_moment(step.started_at)}{lasted}{until} {came_to}"))


@job.command()
@click.argument("job_name", metavar="JOB")
@click.option("--from", "step", required=True, metavar="STEP", help="Its name, NAME#2, or its position.")
@click.option("--keep-version", is_flag=True, help="Run the version that JOB began under.")
@audit_options
@json_option
@click.pass_obj
def fork(
    invocation: Invocation,
    *,
    job_name: str,
    step: str,
    keep_version: bool,
    actor: str,
    reason: str | None,
    as_json: bool,
) -> None:
    """Begin a copy of JOB, a durable function, at STEP; what is stored of the steps before is taken.

    What JOB spawned before STEP is waited for as its own; it is not spawned again.
    """
    with operators_connection(invocation) as connection:
        family, job_id = job_named(connection, job_name)
        made = steps.fork(
            connection, family, job_id, step, actor=actor, reason=reason, keeps_version=keep_version
        )
    if as_json:
        print_json({"job": made})
    else:
        click.echo(made)


@job.command()
@deciding_options(filter_options, "[JOB]...")
@click.pass_obj
def cancel(invocation: Invocation, /, **given: Any) -> ExitCode:
    """Cancel JOBs, or all that match: what waits is over, what runs is asked to stop."""
    return _decide(invocation, Verb.CANCEL, **given)


@job.command()
@deciding_options(filter_options, "[JOB]...")
@click.pass_obj
def retry(invocation: Invocation, /, **given: Any) -> ExitCode:
    """Run JOBs again that are over, or all failed ones that match: a new generation, with no failures yet."""
    return _decide(invocation, Verb.RETRY, **given)


def _decide(
    invocation: Invocation,
    verb: Verb,
    *,
    names: Sequence[str],
    dry_run: bool,
    yes: bool,
    as_json: bool,
    actor: str,
    reason: str | None,
    **given: Any,
) -> ExitCode:
    said = _filter(**given)
    if bool(names) == (not said.is_empty or said.status is not None):
        raise click.UsageError("name jobs, or say by --queue, --task and the like which are meant; not both")
    wanted = meant(verb, said)
    for status in said.status or ():
        if not applies(verb, status):
            raise click.UsageError(f"no job that is {status} can be {DONE[verb]}")
    by = {"actor": actor, "reason": reason}
    with operators_connection(invocation) as connection:
        if names:
            jobs = [job_named(connection, name) for name in names]
            return _decide_named(connection, verb, jobs, by, dry_run=dry_run, as_json=as_json)
        return decide_on_all(connection, verb, wanted, by, dry_run=dry_run, yes=yes, as_json=as_json)


def decide_on_all(
    connection: psycopg.Connection[Any],
    verb: Verb,
    wanted: JobFilter,
    by: dict[str, Any],
    *,
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> ExitCode:
    """Show how many match and the newest of them, ask, and decide on them all."""
    matched = _preview(connection, wanted, quiet=as_json)
    meant = matched
    if verb is Verb.RETRY and matched < COUNTED:
        meant = SelectingRepository(connection).count(replace(wanted, goes_on=True), at_most=COUNTED)
    left = max(matched - meant, 0)
    if dry_run or not matched:
        if as_json:
            print_json({"matched": matched, "dry_run": dry_run, "left_alone": left})
        else:
            say(f"{number_of('job', meant)} {'would be ' + DONE[verb] if matched else 'match'}")
            if left:
                say(f"{number_of('job', left)} would be {BECAME[RUN_OVER]}")
        return ExitCode.DONE
    besides = f" ({left:,} would be left alone)" if left else ""
    if not confirm(f"{verb.capitalize()} {number_of('job', meant)}{besides}?", yes=yes):
        return ExitCode.FAILED
    return _decide_matching(connection, verb, wanted, by, as_json=as_json)


def _decide_named(
    connection: psycopg.Connection[Any],
    verb: Verb,
    jobs: Sequence[tuple[Family, int]],
    by: dict[str, Any],
    *,
    dry_run: bool,
    as_json: bool,
) -> ExitCode:
    """One that is not there makes it a mistake, and none is touched; one that is over or not yet is told."""
    decided = foretell(connection, verb, jobs) if dry_run else decide(connection, verb, jobs, **by)
    tell_each("job", decided.answers, as_json=as_json)
    return ExitCode.DONE if dry_run or decided.is_all else ExitCode.FAILED


def _preview(connection: psycopg.Connection[Any], wanted: JobFilter, *, quiet: bool) -> int:
    """How many match, with the newest of them to look at."""
    matched = SelectingRepository(connection).count(wanted, at_most=COUNTED)
    if not quiet:
        _print_lines(JobSearch(connection).page(wanted, limit=5).lines)
    return matched


def _decide_matching(
    connection: psycopg.Connection[Any], verb: Verb, wanted: JobFilter, by: dict[str, Any], *, as_json: bool
) -> ExitCode:
    became: Counter[str] = Counter()
    try:
        for number, page in enumerate(decide_matching(connection, verb, wanted, **by)):
            became += page
            if number and number % 10 == 0:
                say(f"{became.total():,} so far")
    except KeyboardInterrupt:
        say(f"{became.total():,} {DONE[verb]} before the interruption")
        raise
    if as_json:
        print_json(dict(became))
    else:
        for word, count in became.items():
            click.echo(f"{number_of('job', count)} {BECAME[word]}")
    return ExitCode.DONE


@job.command()
@click.option(
    "--since", type=span, metavar="SPAN", default=failing.LOOK_BACK_S, show_default="7d", help="Looked back."
)
@click.option("--queue", metavar="QUEUE", help="On this queue.")
@click.option(
    "--limit",
    type=click.IntRange(1, FAILURES_READ),
    default=FAILURES_READ,
    show_default=True,
    help="Look at so many of the latest failures of each family.",
)
@before_option
@json_option
@click.pass_obj
def failures(
    invocation: Invocation, *, since: float, queue: str | None, limit: int, before: str | None, as_json: bool
) -> None:
    """Group failed jobs by queue, task and last error; ids and numbers in errors count as equal.

    `qwf job retry --error TEXT` takes a group's text as it is shown.
    """
    with operators_connection(invocation) as connection:
        found = failing.failure_groups(connection, since_s=since, queue=queue, most=limit, before=before)
    if found.cursor is not None and found.looked_back_to is not None:
        said = number_of("job", found.failed or 0)
        say(
            f"{said} failed in the last {say_span(since)}; the latest {limit:,} of a family were looked at,"
            f" back to {say_moment(found.looked_back_to)}; --before {found.cursor} goes on"
        )
    elif not found.groups and not as_json:
        say(f"nothing {'more ' if before is not None else ''}failed in the last {say_span(since)}")
    if as_json:
        print_json(failing.json_of(found))
    elif found.groups:
        _print_groups(found.groups)


def _print_groups(groups: Sequence[Failures]) -> None:
    print_table(
        ["COUNT", "QUEUE", "WHAT", "LAST", "LATEST", "ERROR"],
        [
            [
                str(group.count),
                group.queue,
                group.title,
                say_moment(group.last_at),
                f"{group.family}:{group.latest[0]}",
                group.error[:160],
            ]
            for group in groups
        ],
    )
