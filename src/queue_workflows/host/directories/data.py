"""Directories of ours below the data directory: made without following a link, held in use, removed for good.

What runs there is not trusted: it may put links anywhere. So nothing below `base` is reached by a path, but
from one open directory to the next, and a link on the way is refused. On the way to `base` a link of ours or
root's is followed, and one of another user is not (`path_ownership`).

    in use:   a shared flock on the directory itself, by each process that works there; it ends with that
    removed:  the exclusive one, by try only; then renamed into `.removed`, and emptied there

The rename makes a removal one step to all others: a process that comes for the directory a moment later finds
none and makes another. One that waited for the lock compares what it holds with what is at the path.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Final

from queue_workflows.errors import ConfigurationError
from queue_workflows.host.directories.below import (
    DIRECTORY,
    Beneath,
    OpenDirectory,
    Opening,
    directory_beneath,
    open_within,
)
from queue_workflows.host.locks.flock import is_at
from queue_workflows.host.mounts import mount_of
from queue_workflows.path_ownership import DATA, open_directory

REMOVED: Final = ".removed"
_NO_DIRECTORY: Final = frozenset({errno.ENOTDIR, errno.ELOOP, errno.EEXIST})
_NO_LOCKS: Final = frozenset({errno.ENOLCK, errno.EOPNOTSUPP, errno.EBADF, errno.EINVAL})
_OURS_ALONE: Final = 0o700
_ours: Final[Opening] = partial(open_within, make=True, mode=_OURS_ALONE)


@contextmanager
def opened(base: Path, *names: str, makes: bool = True) -> Iterator[int]:
    """The descriptor of a directory of ours below `base`, each step of the way made if it is missing."""
    path = base.joinpath(*names)
    with ExitStack() as stack:
        with _in_words(path, makes=makes):
            ground = open_directory(base, DATA, make=makes)
            stack.callback(os.close, ground)
            held = directory_beneath(
                path, beneath=OpenDirectory(str(base), ground), opening=_ours if makes else None
            )
            descriptor = stack.enter_context(held)
        yield descriptor


def hold(base: Path, *names: str, opening: Opening | None = None) -> int:
    """The descriptor that keeps a directory from being removed for as long as it is open; made if missing.

    By `opening`, or for ourselves alone.
    """
    opening = opening or _ours
    while True:
        with opened(base, *names[:-1]) as above:
            try:
                with _in_words(base.joinpath(*names)):
                    held = opening(above, names[-1])
            except FileNotFoundError:  # made, and removed before it was opened
                continue
            try:
                _lock(held, fcntl.LOCK_SH)
                if is_at(held, names[-1], dir_fd=above):
                    with suppress(PermissionError):
                        os.utime(held)  # from its last use on it is kept as long as a new one
                    return held
            except BaseException:
                os.close(held)
                raise
            os.close(held)


def make_usable(directory: Path, *, beneath: Beneath) -> None:
    """Make what is missing of a directory below `beneath`, and take back the rights to what is on the way.

    What worked there may have taken them from us; a link, or what is somebody else's, stays in the way.
    """
    with directory_beneath(directory, beneath=beneath, make=True, opening=usable):
        pass


def take_away(above: int, name: str) -> bool:
    """Put a directory that nobody uses among the removed; False if it is in use or none of ours."""
    try:
        held = _writable(above, name)
    except OSError:
        return False
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not is_at(held, name, dir_fd=above):
            return False
        with suppress(FileExistsError):
            os.mkdir(REMOVED, _OURS_ALONE, dir_fd=above)
        removed = os.open(REMOVED, DIRECTORY, dir_fd=above)
        try:
            os.rename(name, uuid.uuid4().hex, src_dir_fd=above, dst_dir_fd=removed)
        finally:
            os.close(removed)
    except OSError:
        return False
    finally:
        os.close(held)
    return True


def empty(directory: int) -> list[str]:
    """Remove all that is in a directory; what could not be, with the reason in words.

    A directory that lies deeper is moved up first, so neither depth nor a file system that somebody mounted
    there is ever walked into: a mount point cannot be moved. Two may do it at once.
    """
    wrong: dict[str, str] = {}
    while names := [name for name in os.listdir(directory) if name not in wrong]:
        for name in names:
            try:
                _remove(directory, name)
            except FileNotFoundError:
                pass
            except OSError as exc:
                wrong[name] = exc.strerror or str(exc)
    return [f"{name}: {why}" for name, why in sorted(wrong.items())]


def last_change(path: Path, *, since: float) -> float:
    """When something of a tree last changed, by the kernel's mark; any change after `since` will do."""
    latest = os.stat(path, follow_symlinks=False).st_ctime
    for above, directories, files in os.walk(path):
        for name in (*directories, *files):
            if latest > since:
                return latest
            with suppress(OSError):
                latest = max(latest, os.stat(os.path.join(above, name), follow_symlinks=False).st_ctime)
    return latest


