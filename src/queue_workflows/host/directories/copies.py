"""Copies of directories that programs made which are not trusted; standard library only.

From one open directory to another, so that no link leads anywhere. A link is copied as a link; what is
neither a file nor a directory, such as a socket, has no content and is left out. So is what cannot be read,
also after the right to it was taken back where it is ours; the caller is told of that.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Final

from queue_workflows.host.directories.below import DIRECTORY

_DEEPEST: Final = 100
_NO_QUICK_COPY: Final = frozenset({errno.EXDEV, errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP, errno.EPERM})
_READ: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_MADE: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_BLOCK: Final = 1 << 26
_PIECE: Final = 1 << 20


def copy_tree(
    source: int, target: int, *, look: Callable[[], None] = lambda: None, depth: int = 0
) -> list[str]:
    """Copy all that is in one open directory into another one, with its times; what was left out, and why.

    `look` is called between files, and between the parts of a large one, so that it can end the copying by
    raising. `OSError` where the copy cannot be written, as where there is no room. What is gone is not there.
    """
    if depth > _DEEPEST:
        return [f"what is deeper than {_DEEPEST} directories"]
    left_out: list[str] = []
    for name in sorted(os.listdir(source)):
        look()
        with suppress(FileNotFoundError):
            mode = os.stat(name, dir_fd=source, follow_symlinks=False).st_mode
            if stat.S_ISLNK(mode):
                os.symlink(os.readlink(name, dir_fd=source), name, dir_fd=target)
            elif stat.S_ISDIR(mode) or stat.S_ISREG(mode):
                copy = _copy_directory if stat.S_ISDIR(mode) else _copy_file
                try:
                    left_out += copy(name, source, target, look, depth)
                except _Unreadable as wrong:
                    left_out.append(f"{name}: {wrong}")
    return left_out


class _Unreadable(Exception):
    """What is to be copied cannot be read."""


def _copy_directory(
    name: str, source: int, target: int, look: Callable[[], None], depth: int
) -> Iterator[str]:
    with _opened(name, DIRECTORY, source) as inner:
        os.mkdir(name, 0o700, dir_fd=target)
        made = os.open(name, DIRECTORY, dir_fd=target)
        try:
            below = copy_tree(inner, made, look=look, depth=depth + 1)
        finally:
            os.close(made)
    return (f"{name}/{each}" for each in below)


def _copy_file(name: str, source: int, target: int, look: Callable[[], None], _depth: int) -> Iterator[str]:
    with _opened(name, _READ, source) as opened:
        seen = os.fstat(opened)
        if stat.S_ISREG(seen.st_mode):
            made = os.open(name, _MADE, stat.S_IMODE(seen.st_mode) & 0o777 | 0o600, dir_fd=target)
            try:
                _copy_content(opened, made, look)
                os.utime(made, ns=(seen.st_atime_ns, seen.st_mtime_ns))
            except _Unreadable:
                os.unlink(name, dir_fd=target)
                raise
            finally:
                os.close(made)
    return iter(())


@contextmanager
def _opened(name: str, how: int, above: int) -> Iterator[int]:
    """Open what is to be read; its owner may take back the right to it."""
    opening = partial(os.open, name, how, dir_fd=above)
    try:
        try:
            opened = opening()
        except PermissionError:
            _take_back(name, above)
            opened = opening()
    except FileNotFoundError:
        raise
    except OSError as wrong:
        raise _Unreadable(wrong.strerror) from None
    try:
        yield opened
    finally:
        os.close(opened)


def _take_back(name: str, above: int) -> None:
    """The right to read, never by way of a link; `OSError` where it is not ours, or nothing can be done."""
    if not hasattr(os, "O_PATH"):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    found = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=above)
    try:
        mode = os.fstat(found).st_mode
        if stat.S_ISREG(mode) or stat.S_ISDIR(mode):
            wanted = 0o700 if stat.S_ISDIR(mode) else 0o600
            os.chmod(f"/proc/self/fd/{found}", stat.S_IMODE(mode) & 0o777 | wanted)
    finally:
        os.close(found)


def _copy_content(opened: int, made: int, look: Callable[[], None]) -> None:
    """By the kernel, which shares the blocks where the file system can; else by reading and writing."""
    if hasattr(os, "copy_file_range"):
        try:
            while os.copy_file_range(opened, made, _BLOCK):
                look()
        except OSError as wrong:
            if wrong.errno == errno.EIO:
                raise _Unreadable(wrong.strerror) from None
            if wrong.errno not in _NO_QUICK_COPY:
                raise
    while block := _read(opened):
        look()
        _write(made, block)


def _read(opened: int) -> bytes:
    try:
        return os.read(opened, _PIECE)
    except OSError as wrong:
        raise _Unreadable(wrong.strerror) from None


def _write(made: int, block: bytes) -> None:
    left = memoryview(block)
    while left:
        left = left[os.write(made, left) :]
