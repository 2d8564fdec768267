"""Copies of directories that programs made which are not trusted; standard library only.

From one open directory to another, so that no link leads anywhere. A link is copied as a link; what is
neither a file nor a directory, such as a socket, has no content and is left out.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
from contextlib import suppress
from typing import Final

from queue_workflows.host.directories.below import DIRECTORY

_DEEPEST: Final = 100
_NO_QUICK_COPY: Final = frozenset({errno.EXDEV, errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP, errno.EPERM})
_READ: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_MADE: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_BLOCK: Final = 1 << 26


def copy_tree(source: int, target: int, *, depth: int = 0) -> None:
    """Copy all that is in one open directory into another one, with its times; what is gone meanwhile is not.

    `OSError` where something cannot be read, or there is no room for it.
    """
    if depth > _DEEPEST:
        raise OSError(errno.ENAMETOOLONG, f"directories deeper than {_DEEPEST}")
    for name in sorted(os.listdir(source)):
        with suppress(FileNotFoundError):
            mode = os.stat(name, dir_fd=source, follow_symlinks=False).st_mode
            if stat.S_ISDIR(mode):
                _copy_directory(name, source, target, depth)
            elif stat.S_ISLNK(mode):
                os.symlink(os.readlink(name, dir_fd=source), name, dir_fd=target)
            elif stat.S_ISREG(mode):
                _copy_file(name, source, target)


def _copy_directory(name: str, source: int, target: int, depth: int) -> None:
    inner = os.open(name, DIRECTORY, dir_fd=source)
    try:
        os.mkdir(name, 0o700, dir_fd=target)
        made = os.open(name, DIRECTORY, dir_fd=target)
        try:
            copy_tree(inner, made, depth=depth + 1)
        finally:
            os.close(made)
    finally:
        os.close(inner)


def _copy_file(name: str, source: int, target: int) -> None:
    opened = os.open(name, _READ, dir_fd=source)
    try:
        seen = os.fstat(opened)
        if not stat.S_ISREG(seen.st_mode):
            return
        made = os.open(name, _MADE, stat.S_IMODE(seen.st_mode) & 0o777 | 0o600, dir_fd=target)
        try:
            _copy_content(opened, made)
            os.utime(made, ns=(seen.st_atime_ns, seen.st_mtime_ns))
        finally:
            os.close(made)
    finally:
        os.close(opened)


def _copy_content(opened: int, made: int) -> None:
    """By the kernel, which shares the blocks where the file system can; else by reading and writing."""
    try:
        while os.copy_file_range(opened, made, _BLOCK):
            pass
    except OSError as wrong:
        if wrong.errno not in _NO_QUICK_COPY:
            raise
    with os.fdopen(opened, "rb", closefd=False) as rest, os.fdopen(made, "wb", closefd=False) as to:
        shutil.copyfileobj(rest, to)
