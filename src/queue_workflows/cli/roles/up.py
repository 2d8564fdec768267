"""`qwf up`: the schema and every role that an application needs, in one terminal with one log; to develop."""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import threading
from contextlib import nullcontext, suppress
from typing import Final

import click

from queue_workflows.cli import Invocation
from queue_workflows.cli.log.log_lines import painted
from queue_workflows.cli.log.log_options import JSON, log_options
from queue_workflows.cli.log.logs import log_to_stderr
from queue_workflows.cli.page.web import page_beside
from queue_workflows.cli.roles.reload import CodeWatch, begin_anew, places_of
from queue_workflows.cli.roles.supervisor import Workers, commands, workers_option
from queue_workflows.cli.shared.operator import say
from queue_workflows.config import check_known_queue, current_config, effective_settings
from queue_workflows.db import bootstrap
from queue_workflows.db.connections.engine import Database
from queue_workflows.drawing.terminal import Terminal, padded, stdout_terminal
from queue_workflows.errors import ExitCode
from queue_workflows.host.processes.harden import bound_to_launcher
from queue_workflows.host.processes.launcher import run_as_child_if_pid1
from queue_workflows.host.processes.tree_by_mark import hide_memory
from queue_workflows.roles.merged_log import MergedLog
from queue_workflows.roles.supervisor.janitor_when_needed import Attending
from queue_workflows.roles.supervisor.process import supervise
from queue_workflows.roles.supervisor.slots import ORCHESTRATOR, SCHEDULER, Spec, WorkerSpec, slots_of

OURSELVES: Final = "up"
_COLOURS: Final = (
    "cyan",
    "yellow",
    "green",
    "magenta",
    "blue",
    "bright_cyan",
    "bright_yellow",
    "bright_green",
)


@click.command()
@click.option(
    "--worker",
    "workers",
    callback=workers_option,
    metavar="QUEUE[:N]",
    multiple=True,
    help="Workers as for `qwf supervisor`; else one each for cpu, gpu and the app's ingest queues.",
)
@click.option("--no-web", is_flag=True, help="Without the operator's page.")
@click.option(
    "--web-port",
    type=click.IntRange(0, 65_535),
    metavar="PORT",
    help="The page's port; else 8427, or a free one if that is taken.",
)
@click.option("--reload", is_flag=True, help="Begin anew when code in this directory or the app's changes.")
@log_options
@click.pass_obj
def up(
    invocation: Invocation,
    *,
    workers: Workers,
    no_web: bool,
    web_port: int | None,
    reload: bool,
    log_level: str | None,
    log_format: str | None,
) -> ExitCode:
    """Migrate the database, then run an orchestrator, a scheduler and workers until Ctrl-C; for development.

    Without a database of yours an embedded one is started in .qwf/. The log of all goes to stdout, each line
    with its role. The operator's page is served beside them, where it is installed. The first Ctrl-C lets
    running jobs finish within the grace, the second does not.

    With --reload everything begins anew when a Python file changes, and running jobs finish as on Ctrl-C.
    While the app's wiring cannot be imported the code from before runs on.
    """
    run_as_child_if_pid1()
    launcher_pid = bound_to_launcher()
    settings = effective_settings({"log_level": log_level, "log_format": log_format})
    if settings.hook_dirs:
        hide_memory()
    if workers.each is not None:
        raise click.UsageError("gpu:each is for `qwf supervisor`; here --worker gpu:N")
    asked = workers.specs or _usual_workers()
    for spec in asked:
        check_known_queue(spec.queue)
    attending = Attending(settings)
    specs: list[Spec] = [ORCHESTRATOR, SCHEDULER, *asked, *attending.due()]
    names = [slot.name for slot in slots_of(specs, 0.0)]
    app = invocation.app or settings.app
    watch = CodeWatch(places_of(app), app, say) if reload else None
    with Database.open(invocation.db_url, role="up", settings=settings, lingers=False) as database:
        applied = bootstrap(invocation.db_url)
        say(f"{database.redacted}: {_revisions(len(applied))}")
        say(f"running {', '.join(names)}; Ctrl-C stops them all")
        say(_next(invocation))
        is_json = settings.log_format == JSON
        prefixed = Prefixed([OURSELVES, *names], stdout_terminal(), is_json=is_json)
        log_to_stderr(invocation, settings, handler=_Handler(prefixed))
        with (
            nullcontext() if no_web else page_beside(database, port=web_port) as page,
            MergedLog(prefixed.write, lost=lambda: os.kill(os.getpid(), signal.SIGTERM)) as log,
        ):
            if page is not None:
                say(f"the operator's page: {page.first_url}")
            status = supervise(
                specs,
                command_for=commands(invocation, settings),
                settings=settings,
                db_url=invocation.db_url,
                late=attending.due,
                outlet=log.outlet,
                begins=watch.begin if watch else lambda _halt: None,
            )
    if watch is not None:
        watch.close()
        if watch.is_due:
            begin_anew(launcher_pid)
    return status


