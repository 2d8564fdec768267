"""The `.pid` files that a script leaves for daemons of its own, which something else may have started for it.

What a script starts itself ends with it (see `host/commands`). A daemon that it had another program start,
such as a service manager, is nobody's child here, so its pid file is all that names it. Numbers are used
again, and scripts copy each other's files: a process is ended only if all that is known of it says that it is
the script's own.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import psutil

from queue_workflows.host.directories.below import Beneath, directory_beneath
from queue_workflows.host.processes.tree_by_mark import MARK, kill_trees

_SLACK_S: Final = 2.0  # a process's start is known to a hundredth, a file's time to a tick of the clock
_MOST_FILES: Final = 100
_NOBODYS: Final = "no process's mark"
_MADE: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def sweep_pid_files(
    directory: Path,
    *,
    mark: str,
    since: float,
    grace_s: float,
    beneath: Beneath | None = None,
    is_shared: bool = False,
) -> tuple[int, ...]:
    """End the processes that the directory's pid files name, if they are the script's own; the pids ended.

    `since` is when the script was started, in seconds since the epoch, and `mark` what its processes have in
    their environment. Files that name nobody any more are removed. No link below `beneath` is followed. In a
    directory that `is_shared` a file may be another host's, and its number another process's here: only what
    bears the mark is ended, and only its file removed.
    """
    try:
        with directory_beneath(directory, beneath=beneath or directory) as opened:
            return _sweep(opened, mark, since, grace_s, is_shared)
    except OSError:
        return ()


@contextmanager
def told_to_the_next(began: Path, *, beneath: Beneath) -> Iterator[int]:
    """Leave the file `began` behind where this is broken off, by the worker's death too; gives its time.

    That is 0 where the file could not be made.
    """
    with suppress(OSError), directory_beneath(began.parent, beneath=beneath) as above:
        os.close(os.open(began.name, _MADE, 0o600, dir_fd=above))
    yield began_ns(began, beneath=beneath)
    _forget(began, beneath)


def began_ns(began: Path, *, beneath: Beneath) -> int:
    """When a script began that was broken off; 0 if its end was seen, or it never began."""
    try:
        with directory_beneath(began.parent, beneath=beneath) as above:
            return os.stat(began.name, dir_fd=above, follow_symlinks=False).st_mtime_ns
    except OSError:
        return 0


def sweep_what_was_left(began: Path, directory: Path, *, beneath: Path, grace_s: float) -> tuple[int, ...]:
    """As `sweep_pid_files`, for a script that nobody saw end: its `began` says since when it ran.

    What bears a mark is not looked for here, as it is ended with its spawner's other orphans.
    """
    since = began_ns(began, beneath=beneath) / 1e9
    if not since:
        return ()
    swept = sweep_pid_files(directory, mark=_NOBODYS, since=since, grace_s=grace_s, beneath=beneath)
    _forget(began, beneath)
    return swept


def _forget(began: Path, beneath: Beneath) -> None:
    with suppress(OSError), directory_beneath(began.parent, beneath=beneath) as above:
        os.unlink(began.name, dir_fd=above)


def _sweep(directory: int, mark: str, since: float, grace_s: float, is_shared: bool) -> tuple[int, ...]:
    ours: list[int] = []
    stale: list[str] = []
    for name, pid, written in _pid_files(directory):
        if written < since - _SLACK_S and not is_shared:
            continue
        found = _is_marked(pid, mark) if is_shared else _is_own(pid, mark, since, written)
        if found is not False:
            stale.append(name)
        if found:
            ours.append(pid)
    if ours:
        kill_trees(ours, grace_s=grace_s)
    for name in stale:
        with suppress(OSError):
            os.unlink(name, dir_fd=directory)
    return tuple(sorted(set(ours)))


def _is_own(pid: int, mark: str, since: float, written: float) -> bool | None:
    """Whether a process is the script's own; None if there is none.

    It has the script's mark; or it has none at all, was started while the script ran and before the file was
    written, by our user, and is not below this process, where other scripts have theirs.
    """
    try:
        process = psutil.Process(pid)
        started = process.create_time()
        if process.status() == psutil.STATUS_ZOMBIE or started > written + _SLACK_S:
            return None
        if pid == os.getpid() or os.getpid() in _above(process) or pid in _above(psutil.Process()):
            return False
        borne = process.environ().get(MARK, "")
        if borne:
            return borne.startswith(mark)
        return started >= since - _SLACK_S and process.uids().real == os.getuid()
    except psutil.NoSuchProcess:
        return None
    except (psutil.Error, OSError):  # another user's
        return False


def _is_marked(pid: int, mark: str) -> bool:
    """Whether a process here bears the mark; no clock is asked, as a shared file's time is its server's."""
    try:
        return psutil.Process(pid).environ().get(MARK, "").startswith(mark)
    except (psutil.Error, OSError):
        return False


def _above(process: psutil.Process) -> set[int]:
    """The parents above a process; where one ends meanwhile, it is looked at again, as it is not gone."""
    while True:
        try:
            return {parent.pid for parent in process.parents()}
        except psutil.NoSuchProcess as ended:
            if ended.pid == process.pid:
                raise


def _pid_files(directory: int) -> Iterator[tuple[str, int, float]]:
    """Each regular file `*.pid` of an open directory with the number in it and the time of its writing."""
    with os.scandir(directory) as entries:
        names = sorted(entry.name for entry in entries if entry.name.endswith(".pid"))
    for name in names[:_MOST_FILES]:
        with suppress(OSError):
            descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=directory)
            with os.fdopen(descriptor, "rb") as file:
                seen = os.fstat(file.fileno())
                number = re.match(rb"\s*([0-9]{1,9})\s", file.read(64) + b"\n")
                if stat.S_ISREG(seen.st_mode) and number and int(number[1]) > 1:
                    yield name, int(number[1]), seen.st_mtime
