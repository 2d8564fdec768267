"""A cgroup for each command, where the machine lets us make some: all that is in one dies by a single write.

Links from child to parent already tell which processes belong to a command (see `tree_below`). A cgroup adds
two things: what forks faster than it can be found is killed at once, and what is left when nobody of ours
lived to end it is found by the next worker here.

    our own cgroup / qwf-{random}  the spawner's; its live processes hold a lock on the directory
                   / {keeper}      where a keeper puts its command

Nobody else's cgroups are touched: an ordinary user can write only to what was delegated, and for root that
has to be said, by systemd's mark or by the cgroup being the root of all that can be seen.
"""

from __future__ import annotations

import fcntl
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final, Self

_PREFIX: Final = "qwf-"
_PROCESSES: Final = "cgroup.procs"
_US: Final = b"0"
_KILL: Final = "cgroup.kill"  # Linux 5.14


class SpawnerCgroup:
    """The cgroup of a spawner, locked for as long as one of its processes lives."""

    def __init__(self, home: str, own: str, lock: int) -> None:
        self._home, self._own, self._lock = home, own, lock

    @classmethod
    def open(cls, home: str | None = None) -> Self | None:
        """Make one, and end what dead spawners left behind; None where there may be none."""
        try:
            home = home or _delegated()
            if home is None:
                return None
            _sweep(home)
            own = os.path.join(home, _PREFIX + secrets.token_hex(8))
            os.mkdir(own)
            lock = _locked(own)
            if lock is None:
                return None
            if not os.path.exists(os.path.join(own, _KILL)):
                os.rmdir(own)
                os.close(lock)
                return None
            return cls(home, own, lock)
        except OSError:
            return None

    def cgroup(self, name: str) -> CommandCgroup | None:
        """A cgroup below ours."""
        path = os.path.join(self._own, name)
        with suppress(OSError):
            os.mkdir(path)
            return CommandCgroup(path, self._home)
        return None

    def forget(self, name: str) -> None:
        """Remove one that nobody needs any more."""
        with suppress(OSError):
            os.rmdir(os.path.join(self._own, name))

    def close(self) -> None:
        """Remove all that are empty, ours too."""
        _remove(self._own)


class CommandCgroup:
    """The cgroup of one keeper's commands, one after the other; what moves it is kept open."""

    def __init__(self, path: str, home: str) -> None:
        self._path = path
        self._inside = os.open(os.path.join(path, _PROCESSES), os.O_WRONLY)
        self._outside = os.open(os.path.join(home, _PROCESSES), os.O_WRONLY)
        self._is_sound = True

    @contextmanager
    def around(self) -> Iterator[None]:
        """What is spawned inside the block starts in the cgroup; we are out of it again afterwards."""
        is_in = False
        with suppress(OSError):
            os.write(self._inside, _US)
            is_in = True
        try:
            yield
        finally:
            if is_in:
                try:
                    os.write(self._outside, _US)
                except OSError:
                    self._is_sound = False  # killing it would kill us

    def kill(self) -> None:
        """SIGKILL to all that is in it, at once."""
        if self._is_sound:
            with suppress(OSError):
                _write(self._path, _KILL, "1")


def _delegated() -> str | None:
    """The directory of our own cgroup if we may make others below it."""
    with open("/proc/self/cgroup") as groups:
        ours = next((line[3:].rstrip("\n") for line in groups if line.startswith("0::")), None)
    if ours is None or ours.startswith("/.."):
        return None
    home = os.path.normpath(_mounted() + ours)
    if not os.access(home, os.W_OK) or not os.access(os.path.join(home, _PROCESSES), os.W_OK):
        return None
    return home if os.geteuid() != 0 or ours == "/" or _is_marked(home) else None


def _mounted() -> str:
    with open("/proc/self/mountinfo") as mounts:
        for line in mounts:
            place, _, kind = line.partition(" - ")
            root, path = place.split()[3:5]
            if kind.startswith("cgroup2 ") and root == "/":
                return path
    raise FileNotFoundError("cgroup2")


def _is_marked(home: str) -> bool:
    """Whether systemd has marked this cgroup as delegated."""
    for name in ("user.delegate", "trusted.delegate"):
        with suppress(OSError):
            if os.getxattr(home, name) == b"1":
                return True
    return False


def _locked(path: str) -> int | None:
    """A descriptor that holds the directory's lock; None if somebody else has it, or it is gone.

    Not by `flock`, which takes along what no shim has time to load.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.stat(path).st_ino == os.fstat(descriptor).st_ino:
            return descriptor
    except OSError:
        pass
    os.close(descriptor)
    return None


def _sweep(home: str) -> None:
    """End what is left of spawners of which nobody lives: the lock of each is to be had."""
    for name in os.listdir(home):
        path = os.path.join(home, name)
        if name.startswith(_PREFIX) and os.path.isdir(path):
            with suppress(OSError):
                lock = _locked(path)
                if lock is not None:
                    _write(path, _KILL, "1")
                    _remove(path)
                    os.close(lock)


def _remove(path: str) -> None:
    """Remove a cgroup with those below it; one with a process still dying stays, for the next sweep."""
    with suppress(OSError):
        for entry in list(os.scandir(path)):
            if entry.is_dir(follow_symlinks=False):
                with suppress(OSError):
                    os.rmdir(entry.path)
        os.rmdir(path)


def _write(path: str, name: str, text: str) -> None:
    descriptor = os.open(os.path.join(path, name), os.O_WRONLY)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)
