"""`qwf`: the options before the command, and the way each command line is run and ended."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Sequence
from typing import Final, NoReturn

import click
from click.shell_completion import shell_complete

from queue_workflows.cli import Invocation
from queue_workflows.cli.shared.error_exit import PROGRAM, report, wait_for_no_thread
from queue_workflows.cli.shared.lazy_group import Entry, LazyGroup
from queue_workflows.cli.shared.notices import notices_on_stderr
from queue_workflows.cli.shared.root_options import root_options
from queue_workflows.cli.shared.signals import Stops
from queue_workflows.cli.version import version_line
from queue_workflows.errors import ExitCode
from queue_workflows.host.processes import last_word

COMPLETION_VARIABLE: Final = "_QWF_COMPLETE"
_STDOUT: Final = 1
_STDERR: Final = 2
# The console scripts that stand for one command each.
ALIASES: Final = {
    "queue-orchestrator": "orchestrator",
    "queue-claim-worker": "worker",
    "queue-scheduler": "scheduler",
}
# What a start imports lives as long as the process; at Python's own thresholds a fifth of a start is spent on
# looking for rubbish in it.
GC_THRESHOLDS: Final = (20_000, 20, 20)

ENTRIES: Final = {
    "up": Entry("queue_workflows.cli.roles.up:up", "Run everything in one terminal, for development."),
    "demo": Entry("queue_workflows.cli.roles.demo:demo", "Run the bundled example on an embedded Postgres."),
    "db": Entry("queue_workflows.cli.database.migrations:db", "Migrate the database and look at its schema."),
    "overview": Entry(
        "queue_workflows.cli.operations.overview:overview",
        "Show what is stuck, then queues, hosts and the outbox.",
    ),
    "doctor": Entry(
        "queue_workflows.cli.operations.doctor:doctor",
        "Check the database and this set-up, and say what to do.",
    ),
    "deploy": Entry(
        "queue_workflows.cli.deploy.check:deploy", "Look at a deploy before it happens: is it safe?"
    ),
    "worker": Entry("queue_workflows.cli.roles.worker:worker", "Claim jobs of a queue and run them."),
    "supervisor": Entry(
        "queue_workflows.cli.roles.supervisor:supervisor", "Run and watch the workers of this machine."
    ),
    "agent": Entry(
        "queue_workflows.cli.roles.agent:agent",
        "Listen for the idle workers of a supervisor, which starts it.",
    ),
    "janitor": Entry(
        "queue_workflows.cli.roles.janitor:janitor", "End what dead jobs left behind on this machine."
    ),
    "queue": Entry(
        "queue_workflows.cli.queues.queue:queue", "Fill the queues, see how they move, work on one, pause it."
    ),
    "job": Entry("queue_workflows.cli.jobs.job:job", "List, show, cancel and retry jobs; group what failed."),
    "event": Entry(
        "queue_workflows.cli.jobs.event:event", "Emit events for durable functions, and list what is left."
    ),
    "run": Entry("queue_workflows.cli.runs.run:run", "Workflow documents and their runs."),
    "explain": Entry(
        "queue_workflows.cli.jobs.explain:explain", "Say why a job does not run, or how it ended."
    ),
    "what-if": Entry(
        "queue_workflows.cli.queues.what_if:what_if", "Say when waiting work is done, also by another fleet."
    ),
    "hw": Entry("queue_workflows.cli.operations.hw:hw", "Show what the machines and their GPUs are at."),
    "models": Entry(
        "queue_workflows.cli.operations.models:models", "Show which models are loaded, and what wants them."
    ),
    "workers": Entry(
        "queue_workflows.cli.operations.workers:workers", "See the workers; pause them, stop them, go on."
    ),
    "limits": Entry(
        "queue_workflows.cli.operations.limits:limits",
        "Caps of limit keys: see what holds them, change them.",
    ),
    "binaries": Entry(
        "queue_workflows.cli.hooks.binaries:binaries", "Programs that plugins need: see them, have them here."
    ),
    "orchestrator": Entry(
        "queue_workflows.cli.roles.orchestrator:orchestrator", "Advance workflow runs; any number at once."
    ),
    "scheduler": Entry(
        "queue_workflows.cli.roles.scheduler:scheduler",
        "Enqueue jobs at the times of schedules; any number at once.",
    ),
    "hooks": Entry("queue_workflows.cli.hooks.hooks:hooks", "See hook scripts, and run them as a workflow."),
    "schedule": Entry(
        "queue_workflows.cli.operations.schedule:schedule", "See, preview, pause and trigger schedules."
    ),
    "web": Entry(
        "queue_workflows.cli.page.web:web", "Serve the operator's page: all of this, live, in a browser."
    ),
    "audit": Entry(
        "queue_workflows.cli.operations.audit:audit", "Show what operators did, when, what to, and why."
    ),
    "mcp": Entry(
        "queue_workflows.cli.page.mcp:mcp", "Answer a coding assistant's questions about all of this."
    ),
    "metrics": Entry("queue_workflows.cli.operations.metrics:metrics", "Serve figures for Prometheus."),
    "healthcheck": Entry(
        "queue_workflows.cli.roles.healthcheck:healthcheck",
        "Ask a process how it is, as a container's probe.",
    ),
    "run-job": Entry(
        "queue_workflows.cli.operations.run_job:run_job",
        "Run a command with a deadline, locks, and nothing left behind.",
    ),
    "completion": Entry(
        "queue_workflows.cli.completion:completion", "Print the completion script of a shell."
    ),
}


def _show_version(ctx: click.Context, _option: click.Parameter, asked: bool) -> None:
    if not asked or ctx.resilient_parsing:
        return
    click.echo(version_line())
    ctx.exit()


@click.group(
    cls=LazyGroup, entries=ENTRIES, no_args_is_help=True, context_settings={"max_content_width": 100}
)
@root_options
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_show_version,
    help="Show the version.",
)
@click.pass_context
def cli(ctx: click.Context) -> None:
    """A workflow engine in which one Postgres is the queue, the message bus and the record.

    The options may stand after the command too.
    """
    if ctx.obj is None:
        ctx.obj = Invocation()


def run(arguments: Sequence[str]) -> int:
    """Run one command line and return its exit status; never raises what a user could have caused."""
    context: click.Context | None = None
    stops = Stops()
    try:
        with stops, notices_on_stderr():
            try:
                stops.let_through()
                context = cli.make_context(PROGRAM, list(arguments))
                with context:
                    outcome = cli.invoke(context)
                # A command may return an ExitCode; what else it returns is not for the shell.
                status = int(outcome) if isinstance(outcome, ExitCode) else 0
            except click.exceptions.Exit as exit_:
                status = exit_.exit_code
            # Here, where a closed pipe can still be dealt with, rather than at interpreter exit.
            _flush_stdout()
        if stops.asked is None:
            return status
        raise stops.asked
    except SystemExit:
        raise
    except BaseException as exc:
        return report(stops.instead_of(exc), (context and context.obj) or Invocation())


def _open_streams() -> None:
    """A stream that was closed becomes one that leads nowhere, before a connection gets its number."""
    while (fd := os.open(os.devnull, os.O_RDWR)) <= _STDERR:
        os.set_inheritable(fd, True)
    os.close(fd)
    if sys.stdout is None:
        sys.stdout = open(_STDOUT, "w", encoding="utf-8", closefd=False)  # noqa: SIM115 - open until the end
    if sys.stderr is None:
        sys.stderr = open(_STDERR, "w", encoding="utf-8", closefd=False)  # noqa: SIM115 - what is said to None goes to stdout


def _flush_stdout() -> None:
    if sys.stdout is not None and not sys.stdout.closed:
        sys.stdout.flush()


def main() -> NoReturn:
    """The console script `qwf`."""
    _run_and_exit(PROGRAM)


def orchestrator() -> NoReturn:
    """The console script `queue-orchestrator`: `qwf orchestrator`."""
    _run_and_exit("queue-orchestrator")


def claim_worker() -> NoReturn:
    """The console script `queue-claim-worker`: `qwf worker`."""
    _run_and_exit("queue-claim-worker")


def scheduler() -> NoReturn:
    """The console script `queue-scheduler`: `qwf scheduler`."""
    _run_and_exit("queue-scheduler")


def _run_and_exit(program: str) -> NoReturn:
    gc.set_threshold(*GC_THRESHOLDS)
    _open_streams()
    instruction = os.environ.get(COMPLETION_VARIABLE)
    if instruction:
        sys.exit(shell_complete(command_of(program), {}, program, COMPLETION_VARIABLE, instruction))
    command = [ALIASES[program]] if program in ALIASES else []
    status = run([*command, *sys.argv[1:]])
    wait_for_no_thread(status)
    last_word.own.announce(status)
    # What is left goes with the process: to look for rubbish in it is a tenth of a short command.
    gc.freeze()
    sys.exit(status)


def command_of(program: str) -> click.Command:
    """What the words after a console script's name are words of."""
    command = cli.get_command(click.Context(cli), ALIASES[program]) if program in ALIASES else None
    return command or cli
