"""`qwf queue run`: a worker and the sight of what it does, in one terminal."""

from __future__ import annotations

import logging
import os
import shlex
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from typing import Final

import click

from queue_workflows.cli import Invocation
from queue_workflows.cli.log.log_lines import JOBS, NO_ERROR, head_of, level_of
from queue_workflows.cli.log.logs import log_to_stderr
from queue_workflows.cli.roles.supervisor import commands, parse_workers
from queue_workflows.cli.roles.worker import MOST_AT_ONCE
from queue_workflows.cli.shared.operator import json_option, print_json, print_table, say
from queue_workflows.cli.shared.progress import Progress
from queue_workflows.cli.shared.seconds import Seconds
from queue_workflows.config import check_known_queue, effective_settings
from queue_workflows.db.connections.engine import Database
from queue_workflows.db.connections.failures import DATABASE_AWAY
from queue_workflows.db.connections.snapshot_read import KeptConnection
from queue_workflows.drawing.words import on_one_line
from queue_workflows.engine.registry.tasks import UNKNOWN_TASK
from queue_workflows.errors import ExitCode
from queue_workflows.host.processes.harden import bound_to_launcher
from queue_workflows.host.processes.launcher import run_as_child_if_pid1
from queue_workflows.repositories.reports.drain_progress import LATER, RETRY, OutcomeRepository, Outcomes
from queue_workflows.repositories.sql.families import NODE
from queue_workflows.repositories.workers.control import WorkerControlRepository
from queue_workflows.roles.merged_log import MergedLog
from queue_workflows.roles.supervisor.process import supervise
from queue_workflows.roles.supervisor.restarts import BoundedRestarts, crashed
from queue_workflows.roles.worker.common.lifecycle import family_of
from queue_workflows.settings import Layer, Settings
from queue_workflows.states import JobStatus
from queue_workflows.views.workers.wishes import told_of

_LOOK_EVERY_S: Final = 0.5
# A look may take a tenth of the time at most, however much has ended.
_LOOK_SHARE: Final = 0.1
_WORDS: Final = {RETRY: "to be tried again", LATER: "for later"}
# Of a worker's line of a job that ended well, or was put off.
_AN_END: Final = ("INFO", JOBS)


@click.command()
@click.argument("queue", metavar="QUEUE")
@click.option("--drain", is_flag=True, help="End when there is nothing left to claim.")
@click.option(
    "--concurrency", type=click.IntRange(1, MOST_AT_ONCE), metavar="N", help="So many jobs at once."
)
@click.option("--grace", type=Seconds(), help="Seconds that a stop leaves the current jobs; QWF_GRACE_S.")
@json_option
@click.pass_obj
def run(
    invocation: Invocation,
    *,
    queue: str,
    drain: bool,
    concurrency: int | None,
    grace: float | None,
    as_json: bool,
) -> ExitCode:
    """Work on QUEUE and show how it goes; at the end a table of what became of its jobs meanwhile.

    It ends with 1 if jobs failed or wait to be tried again, wherever they ran, or were put aside as no worker
    knows their task. A worker that dies is replaced. Ctrl-C lets the current jobs finish within the grace, a
    second one does not; a --drain that was stopped so ends with 130.
    """
    if concurrency not in (None, 1) and family_of(check_known_queue(queue)) is NODE:
        raise click.UsageError(f"a worker of the queue {queue} runs one job at a time; --concurrency is 1")
    run_as_child_if_pid1()
    bound_to_launcher()
    settings = effective_settings({"grace_s": grace})
    options = ["--schema-wait=0", *["--drain"] * drain]
    options += [f"--concurrency={concurrency}"] if concurrency else []
    specs = parse_workers(shlex.join([check_known_queue(queue), *options]))
    with Database.open(invocation.db_url, role="queue-run", settings=settings) as database:
        with KeptConnection(database) as kept:
            since = OutcomeRepository(kept.connection(), family_of(queue)).now()
        first = _read(database, queue, since)
        with _shown(invocation, settings, database, queue, since) as log:
            while True:
                before, restarts = _read(database, queue, since), BoundedRestarts()
                stopped = supervise(
                    specs,
                    command_for=commands(invocation, settings, grace),
                    settings=settings,
                    db_url=invocation.db_url,
                    outlet=log.outlet,
                    restarts=restarts,
                )
                seen, ends = _read(database, queue, since), restarts.ended_with
                if not _goes_on(ends, before, seen):
                    break
    _tell(queue, seen, as_json=as_json, worked=ends in ([], [ExitCode.DONE]))
    if stopped is not ExitCode.DONE:
        return stopped
    if ends not in ([], [ExitCode.DONE]):
        return next((code for code in ExitCode if code == ends[0]), ExitCode.FAILED)
    if drain and not ends:
        return ExitCode.INTERRUPTED
    return ExitCode.FAILED if _is_failure(first, seen) else ExitCode.DONE


def _goes_on(ends: Sequence[int], before: Outcomes, seen: Outcomes) -> bool:
    """Whether something is left to do, and the last worker got something done.

    What a dead worker had may come back when its successor is through, and what failed may be due again.
    Workers that died again and again, but not before something ended, died of jobs.
    """
    if list(ends) == [ExitCode.DONE]:
        return seen.queued > 0 and (seen.ended, seen.tried) != (before.ended, before.tried)
    return any(map(crashed, ends)) and seen.ended != before.ended