@contextmanager
def _in_words(path: Path, *, makes: bool = False) -> Iterator[None]:
    """What is in the way, as the user's to see to; but for what is missing and not to be made."""
    try:
        yield
    except OSError as wrong:
        if isinstance(wrong, FileNotFoundError) and not makes:
            raise
        what = "no directory" if wrong.errno in _NO_DIRECTORY else wrong.strerror
        raise ConfigurationError(
            f"{path} cannot be used: {what}", advice="see to it, or name another directory with QWF_DATA_DIR"
        ) from None


def _lock(held: int, how: int) -> None:
    """A file system without locks keeps nobody from working; there nothing is removed either.

    Of a directory that is reached from the one above, and waited for: so `flock.try_lock` cannot serve.
    """
    try:
        fcntl.flock(held, how)
    except OSError as wrong:
        if wrong.errno not in _NO_LOCKS:
            raise


def _remove(directory: int, name: str) -> None:
    """A file at once; of a directory all that is in it, after its own directories were moved up."""
    if not _is_directory(name, directory):
        os.unlink(name, dir_fd=directory)
        return
    wrong = None
    held = _writable(directory, name)
    try:
        for each in os.listdir(held):
            try:
                _take_out(each, held, directory)
            except FileNotFoundError:
                pass
            except OSError as exc:
                wrong = exc
    finally:
        os.close(held)
    if wrong is not None:
        raise wrong
    os.rmdir(name, dir_fd=directory)


def _take_out(name: str, held: int, directory: int) -> None:
    if _is_directory(name, held):
        os.close(_writable(held, name))
        os.rename(name, uuid.uuid4().hex, src_dir_fd=held, dst_dir_fd=directory)
    else:
        os.unlink(name, dir_fd=held)


def _is_directory(name: str, above: int) -> bool:
    return stat.S_ISDIR(os.stat(name, dir_fd=above, follow_symlinks=False).st_mode)


def _writable(above: int, name: str) -> int:
    """Open a directory; what worked there may have taken the right to it away, as from a cache.

    What is mounted there is somebody else's, and stays as it is.
    """
    try:
        held = os.open(name, DIRECTORY, dir_fd=above)
    except PermissionError:
        found = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=above)
        try:
            _refuse_a_mount(found, above)
            os.chmod(f"/proc/self/fd/{found}", _OURS_ALONE)
        finally:
            os.close(found)
        held = os.open(name, DIRECTORY, dir_fd=above)
    try:
        _refuse_a_mount(held, above)
        if os.fstat(held).st_mode & _OURS_ALONE != _OURS_ALONE:
            with suppress(PermissionError):
                os.fchmod(held, _OURS_ALONE)
    except BaseException:
        os.close(held)
        raise
    return held


def usable(above: int, name: str) -> int:
    """A directory in an open one, made or as `_writable` leaves it if that is what it takes."""
    try:
        held = open_within(above, name, make=True)
    except PermissionError as refused:
        try:
            return _writable(above, name)
        except FileNotFoundError:  # it is the one above where nothing may be made
            raise refused from None
    if os.fstat(held).st_mode & _OURS_ALONE == _OURS_ALONE:
        return held
    os.close(held)
    return _writable(above, name)


def _refuse_a_mount(held: int, above: int) -> None:
    if mount_of(held) != mount_of(above):
        raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))
