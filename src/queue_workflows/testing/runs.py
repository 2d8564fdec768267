"""One test run: its number, and a directory that its processes share and the run's first process removes.

The directory is made as soon as worker processes must be told of it, the servers in it only when a test
wants one. It lies in memory where there is room: a clone of a database is a thousand files, which cost a disk
five times the processor time. A run that was killed leaves its directory behind; the next run sees that its
lock is free and removes it.
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
# Where Linux has a file system in memory; elsewhere there is no such directory.
_MEMORY = Path("/dev/shm")  # noqa: S108
# Several times what the servers of this package's own tests ever hold; many containers have 64 MB there.
_ROOM_BYTES = 2 * 2**30
_STOP_TIMEOUT_S = 60.0


@dataclass(frozen=True)
class Run:
    """What the processes of a run know of it; `worker` is this process's short name."""

    id: str
    directory: Path
    worker: str

    @property
    def is_in_memory(self) -> bool:
        """Whether what is written to the directory goes to no disk."""
        return self.directory.parent == _MEMORY


@contextmanager
def new_run(*, in_memory: bool = False) -> Iterator[Run]:
    """A run and its directory, removed at the end with what still runs in it.

    `in_memory` is for servers that lose nothing with the machine: it has the directory in memory if there is
    room for it.
    """
    # As root the server runs as an account that may not be able to follow a TMPDIR of root's own.
    on_disk = Path("/tmp") if os.geteuid() == 0 else Path(tempfile.gettempdir())  # noqa: S108
    for parent in (on_disk, _MEMORY):
        _sweep(parent)
    directory, alive = _claimed_directory(_MEMORY if in_memory and _has_room(_MEMORY) else on_disk)
    try:
        yield Run(secrets.token_hex(4)[:7], directory, "main")
    finally:
        _remove(directory)
        os.close(alive)


def _has_room(parent: Path) -> bool:
    """Whether the directory is there, ours to write to, and big enough for a run's servers."""
    try:
        return os.access(parent, os.W_OK | os.X_OK) and shutil.disk_usage(parent).free >= _ROOM_BYTES
    except OSError:
        return False


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


def _sweep(parent: Path) -> None:
    """Remove what runs that were killed left in a directory."""
    for directory in parent.glob(f"{_PREFIX}*"):
        with suppress(OSError):
            if directory.lstat().st_uid != os.geteuid():
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
            keeper.stop_unless_used(place, time.monotonic() + _STOP_TIMEOUT_S)
    shutil.rmtree(directory, ignore_errors=True)