def _is_failure(first: Outcomes, seen: Outcomes) -> bool:
    unknown = seen.put_off[UNKNOWN_TASK] > first.put_off[UNKNOWN_TASK]
    return bool(seen.ended[JobStatus.FAILED] or seen.put_off[RETRY] or unknown)


def _read(database: Database, queue: str, since: datetime) -> Outcomes:
    with KeptConnection(database) as kept:
        return OutcomeRepository(kept.connection(), family_of(queue)).read(queue, since, put_off=True)


@contextmanager
def _shown(
    invocation: Invocation, settings: Settings, database: Database, queue: str, since: datetime
) -> Iterator[MergedLog]:
    """What the worker says goes to stderr, above a line of how far it is."""
    progress = _Shared()
    log_to_stderr(invocation, settings, handler=_Handler(progress), everyday=False)
    watcher = _Watcher(database, queue, since, progress)
    is_asked_for = settings.layer_of("log_level") is not Layer.DEFAULT

    def write(_name: str, line: str) -> None:
        # How many jobs end is shown below; what fails is told.
        if is_asked_for or head_of(line) != _AN_END:
            progress.log(line)

    with MergedLog(write, lost=lambda: os.kill(os.getpid(), signal.SIGTERM)) as log:
        watcher.start()
        try:
            yield log
        finally:
            watcher.stop()
    progress.done()


class _Shared(Progress):
    """A progress that several threads write to."""

    def __init__(self) -> None:
        super().__init__()
        self._guard = threading.RLock()

    def __call__(self, share: float | None, words: str) -> None:
        with self._guard:
            super().__call__(share, words)

    def say(self, words: str) -> None:
        with self._guard:
            super().say(words)

    def log(self, line: str) -> None:
        """A line of a log, above the line; of one that is to be quiet what is grave, or no line of a log."""
        if self._is_quiet and level_of(line) in NO_ERROR:
            return
        with self._guard:
            self.done()
            click.echo(line, err=True)


class _Handler(logging.Handler):
    """Our own log among that of the worker."""

    def __init__(self, progress: _Shared) -> None:
        super().__init__()
        self._progress = progress

    def emit(self, record: logging.LogRecord) -> None:
        with suppress(OSError, ValueError):
            self._progress.log(self.format(record))


class _Watcher(threading.Thread):
    """Looks at the queue again and again, and tells."""

    def __init__(self, database: Database, queue: str, since: datetime, progress: Progress) -> None:
        super().__init__(name="qwf-queue-run", daemon=True)
        self._database = database
        self._queue = queue
        self._since = since
        self._progress = progress
        self._over = threading.Event()

    def run(self) -> None:
        with KeptConnection(self._database) as kept:
            pause_s = _LOOK_EVERY_S
            while not self._over.wait(pause_s):
                began = self._progress.seconds
                with suppress(OSError, ValueError):
                    self._progress(*self._look(kept))
                pause_s = max(_LOOK_EVERY_S, (self._progress.seconds - began) / _LOOK_SHARE)

    def _look(self, kept: KeptConnection) -> tuple[float | None, str]:
        try:
            connection = kept.connection()
            seen = OutcomeRepository(connection, family_of(self._queue)).read(self._queue, self._since)
            wishes = WorkerControlRepository(connection).blocking(queue=self._queue)
        except DATABASE_AWAY:
            return None, "the database is away; waiting for it"
        done = seen.ended.total()
        left = seen.queued + seen.running + seen.laned
        share = done / (done + left) if done + left else None
        asked = f"; {on_one_line(told_of(wishes[0]))}" if wishes else ""
        return share, f"{_in_words(seen)}, {done / max(self._progress.seconds, 0.001):,.0f}/s{asked}"

    def stop(self) -> None:
        """Before the connection's server may go away."""
        self._over.set()
        self.join(5.0)


def _in_words(seen: Outcomes) -> str:
    failed = seen.ended[JobStatus.FAILED]
    parts = [f"{seen.ended.total():,} done", *([f"{failed:,} failed"] if failed else [])]
    parts += [f"{seen.running:,} running", f"{seen.queued:,} queued"]
    return ", ".join([*parts, *([f"{seen.laned:,} held by limits"] if seen.laned else [])])


def _tell(queue: str, seen: Outcomes, *, as_json: bool, worked: bool) -> None:
    if as_json:
        left = {"queued": seen.queued, "running": seen.running}
        print_json({"queue": queue, "ended": seen.ended, "put_off": seen.put_off, **left})
        return
    rows = [[status.value, f"{seen.ended[status]:,}"] for status in JobStatus if seen.ended[status]]
    rows += [[_WORDS.get(why, f"held: {why}"), f"{count:,}"] for why, count in seen.put_off.most_common()]
    rows += [
        [word, f"{count:,}"] for word, count in (("queued", seen.queued), ("running", seen.running)) if count
    ]
    print_table(["OUTCOME", "JOBS"], rows)
    if worked and not rows:
        say(f"there was nothing to do on {queue}")
    if seen.put_off[UNKNOWN_TASK]:
        say("no worker here knows the tasks of some: --app or QWF_APP names the module that registers them")
