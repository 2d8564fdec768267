"""Directories opened name by name, so that no link on the way leads elsewhere; standard library only.

Whoever may write to a directory may put a link to another in the place of one below it, at any moment. So
each is opened in the one above it, and what is done there is done by descriptor.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@contextmanager
def directory_beneath(
    directory: str | os.PathLike[str],
    *,
    beneath: str | os.PathLike[str],
    make: bool = False,
    mode: int = 0o777,
) -> Iterator[int]:
    """A directory opened name by name below `beneath`; `OSError` where a link is in the way.

    `beneath` is followed wherever it leads. What is missing is made if `make` says so, below it with `mode`.
    """
    opened = _opened(os.fspath(directory), os.fspath(beneath), make, mode)
    try:
        yield opened
    finally:
        os.close(opened)


def _opened(directory: str, beneath: str, make: bool, mode: int) -> int:
    parts = _parts(directory, beneath)
    if make:
        os.makedirs(beneath, exist_ok=True)
    opened = os.open(beneath, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for part in parts:
            inner = open_within(opened, part, make=make, mode=mode)
            os.close(opened)
            opened = inner
    except OSError as wrong:
        os.close(opened)
        wrong.filename = directory
        raise
    return opened


def open_within(within: int, part: str, *, make: bool = False, mode: int = 0o777) -> int:
    """The descriptor of a directory that stands in an open one; made if `make` says so."""
    with suppress(FileNotFoundError):
        return os.open(part, DIRECTORY, dir_fd=within)
    if make:
        with suppress(FileExistsError):
            os.mkdir(part, mode, dir_fd=within)
    return os.open(part, DIRECTORY, dir_fd=within)


def _parts(directory: str, beneath: str) -> list[str]:
    root = beneath.rstrip("/") + "/"
    if not (directory.rstrip("/") + "/").startswith(root):
        raise ValueError(f"{directory} is not below {beneath}")
    parts = [part for part in directory[len(root) :].split("/") if part not in ("", ".")]
    if ".." in parts:
        raise NotADirectoryError(f"{directory} leads out of {beneath}")
    return parts
