"""`qwf run start … --here` and `qwf hooks run … --here`: a run from its start to its end in one command.

Beside the command an orchestrator and the workers that the run needs run as its children, on the database
that it is given or on an embedded one that it makes. When the run is over they are ended, and the command
with them. The workers are as any others: of a database with further runs they take their jobs too.
"""

from __future__ import annotations

import os
import signal
import threading
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

import click

from queue_workflows.cli import Invocation
from queue_workflows.cli.log.log_lines import EVERYDAY, NO_ERROR, level_of
from queue_workflows.cli.log.logs import log_to_stderr
from queue_workflows.cli.roles.supervisor import commands
from queue_workflows.cli.runs.watch import follow
from queue_workflows.cli.shared.error_exit import PROGRAM
from queue_workflows.cli.shared.operator import say
from queue_workflows.config import effective_settings
from queue_workflows.db import bootstrap
from queue_workflows.db.connections.engine import Database
from queue_workflows.errors import ConfigurationError, DocumentError, ExitCode, UnknownWorkflow
from queue_workflows.host.processes.harden import bound_to_launcher
from queue_workflows.host.processes.launcher import run_as_child_if_pid1
from queue_workflows.host.processes.tree_by_mark import hide_memory
from queue_workflows.roles.loop import Halt
from queue_workflows.roles.merged_log import MergedLog
from queue_workflows.roles.supervisor.process import supervise
from queue_workflows.roles.supervisor.restarts import BoundedRestarts
from queue_workflows.roles.supervisor.slots import ORCHESTRATOR, WorkerSpec
from queue_workflows.workflow.document.load import Document
from queue_workflows.workflow.document.nodes import TaskNode, WorkflowNode
from queue_workflows.workflow.providing import find_document

_ROLE: Final = "run-here"
_LAST_LOOK_S: Final = 5.0
# The children find the scripts by it, as any worker does.
_HOOK_DIRS: Final = "QWF_HOOK_DIRS"
# The last words of a command that a signal has ended.
_ENDED: Final = (f"{PROGRAM}: terminated", f"{PROGRAM}: interrupted")
# What the children write is read here, and shown to a person.
_TO_US: Final = ("--log-format=text",)


def run_here(
    invocation: Invocation,
    start: Callable[[Database], uuid.UUID],
    *,
    queues: Sequence[str],
    places: Sequence[Path] = (),
    as_json: bool,
) -> ExitCode:
    """Start a run, do all of its work here, and show each node as it goes; the status to end with.

    It needs workers of `queues`, and those of hooks the plugins in `places`.
    """
    run_as_child_if_pid1()
    bound_to_launcher()
    if places:
        os.environ[_HOOK_DIRS] = os.pathsep.join(str(place.absolute()) for place in places)
    settings = effective_settings()
    if settings.hook_dirs:
        hide_memory()
    restarts = BoundedRestarts()
    with Database.open(invocation.db_url, role=_ROLE, settings=settings, lingers=False) as database:
        bootstrap(invocation.db_url)
        run_id = start(database)
        log_to_stderr(invocation, settings, everyday=False)
        follower = _Follower(database, run_id, restarts, as_json=as_json)

        # What came of the nodes is shown beside the log.
        left_out = NO_ERROR if invocation.quiet else EVERYDAY
        stop: list[Halt] = []

        def write(name: str, line: str) -> None:
            # What is ended before it was ready says so; an operator that ends all need not read it of each.
            is_news = follower.ended is None and level_of(line) not in left_out
            if invocation.debug or (is_news and not (line in _ENDED and stop and stop[0].urgency)):
                click.echo(f"{name}: {line}", err=True)

        with MergedLog(write, lost=_stop) as log:
            stopped = supervise(
                [replace(ORCHESTRATOR, options=_TO_US), *(WorkerSpec(queue, _TO_US) for queue in queues)],
                command_for=commands(invocation, settings),
                settings=settings,
                db_url=invocation.db_url,
                outlet=log.outlet,
                late=follower.tend,
                restarts=restarts,
                begins=stop.append,
            )
        follower.close()
        if follower.ended is not None:
            return follower.ended
        roles = [*(f"a worker of {queue}" for queue in queues), "an orchestrator"]
        say(f"run {run_id} is not over: it goes on where {' and '.join(roles)} run")
        return follower.given_up(stopped)


def queues_of(document: Document) -> list[str]:
    """The queues of a workflow's tasks, and of those that it starts as far as they are known here."""
    queues: set[str] = set()
    looked, ahead = {document.name}, [document]
    while ahead:
        one = ahead.pop()
        queues |= {node.queue for node in one.nodes if isinstance(node, TaskNode)}
        for name in {node.workflow for node in one.nodes if isinstance(node, WorkflowNode)} - looked:
            looked.add(name)
            # What is not known, or wrong, fails its node, which says so.
            with suppress(ConfigurationError, DocumentError, UnknownWorkflow):
                ahead.append(find_document(name))
    return sorted(queues)


class _Follower(threading.Thread):
    """Shows the run, and stops the supervisor when it is over; `ended` is None until then.

    What kept it from looking, as a right that is missing, is its `error`.
    """

    def __init__(
        self, database: Database, run_id: uuid.UUID, restarts: BoundedRestarts, *, as_json: bool
    ) -> None:
        super().__init__(name="qwf-follow", daemon=True)
        self._restarts = restarts
        self._database, self._run_id, self._as_json = database, run_id, as_json
        self.ended: ExitCode | None = None
        self.error: Exception | None = None
        self._has_begun = self._has_stopped = False
        self._is_enough = threading.Event()

    def tend(self) -> tuple[()]:
        """Start, once there is a supervisor that hears the signal; it gets no further children by this.

        A role that is not started again, as a new one would end alike, has said why, and ends the command.
        """
        if not self._has_begun:
            self._has_begun = True
            self.start()
        elif self._restarts.ended_with and not self._has_stopped:
            self._has_stopped = True
            _stop()
        return ()

    def given_up(self, stopped: ExitCode) -> ExitCode:
        """The status of a command that ended before its run; `stopped` is how its supervisor did."""
        if self.error is not None:
            raise self.error
        if self._restarts.ended_with:
            return ExitCode.FAILED
        return stopped if stopped is not ExitCode.DONE else ExitCode.INTERRUPTED

    def run(self) -> None:
        """Follow it to its end."""
        try:
            ended = follow(
                self._database,
                self._run_id,
                as_json=self._as_json,
                is_enough=self._is_enough.is_set,
                tells_missing=False,
            )
            if not self._is_enough.is_set():
                self.ended = ended
        except Exception as error:
            self.error = error
        finally:
            if not self._is_enough.is_set():
                _stop()

    def close(self) -> None:
        """Look no more, while the database is still there: it may go with this command."""
        self._is_enough.set()
        if self._has_begun:
            self.join(_LAST_LOOK_S)


def _stop() -> None:
    """As an operator stops a supervisor: its children get time to end what they do."""
    os.kill(os.getpid(), signal.SIGTERM)
