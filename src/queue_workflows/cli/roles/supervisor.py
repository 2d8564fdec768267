"""`qwf supervisor`: the workers of a machine below one process, and other roles beside them if asked."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import click

from queue_workflows.cli import Invocation
from queue_workflows.cli.log.log_options import log_options
from queue_workflows.cli.log.logs import log_arguments, log_to_stderr
from queue_workflows.cli.roles.worker import worker
from queue_workflows.cli.shared.seconds import Seconds
from queue_workflows.config import RESERVED_QUEUES, check_known_queue, effective_settings
from queue_workflows.errors import ConfigurationError, ExitCode
from queue_workflows.gpu.devices import find_devices
from queue_workflows.host.kernel import IS_LINUX
from queue_workflows.host.processes.harden import bound_to_launcher
from queue_workflows.host.processes.launcher import own_command, run_as_child_if_pid1
from queue_workflows.host.processes.tree_by_mark import hide_memory
from queue_workflows.roles.supervisor.janitor_when_needed import Attending
from queue_workflows.roles.supervisor.process import supervise
from queue_workflows.roles.supervisor.slots import (
    AGENT,
    GPU,
    JANITOR,
    ORCHESTRATOR,
    SCHEDULER,
    EachDevice,
    RoleSpec,
    Spec,
    WorkerSpec,
)
from queue_workflows.settings import Settings, check_queue_name

MOST_WORKERS: Final = 1000
EACH: Final = f"{GPU}:each"
# What the supervisor has to know itself.
OUR_OWN: Final = ("--queue", "--host-label", "--grace")
ONE_EACH: Final = ("--health", "--health-file")


def parse_workers(text: str) -> list[WorkerSpec]:
    """As many specs as workers are asked for."""
    name, *options = shlex.split(text) or [""]
    queue, colon, count = name.partition(":")
    check_queue_name(queue)
    if colon and not (re.fullmatch("[0-9]{1,4}", count) and 1 <= int(count) <= MOST_WORKERS):
        raise ValueError(f"after the colon comes a number from 1 to {MOST_WORKERS}, or it is {EACH}")
    if not {"--help", "-h"}.isdisjoint(options):
        raise ValueError("its options are listed by `qwf worker --help`")
    for option in options:
        if option.partition("=")[0] in OUR_OWN:
            raise ValueError(f"{option} goes to the supervisor, not into --worker")
        if option.partition("=")[0] in ONE_EACH and count not in ("", "1"):
            raise ValueError(f"{option} is for one worker: two cannot share it")
    # Here rather than in the worker, which could only end with a usage error again and again.
    told = worker.make_context("qwf worker", ["--queue", queue, *options]).params
    shared_by = 1 if queue in RESERVED_QUEUES else told["concurrency"]
    return [WorkerSpec(queue, tuple(options), shared_by)] * int(count or 1)


def parse_each(text: str) -> EachDevice | None:
    """What asks for a worker on each GPU; None for what asks for a number."""
    name, *options = shlex.split(text) or [""]
    if name != EACH:
        return None
    # However many they will be: what two of them could not share is refused.
    return EachDevice(parse_workers(shlex.join([f"{GPU}:2", *options]))[0])


@dataclass(frozen=True)
class Workers:
    """What several `--worker` ask for together."""

    specs: list[WorkerSpec]
    each: EachDevice | None = None


def workers_option(_ctx: click.Context, _param: click.Parameter, values: Sequence[str]) -> Workers:
    """The workers that several `--worker` ask for."""
    specs: list[WorkerSpec] = []
    each: list[EachDevice] = []
    for value in values:
        try:
            on_each = parse_each(value)
            specs += [] if on_each else parse_workers(value)
        except (ConfigurationError, ValueError) as exc:
            raise click.BadParameter(f"{value!r}: {exc}") from exc
        each += [on_each] if on_each else []
    if len(each) > 1 or (each and any(spec.queue == GPU for spec in specs)):
        raise click.BadParameter(f"{EACH} gives every device its worker: others would share them")
    _check_not_shared(specs)
    return Workers(specs, next(iter(each), None))


def _check_not_shared(specs: Sequence[WorkerSpec]) -> None:
    """Of two workers at one port or file the second could only end again and again; port 0 is any."""
    taken = set()
    for spec in specs:
        told = worker.make_context("qwf worker", ["--queue", spec.queue, *spec.options]).params
        address, file = told["health"], told["health_file"]
        places = [("--health", address)] if address and address[1] else []
        places += [("--health-file", file)] if file else []
        for place in places:
            if place in taken:
                raise click.BadParameter(f"two workers cannot share {place[0]}: give each its own")
            taken.add(place)


@click.command()
@click.option(
    "--worker",
    "workers",
    callback=workers_option,
    metavar="QUEUE[:N]",
    multiple=True,
    help="N workers (one unless said) of this queue; may be given several times, for several queues."
    " gpu:each is a worker on each GPU of this machine, that sees no other."
    " Options of `qwf worker` may follow in the same word: --worker 'fetch:2 --recycle-mb 500'.",
)
@click.option(
    "--orchestrator",
    is_flag=True,
    help="An orchestrator beside them, which advances workflow runs; any number of them may run anywhere.",
)
@click.option(
    "--scheduler",
    is_flag=True,
    help="A scheduler beside them, which enqueues the jobs of schedules; any number may run anywhere.",
)
@click.option(
    "--janitor/--no-janitor",
    default=None,
    help="A janitor beside them, which ends what dead jobs left on this machine."
    "  [default: where there are resource kinds, or directories of runs]",
)
@click.option(
    "--agent",
    is_flag=True,
    help="An agent beside them, by which idle workers share one connection, so that hundreds of them cost the"
    " server little; on Linux.",
)
@click.option("--host-label", metavar="LABEL", help="This machine's name in worker ids; else host_label.")
@click.option(
    "--grace",
    type=Seconds(),
    metavar="SECONDS",
    help="How long a stopping worker lets its job finish; else grace_s.",
)
@click.option(
    "--spare/--no-spare",
    default=True,
    show_default=True,
    help="Keep a worker ready to take the place of one that dies; it costs memory only, and is not for gpu.",
)
@log_options
@click.pass_obj
def supervisor(
    invocation: Invocation,
    *,
    workers: Workers,
    orchestrator: bool,
    scheduler: bool,
    janitor: bool | None,
    agent: bool,
    host_label: str | None,
    grace: float | None,
    spare: bool,
    log_level: str | None,
    log_format: str | None,
) -> ExitCode:
    """Start workers, watch them, replace those that end.

    SIGTERM, SIGINT or SIGHUP stops them gracefully: each may finish its job within the grace; a second signal
    stops them at once. What a worker held that died is queued again at once.
    """
    beside = [
        *([ORCHESTRATOR] if orchestrator else []),
        *([SCHEDULER] if scheduler else []),
        *([JANITOR] if janitor else []),
    ]
    if not workers.specs and not workers.each and not beside:
        raise click.UsageError(
            "nothing to run: say --worker QUEUE[:N], --orchestrator, --scheduler, or several"
        )
    if agent and not IS_LINUX:
        raise click.UsageError("--agent needs Linux: each worker has connections of its own here")
    run_as_child_if_pid1()
    bound_to_launcher()
    settings = effective_settings(
        {"host_label": host_label, "grace_s": grace, "log_level": log_level, "log_format": log_format}
    )
    log_to_stderr(invocation, settings)
    if settings.hook_dirs:
        hide_memory()
    for spec in workers.specs:
        check_known_queue(spec.queue)
    attending = Attending(settings, is_open=janitor is None)
    return supervise(
        [*([AGENT] if agent else []), *workers.specs, *beside, *attending.due()],
        late=attending.due,
        each=_on_devices(workers.each, settings),
        command_for=commands(invocation, settings, grace),
        settings=settings,
        db_url=invocation.db_url,
        with_spares=spare,
    )


def _on_devices(each: EachDevice | None, settings: Settings) -> EachDevice | None:
    """With the devices that are there now; to have none is not what was asked for."""
    if each is None:
        return None
    return replace(each, devices=tuple(find_devices(settings.hw_tool_timeout_s, os.environ)))


def commands(
    invocation: Invocation, settings: Settings, grace: float | None = None
) -> Callable[[Spec], list[str]]:
    """How each process is started: what stood before our command stands before its own too."""
    above, log = list(before_the_command(invocation)), log_arguments(settings)
    beside = ["--host-label", settings.host_label, *(["--grace", f"{grace:g}"] if grace is not None else [])]

    def command_for(spec: Spec) -> list[str]:
        if isinstance(spec, RoleSpec):
            return own_command([*above, spec.name, *log, *spec.options])
        return own_command([*above, "worker", "--queue", spec.queue, *beside, *log, *spec.options])

    return command_for


def before_the_command(invocation: Invocation) -> Iterator[str]:
    """What stood before our command, for that of a process that we start."""
    if invocation.db_url is not None:
        yield from ("--db", invocation.db_url)
    if invocation.app is not None:
        yield from ("--app", invocation.app)
    if invocation.debug:
        yield "--debug"
