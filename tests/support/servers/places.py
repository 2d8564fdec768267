"""Directories for the thousand files of a server: in memory where there is room, and gone with their process.

Each is locked by the process that has made it. One that is killed leaves it behind, in memory up to the next
start of the machine; the next run sees that its lock is free, and removes it.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from support.processes.embedded_users import processes_below, until

from queue_workflows.host.processes.oom_kills import memory_cgroup

# Nothing else may be named so, for what is not locked is removed.
_PREFIX = "qwf-h-"
_MEMORY = "/dev/shm"
_DISK = "/tmp"
# What each process of a run may be about to fill.
_EACH_GIB = 2
_NO_LIMIT = 1 << 62
_locks: dict[Path, int] = {}


def held_directory(gib: int = _EACH_GIB) -> Path:
    """A new one, locked until `remove` or this process's end, with room for so much."""
    parent = place_for_many_files(gib)
    while True:
        directory = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
        # A run that begins just now may have seen it without its lock, and removes it.
        with suppress(FileNotFoundError):
            lock = os.open(directory, os.O_RDONLY)
            fcntl.flock(lock, fcntl.LOCK_EX)
            if directory.exists():
                _locks[directory] = lock
                return directory
            os.close(lock)


def remove(directory: Path) -> None:
    """Remove one with all that is in it, if that has not been done."""
    if (lock := _locks.pop(directory, None)) is not None:
        shutil.rmtree(directory, ignore_errors=True)
        os.close(lock)


def remove_left_behind() -> None:
    """Remove those of killed processes; a Postgres in one ends by itself once its files are gone."""
    for parent in (_MEMORY, _DISK):
        for directory in Path(parent).glob(f"{_PREFIX}*"):
            with suppress(OSError):
                if os.geteuid() not in (0, directory.lstat().st_uid):
                    continue
                lock = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(directory, ignore_errors=True)
                finally:
                    os.close(lock)


def place_for_many_files(gib: int = _EACH_GIB) -> str:
    """Where they cost least: in memory, if programs run there and all processes of the run have room.

    Many containers have no such room in it, or may not use as much of it as they see.
    """
    others = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT") or 1) - 1
    try:
        found = os.statvfs(_MEMORY)
    except OSError:
        return _DISK
    size, free = found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize
    # Half of what there is, as is the kernel's own measure for it: the programs need the rest.
    free -= max(0, size - _memory_limit() // 2)
    has_room = free >= (gib + _EACH_GIB * others) * 2**30 and not found.f_flag & os.ST_NOEXEC
    return _MEMORY if has_room and os.access(_MEMORY, os.W_OK | os.X_OK) else _DISK


def _memory_limit() -> int:
    """The least that a cgroup of ours allows, in bytes; without one, more than any machine has."""
    ours = memory_cgroup()
    limits = [_NO_LIMIT]
    for place in (Path(ours), *Path(ours).parents) if ours else ():
        for name in ("memory.max", "memory.limit_in_bytes"):
            with suppress(OSError, ValueError):
                limits.append(int((place / name).read_text(encoding="ascii")))
    return min(limits)


@contextmanager
def passable_directory() -> Iterator[Path]:
    """A short directory that every account can enter; nothing may still run in it at the end."""
    directory = held_directory()
    directory.chmod(0o755)
    try:
        yield directory
        # A keeper outlives its server by a moment.
        until(lambda: processes_below(directory) == [], f"nothing runs in {directory}")
    finally:
        for pid in processes_below(directory):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        remove(directory)