def _usual_workers() -> list[WorkerSpec]:
    """One for each queue that may have jobs."""
    return [WorkerSpec(queue) for queue in ("cpu", "gpu", *sorted(current_config().ingest_queues))]


def _revisions(count: int) -> str:
    return f"migrated, {count} {'revision' if count == 1 else 'revisions'}" if count else "schema up to date"


def _next(invocation: Invocation) -> str:
    """What to type elsewhere; there, too, an app that was named here has to be named."""
    qwf = f"qwf --app {invocation.app}" if invocation.app else " ".join([*_before_qwf(sys.orig_argv), "qwf"])
    return f"""in another terminal:
  {qwf} run start film.yaml --watch   a workflow, from a file or by name, drawn while it runs
  {qwf} run list                      the runs, and what became of them
  {qwf} queue stats                   what waits on each queue, and which workers
  {qwf} workers list                  the workers; pause one, or switch it off"""


def _before_qwf(argv: list[str]) -> list[str]:
    """`python manage.py` where that was asked, for it names the database and the app of its project."""
    script = argv[1] if argv[2:3] == ["qwf"] else ""
    return ["python", script] if script.endswith("manage.py") else []


class Prefixed:
    """Lines on stdout, each with a name in front that is as wide as the widest.

    Others than the `names` may come later, as a janitor does.
    """

    def __init__(self, names: list[str], terminal: Terminal, *, is_json: bool = False) -> None:
        """With `is_json` each line is an object, with its `role` in it; of other text it is the message."""
        self._is_json = is_json
        self._width = max(map(len, names))
        self._terminal = terminal
        self._prefixes: dict[str, str] = {}
        self._guard = threading.Lock()
        for name in names:
            self._prefix(name)

    def write(self, name: str, line: str) -> None:
        """One line, whole; it raises when nobody reads."""
        encoding = sys.stdout.encoding or "utf-8"
        with self._guard:
            if self._is_json:
                told = _with_role(name, line)
            else:
                told = f"{self._prefix(name)} {painted(line, self._terminal)}"
            sys.stdout.write(f"{told}\n".encode(encoding, "replace").decode(encoding))
            sys.stdout.flush()

    def _prefix(self, name: str) -> str:
        if name not in self._prefixes:
            colour = _COLOURS[len(self._prefixes) % len(_COLOURS)]
            self._prefixes[name] = self._terminal.paint(f"{padded(name, self._width)} |", fg=colour)
        return self._prefixes[name]


def _with_role(name: str, line: str) -> str:
    """The object that a line is, or one around what somebody printed."""
    try:
        told = json.loads(line)
    except ValueError:
        told = None
    if not isinstance(told, dict):
        told = {"message": line}
    return json.dumps({"role": name, **told}, ensure_ascii=False)


class _Handler(logging.Handler):
    """Our own log among that of the others."""

    def __init__(self, prefixed: Prefixed) -> None:
        super().__init__()
        self._prefixed = prefixed

    def emit(self, record: logging.LogRecord) -> None:
        """A line of the log; that nobody reads is noticed with what the children say."""
        with suppress(OSError, ValueError):
            for line in self.format(record).splitlines():
                self._prefixed.write(OURSELVES, line)
