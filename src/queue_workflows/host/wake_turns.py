"""The turns in which the idle workers of a host look for a job that all of them were woken for.

Each waits in line at a seat, a lock on a byte of a file in memory. The first looks at once, the others one
after the other, in waves that double. A look that finds nothing is noted with the moment at which it began:
what was woken before that moment has been seen to, and need not look.

    woken ──> ahead() == 0 ──> look ──nothing──> found_nothing(began) ──┐
        └──> ahead() > 0 ──> wait a little ──> has_found_nothing_since(woken)? ──no──> look
                                                                └──yes──> go on waiting

So no wake is lost, whatever ends meanwhile: only a look that has come back with nothing keeps others from
theirs, and the kernel frees the seat of a process that dies. Where the file cannot be had, or lies, each
looks for itself, and behind all that is the poll.
"""

from __future__ import annotations

import fcntl
import hashlib
import mmap
import os
import stat
import struct
from contextlib import suppress
from pathlib import Path
from typing import Final, Self

from queue_workflows import clock as time
from queue_workflows.db.connections.descriptors import Descriptors

_MEMORY: Final = Path("/dev/shm")  # noqa: S108 - what lies there is used only if it is ours
_FLAGS: Final = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
_SIZE: Final = 4096
# Locked together by all that have the file open; the last to close it removes it.
_USED: Final = 512
# What is so old and used by nobody goes, so many at a time.
_UNUSED_S: Final = 60.0
_TIDIED_AT_ONCE: Final = 20
# When the latest looks began that found nothing: at all, and nothing but what only an idle worker may take.
_MARKS: Final = {True: 0, False: 8}
_MARK: Final = struct.Struct("d")
# The seats: those without a job sit before those that have some.
_SEATS: Final = 64
_FIRST: Final = {True: 1024, False: 1024 + _SEATS}
# Of the kernel's struct flock: type, whence, start, length, process.
_LOCK: Final = struct.Struct("hhqqi4x")


class WakeTurns:
    """One worker's seat among those of its host that wait for the same jobs; of one thread."""

    def __init__(self, fd: int, path: Path) -> None:
        """`fd` is the file's, and ours from now on."""
        self._path = path
        fcntl.lockf(fd, fcntl.LOCK_SH | fcntl.LOCK_NB, 1, _USED)
        self._descriptors = Descriptors(fd)
        self._fd = fd
        self._memory = mmap.mmap(fd, _SIZE)
        self._seat: int | None = None
        # Whether all seats were taken.
        self._is_outside = False
        self._is_free = True

    @classmethod
    def among(cls, *those: str) -> Self | None:
        """The turns of all processes of this account here that name the same; None where it cannot be."""
        digest = hashlib.sha256("\0".join((*those, *_namespaces())).encode()).hexdigest()[:32]
        path = _MEMORY / f"{_prefix()}{digest}"
        _tidy(path)
        try:
            fd = os.open(path, _FLAGS, 0o600)
        except OSError:
            return None
        try:
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
                raise PermissionError
            # Also an older file may be a hole: to touch one while the memory is full would kill the process.
            os.posix_fallocate(fd, 0, _SIZE)
            return cls(fd, path)
        except OSError:
            os.close(fd)
            return None

    def wait_in_line(self, *, is_free: bool) -> None:
        """Take the first seat that nobody has, among those without a job if it `is_free`."""
        if (self._seat is not None and is_free is self._is_free) or not self._descriptors.are_ours():
            return
        self.leave()
        self._is_free = is_free
        self._is_outside = True
        for seat in range(_FIRST[is_free], _FIRST[is_free] + _SEATS):
            with suppress(OSError):
                fcntl.lockf(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, seat)
                self._seat, self._is_outside = seat, False
                return

    def leave(self) -> None:
        """Give up the seat, as for a job."""
        seat, self._seat, self._is_outside = self._seat, None, False
        if seat is not None and self._descriptors.are_ours():
            with suppress(OSError):
                fcntl.lockf(self._fd, fcntl.LOCK_UN, 1, seat)

    def ahead(self) -> int:
        """How many sit before this worker; if all seats are taken, all of them, and 0 where nobody knows."""
        seat, first = self._seat, _FIRST[True]
        if self._is_outside:
            return 2 * _SEATS
        if seat is None or not self._descriptors.are_ours():
            return 0
        try:
            if not self._is_taken(first, seat - first):
                return 0
            # One by one: of several the kernel names any.
            return sum(self._is_taken(each) for each in range(first, seat))
        except (OSError, struct.error):
            return 0

    def _is_taken(self, seat: int, count: int = 1) -> bool:
        """Whether another process has one of the seats from here on."""
        asked = _LOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, seat, count, 0)
        kind: int = _LOCK.unpack(fcntl.fcntl(self._fd, fcntl.F_GETLK, asked))[0]
        return count > 0 and kind != fcntl.F_UNLCK

    def found_nothing(self, began: float, *, is_free: bool) -> None:
        """Note that a look which began then found nothing, of a worker that `is_free` for any job."""
        for each in (True, False) if is_free else (False,):
            if began > self._mark(each):
                _MARK.pack_into(self._memory, _MARKS[each], began)

    def has_found_nothing_since(self, woken: float, now: float, *, is_free: bool) -> bool:
        """Whether a look that began after this moment has found nothing for such a worker."""
        return woken < self._mark(is_free) <= now

    def _mark(self, is_free: bool) -> float:
        began: float = _MARK.unpack_from(self._memory, _MARKS[is_free])[0]
        return began

    def close(self) -> None:
        """Give up the seat for good; what comes as the last one leaves may begin a file of its own."""
        self._memory.close()
        if self._descriptors.are_ours():
            with suppress(OSError):
                fcntl.lockf(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, _USED)
                self._path.unlink()
            os.close(self._fd)


def _prefix() -> str:
    return f"qwf-{os.geteuid()}-"


def _tidy(but: Path) -> None:
    """Remove what killed processes have left, some each time."""
    with suppress(OSError):
        left = [path for path in _MEMORY.iterdir() if path.name.startswith(_prefix()) and path != but]
        for path in left[:_TIDIED_AT_ONCE]:
            with suppress(OSError):
                _remove_unused(path)


def _remove_unused(path: Path) -> None:
    fd = os.open(path, _FLAGS & ~os.O_CREAT)
    try:
        if time.time() - os.fstat(fd).st_mtime > _UNUSED_S:
            fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, _USED)
            path.unlink()
    finally:
        os.close(fd)


def _namespaces() -> list[str]:
    """What a name of a server and a moment mean may differ between containers that share their memory."""
    found = []
    for name in ("net", "time"):
        with suppress(OSError):
            found.append(os.readlink(f"/proc/self/ns/{name}"))
    return found
