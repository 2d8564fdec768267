"""A lock on a file that only one process tree of this machine can hold, and that ends with its last holder.

The lock is the kernel's: it belongs to the open file, so a child that inherits the descriptor holds it too,
and nobody has to break it. Only the holder of a file's lock may remove that file, and what takes a lock looks
whether its file still is the one at the path: so no two ever hold what they both take for the same.
"""

from __future__ import annotations

import fcntl
import functools
import logging
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from queue_workflows.errors import ConfigurationError
from queue_workflows.host.mounts import network_file_system
from queue_workflows.path_ownership import LOCKS, check_directory, open_directory

_log = logging.getLogger(__name__)

SHARED: Final = Path("/run/lock/qwf")
_OPEN: Final = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK  # a pipe must not keep us
_FIRST_FREE: Final = 3


def lock_directory(chosen: Path | None, environ: Mapping[str, str] = os.environ) -> Path:
    """Where locks live: where the setting says, else where all of this machine meet, else the user's own.

    A process that cannot write to the meeting place must not lock elsewhere: others would not see it.
    """
    if chosen is None and (shared := _shared()) is not None:
        return local(shared)
    own = _own(environ)
    found = chosen or own
    with _in_words(found):
        os.close(open_directory(found, LOCKS, make=True))
    if chosen is None:
        _say_once(own)
    return local(found)


def expected_directory(chosen: Path | None, environ: Mapping[str, str] = os.environ) -> Path:
    """Where locks live, for a process that only looks: nothing is made, and nothing is refused."""
    has_shared = SHARED.exists() or os.access(SHARED.parent, os.W_OK | os.X_OK)
    return chosen or (SHARED if has_shared else _own(environ))


def _own(environ: Mapping[str, str]) -> Path:
    runtime = environ.get("XDG_RUNTIME_DIR")
    return Path(runtime) / "qwf" if runtime else Path(tempfile.gettempdir()) / f"qwf-{os.getuid()}"


def usable(directory: Path) -> Path:
    """The directory, which need not be there yet, if nobody else can change it and it is this machine's."""
    with _in_words(directory):
        check_directory(directory, LOCKS)
    return local(directory)


@contextmanager
def _in_words(directory: Path) -> Iterator[None]:
    try:
        yield
    except OSError as exc:
        what = "it is no directory" if isinstance(exc, NotADirectoryError) else exc.strerror or str(exc)
        raise ConfigurationError(
            f"locks cannot live in {directory}: {what}", advice="name a directory with QWF_LOCK_DIR"
        ) from exc


def local(directory: Path) -> Path:
    """The directory, unless it is another machine's: there the server decides how long a lock is kept."""
    if kind := network_file_system(directory):
        raise ConfigurationError(
            f"locks cannot live in {directory}: it is on a network file system ({kind}), where a lock may be "
            "lost while its holder lives",
            advice="name a directory of this machine with QWF_LOCK_DIR",
        )
    return directory


def _shared() -> Path | None:
    try:
        SHARED.mkdir(exist_ok=True)
    except OSError:
        if not os.path.lexists(SHARED):
            return None
    if not os.access(SHARED, os.W_OK | os.X_OK):
        raise ConfigurationError(
            f"the locks of this machine live in {SHARED}, where this user cannot write",
            advice="run all that share its devices as one user, or name one directory in QWF_LOCK_DIR",
        )
    with _in_words(SHARED):
        check_directory(SHARED, LOCKS)
    return SHARED


@functools.cache
def _say_once(own: Path) -> None:
    _log.warning("locks live in %s, as %s cannot be made: other users do not see them there", own, SHARED)


def try_lock(path: Path, *, create: bool = True, shared: bool = False) -> int | None:
    """The descriptor that holds the lock, close-on-exec; None where somebody else does.

    A shared one is for a process that only looks, and is not in the way of others that do.

    FileNotFoundError without the file, where none is to be made.
    """
    while True:
        fd = _opened(path, create)
        try:
            fcntl.flock(fd, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
            if is_at(fd, path):
                return fd
        except BlockingIOError:
            os.close(fd)
            return None
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)


def _opened(path: Path, create: bool) -> int:
    """Open a lock file, never under the number of a closed stream.

    A message would be written into the file, and a daemon's `dup2` would free the lock.
    """
    fd = os.open(path, _OPEN | (os.O_CREAT if create else 0), 0o644)
    if fd >= _FIRST_FREE:
        return fd
    try:
        return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _FIRST_FREE)
    finally:
        os.close(fd)


def has_alone(fd: int) -> bool:
    """Make a shared lock one's own; False where somebody else has it, and then it is not held at all."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def unlock(fd: int) -> None:
    """Free the lock, also where another thread's child has a copy of the descriptor until its exec."""
    try:
        fcntl.flock(fd, fcntl.LOCK_UN)
    finally:
        os.close(fd)


def remove(fd: int | None, path: Path) -> None:
    """Remove the file that is locked by `fd`; not one that was put in its place since."""
    if fd is not None and is_at(fd, path):
        path.unlink()


def is_at(fd: int, name: Path | str, *, dir_fd: int | None = None) -> bool:
    """Whether it still is the one of that name: it may have been replaced while we took its lock."""
    try:
        there = os.stat(name, dir_fd=dir_fd, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return os.path.samestat(os.fstat(fd), there)
