"""Directories opened name by name, so that no link on the way leads elsewhere; standard library only.

A process that may write to a directory may put a link in the place of a directory below it, at any moment. So
each is opened in the one above it, and what is done there is done by descriptor.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Final, NamedTuple, TypeAlias

_FOLLOWED: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
DIRECTORY: Final = _FOLLOWED | os.O_NOFOLLOW
# Opens a directory of this name in an open one.
Opening: TypeAlias = Callable[[int, str], int]


class OpenDirectory(NamedTuple):
    """A directory that somebody holds open, at its path: what is below it is reached from there."""

    path: str
    descriptor: int


Beneath: TypeAlias = str | os.PathLike[str] | OpenDirectory


def path_of(beneath: Beneath) -> str:
    """The path of a directory."""
    return beneath.path if isinstance(beneath, OpenDirectory) else os.fspath(beneath)


@contextmanager
def directory_beneath(
    directory: str | os.PathLike[str],
    *,
    beneath: Beneath,
    make: bool = False,
    opening: Opening | None = None,
) -> Iterator[int]:
    """A directory opened name by name below `beneath`; `OSError` where a link is in the way.

    `beneath` is followed wherever it leads. What is missing of it is made if `make` says so; below it by
    `opening` too, which opens each.
    """
    opened = _opened(os.fspath(directory), beneath, make, opening or partial(open_within, make=make))
    try:
        yield opened
    finally:
        os.close(opened)


def _opened(directory: str, beneath: Beneath, make: bool, opening: Opening) -> int:
    parts = _parts(directory, path_of(beneath))
    opened = beneath.descriptor if isinstance(beneath, OpenDirectory) else _ground(os.fspath(beneath), make)
    is_ours = not isinstance(beneath, OpenDirectory)
    try:
        for part in parts:
            inner = opening(opened, part)
            if is_ours:
                os.close(opened)
            opened, is_ours = inner, True
    except OSError as wrong:
        if is_ours:
            os.close(opened)
        wrong.filename = directory
        raise
    return opened if is_ours else os.dup(opened)


def _ground(path: str, make: bool) -> int:
    try:
        return os.open(path, _FOLLOWED)
    except FileNotFoundError:
        if not make:
            raise
    os.makedirs(path, exist_ok=True)
    return os.open(path, _FOLLOWED)


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
