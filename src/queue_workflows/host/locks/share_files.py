"""The files by which several processes have one lock together; standard library and `flock` only.

    {lock}.hostlock         flocked by the process that has the lock, if one still has it
    {lock}+{note}.share     flocked by a process that has a share in it

What takes the lock looks for shares once it has it, and lets go if somebody has one. What takes a share looks
for the other holders once it has it, and lets go if it may not be beside one of them. Each looks after it has
taken, so of two that come at once at least one sees the other.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from queue_workflows.host.locks.flock import has_alone, remove, try_lock, unlock
from queue_workflows.host.locks.owner_note import SUFFIX

_SHARE: Final = ".share"
# It stands in no name of a lock's file.
_AND: Final = "+"


def share_path(lock: Path, note: str) -> Path:
    """The file of the share that the holder with this note has in a lock, which has its file here."""
    digest = hashlib.sha256(note.encode("utf-8", "surrogatepass")).hexdigest()[:32]
    return lock.with_name(f"{_stem(lock)}{digest}{_SHARE}")


def held_shares(lock: Path, *, tidies: bool = False) -> Iterator[Path]:
    """The shares of a lock that somebody has; if it `tidies`, what killed processes left is removed."""
    stem = _stem(lock)
    try:
        names = os.listdir(lock.parent)
    except FileNotFoundError:
        return
    for name in names:
        if name.startswith(stem) and name.endswith(_SHARE) and is_held(lock.with_name(name), tidies=tidies):
            yield lock.with_name(name)


def is_held(path: Path, *, tidies: bool = False) -> bool:
    """Whether somebody has the lock of a file."""
    try:
        fd = try_lock(path, create=False, shared=True)
    except FileNotFoundError:
        return False
    if fd is None:
        return True
    try:
        if tidies and has_alone(fd):
            remove(fd, path)
    finally:
        unlock(fd)
    return False


def _stem(lock: Path) -> str:
    return lock.name.removesuffix(SUFFIX) + _AND
