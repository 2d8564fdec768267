"""Real `qwf worker` processes, and waiting for what they do to the database."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import TypeVar

from support.suite import warm_starts
from support.suite.pauses import Pauses

T = TypeVar("T")
TESTS = Path(__file__).parents[2]
# A grace that no slow machine outlasts; everything else is as shipped.
PATIENT = {"QWF_GRACE_S": "300"}
# For tests that see a lease lapse; a busy machine may keep any other worker from renewing so short a one.
SHORT_LEASE = {"QWF_LEASE_S": "2"}


def until(look: Callable[[], T], *, within_s: float = 150.0) -> T:
    """What `look` finds, as soon as it finds something."""
    deadline, pauses = time.monotonic() + within_s, Pauses()
    while not (found := look()):
        assert time.monotonic() < deadline, "it did not happen in time"
        pauses.sleep()
    return found


def patiently(look: Callable[[], T]) -> T:
    """The same for what takes a process that starts, on a machine that has ten others to start."""
    return until(look, within_s=300)


def worker_environment(dsn: str, extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of a host app's worker on this database."""
    paths = [str(TESTS), os.environ.get("PYTHONPATH", "")]
    return {
        **os.environ,
        "QWF_DB_URL": dsn,
        "QWF_APP": "support.tasks.worker_tasks",
        "QWF_HOST_LABEL": "here",
        "PYTHONPATH": os.pathsep.join(path for path in paths if path),
        **PATIENT,
        **(extra or {}),
    }


def worker_command(*options: str) -> list[str]:
    """The shipped command, as a service manager would start it."""
    return [sys.executable, "-m", "queue_workflows", "worker", "--queue", "fetch", *options]


@contextmanager
def _running(command: list[str], dsn: str, settings: Mapping[str, str]) -> Iterator[subprocess.Popen[str]]:
    """A role that nothing of outlives the `with`."""
    process = warm_starts.start(command, worker_environment(dsn, settings), stderr=subprocess.PIPE)
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def running_orchestrator(
    dsn: str, *options: str, **settings: str
) -> AbstractContextManager[subprocess.Popen[str]]:
    """An orchestrator in a process of its own."""
    return _running([sys.executable, "-m", "queue_workflows", "orchestrator", *options], dsn, settings)


def running_scheduler(
    dsn: str, *options: str, **settings: str
) -> AbstractContextManager[subprocess.Popen[str]]:
    """A scheduler in a process of its own."""
    return _running([sys.executable, "-m", "queue_workflows", "scheduler", *options], dsn, settings)


def running_worker(
    dsn: str, *options: str, prefix: tuple[str, ...] = (), **settings: str
) -> AbstractContextManager[subprocess.Popen[str]]:
    """A worker in a process of its own."""
    return _running([*prefix, *worker_command(*options)], dsn, settings)
