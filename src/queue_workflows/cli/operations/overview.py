"""`qwf overview`: what is stuck and why, then how full and how fast everything is."""

from __future__ import annotations

from collections.abc import Mapping

import click

from queue_workflows.cli import Invocation
from queue_workflows.cli.shared.operator import (
    json_option,
    operators_connection,
    print_json,
    print_table,
    say,
    schema_refusal,
)
from queue_workflows.config import effective_settings
from queue_workflows.db.connections.snapshot_read import at_one_moment
from queue_workflows.drawing.words import number_of, say_span
from queue_workflows.engine.explain.job import Knowledge
from queue_workflows.views.overview import HostLine, Overview, QueueLine, json_of, read_overview
from queue_workflows.views.stuck import Stuck


@click.command()
@json_option
@click.pass_obj
def overview(invocation: Invocation, *, as_json: bool) -> None:
    """Show what is stuck and why, then queues, hosts, the outbox and what waits for an answer.

    What needs somebody comes first, what goes on by itself after it; each with an example and the command
    that shows more. Counts stop at 100,000, shown with a +.
    """
    settings = effective_settings()
    known = Knowledge(settings.stale_heartbeat_s, settings.poll_s, schema_refusal(invocation))
    with operators_connection(invocation) as connection, at_one_moment(connection):
        seen = read_overview(connection, known)
    if as_json:
        print_json(json_of(seen))
        return
    print_table(["STUCK", "COUNT", "QUEUE", "WHY", "MORE"], [_stuck(one) for one in seen.stuck])
    if not seen.stuck:
        say("nothing is stuck")
    print_table(
        ["QUEUE", "JOBS", "QUEUED", "OLDEST", "LATER", "HELD", "RUNNING", "ENDED 1h", "FAILED", "WORKERS"],
        [_queue(one) for one in seen.queues],
    )
    print_table(
        ["HOST", "WORKERS", "CPU", "DEVICES", "QUARANTINED", "SEEN"], [_host(one) for one in seen.hosts]
    )
    click.echo(_last_line(seen))


def _stuck(one: Stuck) -> list[str]:
    count = f"{one.count:,}{'+' if one.at_least else ''}"
    return [one.code, count, one.queue or "-", one.text, one.command]


def _queue(one: QueueLine) -> list[str]:
    counts = one.counts
    return [
        counts.queue,
        counts.family,
        f"{counts.queued:,}{'+' if 'queued' in counts.at_least else ''}",
        "-" if counts.oldest_queued_s is None else say_span(counts.oldest_queued_s),
        f"{counts.scheduled:,}{'+' if 'scheduled' in counts.at_least else ''}",
        ", ".join(f"{count:,} {reason}" for reason, count in counts.held.items()) or "-",
        f"{counts.running:,}",
        f"{sum(one.minutes):,}",
        f"{one.failed:,}",
        _workers(one.workers, one.silent_workers),
    ]


def _host(one: HostLine) -> list[str]:
    cpu = None if one.machine is None else one.machine.reading.get("machine", {}).get("cpu_percent")
    devices = 0 if one.machine is None else len(one.machine.reading.get("devices", ()))
    seen = "-" if one.machine is None else f"{say_span(one.machine.age_s)} ago{', stale' * one.stale}"
    return [
        one.host_label,
        _workers(one.workers, one.silent_workers),
        "-" if cpu is None else f"{cpu:.0f}%",
        str(devices),
        str(one.quarantined),
        seen,
    ]


def _workers(states: Mapping[str, int], silent: int) -> str:
    parts = [f"{count} {state}" for state, count in states.items()]
    return ", ".join([*parts, *([f"{silent} silent"] if silent else [])]) or "none"


def _last_line(seen: Overview) -> str:
    facts = seen.facts
    lag = f", the oldest {say_span(facts.due.age_s)}" if facts.due.age_s is not None else ""
    return (
        f"outbox: {facts.due.count:,} due{lag}, {facts.poisoned.count:,} given up,"
        f" {number_of('orchestrator', facts.orchestrators)}; {facts.inputs.count:,} wait for an answer"
    )
