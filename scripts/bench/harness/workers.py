"""The shipped `qwf worker` and `qwf orchestrator`, with their defaults, as a service manager starts them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

SCRIPTS: Final = Path(__file__).resolve().parents[2]
# A worker of an ingest queue has several jobs at a time unless it is told otherwise.
ONE_AT_A_TIME: Final = ("--concurrency", "1")
_LONGEST_S: Final = 3600


def environment(dsn: str, settings: Mapping[str, str] | None = None) -> dict[str, str]:
    """What the worker's process is given: the database, the tasks, and nothing that was set around us."""
    around = {name: value for name, value in os.environ.items() if not name.startswith(("QWF_", "AI_LEADS_"))}
    paths = [str(SCRIPTS), around.get("PYTHONPATH", "")]
    return {
        **around,
        "QWF_DB_URL": dsn,
        "QWF_APP": "bench.harness.tasks",
        "PYTHONPATH": os.pathsep.join(path for path in paths if path),
        **(settings or {}),
    }


@contextmanager
def working(
    dsn: str,
    *options: str,
    queue: str = "fetch",
    settings: Mapping[str, str] | None = None,
    heard: int = subprocess.PIPE,
) -> Iterator[subprocess.Popen[str]]:
    """A worker for as long as the block lasts; one that says much is `heard` by nobody."""
    with _serving(dsn, "worker", "--queue", queue, *options, settings=settings, heard=heard) as process:
        yield process


@contextmanager
def orchestrating(dsn: str, *options: str) -> Iterator[subprocess.Popen[str]]:
    """An orchestrator for as long as the block lasts."""
    with _serving(dsn, "orchestrator", *options) as process:
        yield process


@contextmanager
def supervising(
    dsn: str, *options: str, settings: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[str]]:
    """A supervisor and its workers for as long as the block lasts; nobody reads what so many of them say."""
    with _serving(dsn, "supervisor", *options, settings=settings, heard=subprocess.DEVNULL) as process:
        yield process


@contextmanager
def _serving(
    dsn: str, *arguments: str, settings: Mapping[str, str] | None = None, heard: int = subprocess.PIPE
) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "queue_workflows", *arguments]
    process = subprocess.Popen(command, env=environment(dsn, settings), stderr=heard, text=True)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.communicate(timeout=30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()


def work_off(dsn: str, *options: str) -> None:
    """A worker until it ends by itself, as its options say."""
    with working(dsn, *options) as process:
        _, said = process.communicate(timeout=_LONGEST_S)
    if process.returncode:
        raise SystemExit(f"the worker ended with {process.returncode}: {said[-2000:]}")
