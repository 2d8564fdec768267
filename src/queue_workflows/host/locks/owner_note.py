"""What the holder of a lock writes into its file: for people, and to find holders that nobody meets.

A lock is held as before when its file was removed, or its directory was renamed and another put in its place,
and what comes to the path does not see it. What is open, and where its holder meant it to be, is seen in
/proc: of the processes that this one may look into, those of its user in its PID namespace. That is asked
where a missing or free lock would be taken to mean that there is no owner, and by the first process to take a
lock in a new directory. It leaves a mark there, so that all others only look for that.
"""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from json import dumps, loads
from pathlib import Path
from typing import Final

_log = logging.getLogger(__name__)

# By which a file is known as one of these among others of the directory.
SUFFIX: Final = ".hostlock"
MARK: Final = ".no-former-directory"
# Two texts of the longest, each character of which JSON may write in twelve, and a directory.
LONGEST_CLAIM: Final = 8192
_LONGEST_DIRECTORY: Final = 2048
_PROC: Final = Path("/proc")
_DELETED: Final = " (deleted)"


@dataclass(frozen=True, slots=True)
class Claim:
    """What a holder wrote down of itself; to be told, not to be trusted."""

    name: str
    pid: int
    deadline_s: float | None = None
    note: str | None = None
    # Where its holder meant it to be: the directory may be somewhere else by now, and another in its place.
    directory: str | None = field(default=None, compare=False)

    def __str__(self) -> str:
        return f"process {self.pid}" + (f" ({self.note})" if self.note else "")


def write_claim(fd: int, claim: Claim) -> None:
    """Write down the holder of a lock; the lock is held without that too, as on a full disk."""
    given = {key: value for key, value in asdict(claim).items() if value is not None}
    if len(dumps(claim.directory)) > _LONGEST_DIRECTORY:
        del given["directory"]
    try:
        os.ftruncate(fd, 0)
        os.pwrite(fd, (dumps(given) + "\n").encode()[:LONGEST_CLAIM], 0)
        os.utime(fd)
    except OSError as exc:
        _log.warning("the lock %r is held, which cannot be written down: %s", claim.name, exc)


def read_claim(fd: int) -> Claim | None:
    """What stands in the file, None for nothing; ValueError for what no holder of ours wrote."""
    text = os.pread(fd, LONGEST_CLAIM, 0)
    if not text:
        return None
    try:
        match loads(text):
            case {"name": str(name), "pid": int(pid), **rest}:
                deadline_s, note = rest.get("deadline_s"), rest.get("note")
                directory = rest.get("directory")
                if isinstance(deadline_s, float | int | None) and isinstance(note, str | None):
                    return Claim(
                        name, pid, deadline_s, note, directory if isinstance(directory, str) else None
                    )
    except ValueError:
        pass
    raise ValueError("what stands in it is not a holder's")


def told(path: Path, *, follows: bool = False) -> Claim | None:
    """The claim of the holder of a file's lock, or of the last one; None where there is nothing to read.

    `follows` is for the links of the kernel to what is open.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | (0 if follows else os.O_NOFOLLOW))
    except OSError:
        return None
    try:
        return read_claim(fd)
    except (OSError, ValueError):
        return None
    finally:
        os.close(fd)


def holders_of_removed(directory: Path) -> dict[str, int]:
    """The names of lock files that a process has open and that are not here any more, with that process.

    They were removed, or the directory is another one now than when they were opened.
    """
    where, found = os.path.realpath(directory), {}
    for pid, opened, link in _open_files():
        if not link.endswith((SUFFIX, SUFFIX + _DELETED)):
            continue
        above, name = os.path.split(link.removesuffix(_DELETED))
        if (above == where or _meant_for(where, opened)) and not _is_there(directory / name, opened):
            found[name] = pid
    return found


def identity(directory: Path) -> tuple[int, int] | None:
    """What tells a directory from one that is put in its place; None without one."""
    try:
        there = os.stat(directory)
    except OSError:
        return None
    return there.st_dev, there.st_ino


def held_in_a_former(directory: Path, file: str) -> int | None:
    """The process that has the lock of this file in a directory that was here before; seldom there is one."""
    mark = directory / MARK
    if os.path.lexists(mark):
        return None
    if found := holders_of_removed(directory):
        _say_once(directory, *min(found.items()))
        return found.get(file)
    with suppress(OSError):
        os.close(os.open(mark, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644))
    return None


@functools.cache
def _say_once(directory: Path, file: str, pid: int) -> None:
    what = "%s was replaced while locks of the former one are held, as %s by process %d: they are waited for"
    _log.warning(what, directory, file, pid)


def _meant_for(where: str, opened: str) -> bool:
    claim = told(Path(opened), follows=True)
    return claim is not None and claim.directory is not None and os.path.realpath(claim.directory) == where


def _is_there(path: Path, opened: str) -> bool:
    """Whether the open file is the one at the path; also where it cannot be told, as it was closed since."""
    try:
        held = os.stat(opened)
    except OSError:
        return True
    try:
        return os.path.samestat(os.stat(path, follow_symlinks=False), held)
    except OSError:
        return False


def _open_files() -> Iterator[tuple[int, str, str]]:
    """Each open file: its process, a path to what is open, and what that was called."""
    with suppress(FileNotFoundError):  # no /proc
        for pid in filter(str.isdigit, os.listdir(_PROC)):
            with suppress(OSError):  # ended, or another user's
                for fd in os.listdir(_PROC / pid / "fd"):
                    opened = f"{_PROC}/{pid}/fd/{fd}"
                    with suppress(OSError):
                        yield int(pid), opened, os.readlink(opened)
