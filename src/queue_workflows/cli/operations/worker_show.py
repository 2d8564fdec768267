"""`qwf workers show` and `qwf workers host`: one worker, and all that is on one host."""

from __future__ import annotations

from collections.abc import Sequence

import click

from queue_workflows.cli import Invocation
from queue_workflows.cli.operations.worker_lines import WORKER_TITLES, lacks_of, worker_cells
from queue_workflows.cli.shared.operator import (
    json_option,
    operators_connection,
    print_json,
    print_table,
    say,
)
from queue_workflows.config import effective_settings
from queue_workflows.db.connections.snapshot_read import at_one_moment
from queue_workflows.drawing.hardware import drawn
from queue_workflows.drawing.terminal import stdout_terminal
from queue_workflows.drawing.words import on_one_line, say_moment
from queue_workflows.repositories.workers.jobs_at_work import JobAtWork
from queue_workflows.views.hosts.host import host as read_host
from queue_workflows.views.hosts.host import json_of as host_json
from queue_workflows.views.workers.listing import code_named
from queue_workflows.views.workers.wishes import told_of
from queue_workflows.views.workers.worker import json_of as worker_json
from queue_workflows.views.workers.worker import worker as read_worker


@click.command()
@click.argument("worker_id", metavar="WORKER")
@json_option
@click.pass_obj
def show(invocation: Invocation, *, worker_id: str, as_json: bool) -> None:
    """Show one worker: its last beat, the jobs it holds, what it has loaded, and what was asked of it."""
    stale_s = effective_settings().stale_heartbeat_s
    with operators_connection(invocation) as connection, at_one_moment(connection):
        seen = read_worker(connection, worker_id, stale_s=stale_s)
    if as_json:
        print_json(worker_json(seen))
        return
    print_table(WORKER_TITLES, [worker_cells(seen.worker, stale_s, seen.code)])
    _print_jobs(seen.jobs)
    if not seen.jobs:
        say("it holds no job")
    if seen.worker.cached_models:
        click.echo(f"has loaded: {on_one_line(', '.join(map(str, seen.worker.cached_models)))}")
    if seen.code is not None and seen.code.names:
        click.echo(on_one_line(f"knows: {', '.join(seen.code.names)}"))
    if seen.worker.lacks:
        click.echo(on_one_line(lacks_of(seen.worker)))
    for wish in seen.wishes:
        click.echo(on_one_line(told_of(wish)))


@click.command()
@click.argument("host_label", metavar="HOST")
@click.option("--ascii", "ascii_only", is_flag=True, help="Draw with ASCII characters alone.")
@json_option
@click.pass_obj
def host(invocation: Invocation, *, host_label: str, ascii_only: bool, as_json: bool) -> None:
    """Show one host: its workers and their jobs, its hardware, host locks, quarantined devices."""
    stale_s = effective_settings().stale_heartbeat_s
    with operators_connection(invocation) as connection, at_one_moment(connection):
        seen = read_host(connection, host_label, stale_s=stale_s)
    told = host_json(seen)
    if as_json:
        print_json(told)
        return
    print_table(
        WORKER_TITLES, [worker_cells(one, stale_s, code_named(one, seen.code)) for one in seen.workers]
    )
    _print_jobs(seen.jobs)
    if told["hardware"] is not None:
        for line in drawn([told["hardware"]], stdout_terminal(ascii_only=ascii_only)):
            click.echo(line)
    for one in seen.quarantined:
        click.echo(on_one_line(f"{one.device} ({one.queue}) is quarantined: {one.reason}"))
    for wish in seen.wishes:
        click.echo(on_one_line(told_of(wish)))


def _print_jobs(jobs: Sequence[JobAtWork]) -> None:
    print_table(
        ["JOB", "WHAT", "QUEUE", "ATTEMPT", "SINCE", "LEASE UNTIL", "LIMIT", "HOST LOCK"],
        [
            [
                one.name,
                one.title,
                one.queue,
                str(one.attempt),
                say_moment(one.since),
                say_moment(one.lease_expires_at),
                one.limit_key or "-",
                one.host_lock or "-",
            ]
            for one in jobs
        ],
    )
