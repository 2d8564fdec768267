"""One test run: its number, and a directory that its processes share and the run's first process removes.

The directory is made as soon as worker processes must be told of it, the servers in it only when a test
wants one. A run that was killed leaves its directory behind; the next run sees that its lock is free and
removes it.
"""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from queue_workflows.db.embedded import keeper
from queue_workflows.db.embedded.home import FALLBACK, settle
from queue_workflows.errors import EmbeddedServerError
from queue_workflows.host.locks.flock import try_lock

_PREFIX = "qwf-tests-"
_STOP_TIMEOUT_S = 60.0


@dataclass(frozen=True)
class Run:
    """What the processes of a run know of it; `worker` is this process's short name."""

    id: str
    directory: Path
    worker: str


@contextmanager
def new_run(parent: Path | None = None) -> Iterator[Run]:
    """A run and its directory, removed at the end with what still runs in it; it is made in `parent`."""
    if parent is None:
        # As root the server runs as an account that may not be able to follow a TMPDIR of root's own.
        parent = Path("/tmp") if os.geteuid() == 0 else Path(tempfile.gettempdir())  # noqa: S108
    directory, alive = _claimed_directory(parent)
    _sweep(parent, directory)
    try:
        yield Run(secrets.token_hex(4)[:7], directory, "main")
    finally:
        _remove(directory)
        os.close(alive)


def _claimed_directory(parent: Path) -> tuple[Path, int]:
    """A new directory and the lock that says it is in use.

    Another run may sweep it before it is locked; that one removes it.
    """
    while True:
        directory = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
        with suppress(FileNotFoundError):
            directory.chmod(0o755)
            if (alive := try_lock(directory / "alive")) is not None:
                return directory, alive


def _sweep(parent: Path, mine: Path) -> None:
    for directory in parent.glob(f"{_PREFIX}*"):
        with suppress(OSError):
            if directory == mine or directory.lstat().st_uid != os.geteuid():
                continue
            lock = try_lock(directory / "alive", create=False)
            if lock is None:
                continue
            try:
                _remove(directory)
            finally:
                os.close(lock)


def _remove(directory: Path) -> None:
    """Wait until the embedded servers of the directory have stopped, also if their users were killed."""
    for data_dir in directory.glob("pg*"):
        with suppress(OSError, EmbeddedServerError):
            place, _ = settle(data_dir, None, FALLBACK)
            keeper.leave(place, time.monotonic() + _STOP_TIMEOUT_S)
    shutil.rmtree(directory, ignore_errors=True)
