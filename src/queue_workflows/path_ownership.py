"""Opens a directory that a setting names, unless another account decides where its path leads.

A path means what its components mean, and an account that may replace one of them may send us anywhere:
root to `/etc` by a link, a holder of a lock to a directory in which others remove it. So a path is walked
from `/`, each component opened in the one before it:

    component    is refused                                                       else
    link         if it is another user's                                          what it leads to is judged
    directory    if it is another user's, or everybody may rename what is in it   it is entered
    missing      never, as nobody else can put something there                    it is made, or that is all

"Another user" is neither root nor the account of this process. A directory is judged before an entry of it
is looked at, so nothing that was judged can be exchanged afterwards, and the path may be used as it stands.
A group that may write is trusted: an administrator puts accounts into one so that they share.

For files of our own (`shares`) a directory may be another user's: root joins the embedded server of an
account, accounts of a group share a disk. That account is then trusted with what is kept there, and a link of
its own is followed nowhere, but in the working directory: what runs there reads its code from there.
"""

from __future__ import annotations

import errno
import os
import stat
from collections import deque
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from queue_workflows.errors import ConfigurationError

# To pass through a directory takes no right to read it.
_PASS: Final = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_MOST_LINKS: Final = 40
_MODE: Final = 0o775  # less what the umask says; never open to everybody, whatever that says


@dataclass(frozen=True)
class Use:
    """What a directory is for, in words, and whether it may be one of another user."""

    what: str
    advice: str
    shares: bool = False


LOCKS: Final = Use("locks cannot live in", "see which account made it, or name a directory with QWF_LOCK_DIR")
DATA: Final = Use(
    "files of ours cannot live in",
    "see which account made it, or name another directory with QWF_DATA_DIR",
    shares=True,
)


def check_directory(path: Path, use: Use) -> None:
    """ConfigurationError where another account decides what this path is; nothing if it is not there yet."""
    with suppress(FileNotFoundError):
        os.close(open_directory(path, use))


def open_directory(path: Path, use: Use, *, make: bool = False) -> int:
    """A descriptor to open other files in, of a directory with a path that nobody else can change.

    `OSError` for what any path may suffer from; what is missing is made if `make` says so.
    """
    whole, owners = path.absolute(), {0, os.geteuid()}
    here = _working_directory() if use.shares else None
    is_below = here is not None and whole.is_relative_to(here) and ".." not in whole.parts
    begin = here if here is not None and is_below else Path("/")
    if here is not None:
        owners.add(os.stat(here).st_uid)
    walk = _Walk(whole, use, frozenset(owners), begin)
    return walk.to(whole.relative_to(begin).parts, make=make)


def _working_directory() -> Path | None:
    """None if it has been removed, as by a deploy under a process that runs on."""
    with suppress(FileNotFoundError):
        return Path.cwd()
    return None


class _Walk:
    """From one open directory to the next; `_at` is the place of the open one, for messages."""

    def __init__(self, whole: Path, use: Use, owners: frozenset[int], begin: Path) -> None:
        self._whole = whole
        self._use = use
        self._owners = owners
        self._begin = begin
        self._at = begin
        self._links = 0

    def to(self, parts: tuple[str, ...], *, make: bool) -> int:
        """The descriptor of what these parts lead to."""
        ahead = deque(parts)
        with ExitStack() as stack:
            opened = os.open(self._begin, _PASS & ~os.O_NOFOLLOW)
            stack.callback(lambda: os.close(opened))
            while ahead:
                part = ahead.popleft()
                if (target := self._target(opened, part)) is not None:
                    ahead.extendleft(reversed([each for each in target.split("/") if each not in ("", ".")]))
                    part = "/" if target.startswith("/") else "."
                inner = self._entered(opened, part, make=make)
                os.close(opened)
                opened = inner
            stack.pop_all()
        return opened

    def _target(self, above: int, part: str) -> str | None:
        """Where a link leads that may be followed; None for what is none."""
        try:
            there = os.stat(part, dir_fd=above, follow_symlinks=False)
        except FileNotFoundError:
            return None
        if not stat.S_ISLNK(there.st_mode):
            return None
        if there.st_uid not in self._owners:
            raise self._refused(self._at / part, f"is a link of user {there.st_uid}")
        self._links += 1
        if self._links > _MOST_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(self._whole))
        return os.readlink(part, dir_fd=above)

    def _entered(self, above: int, part: str, *, make: bool) -> int:
        try:
            inner = os.open(part, _PASS, dir_fd=above)
        except FileNotFoundError:
            if not make:
                raise
            with suppress(FileExistsError):
                os.mkdir(part, _MODE, dir_fd=above)
            inner = os.open(part, _PASS, dir_fd=above)
        self._at = Path(os.path.normpath(self._at / part))
        if part == "/":
            return inner
        try:
            if flaw := self._flaw(os.fstat(inner)):
                raise self._refused(self._at, flaw)
        except BaseException:
            os.close(inner)
            raise
        return inner

    def _flaw(self, there: os.stat_result) -> str | None:
        if there.st_uid not in self._owners and not self._use.shares:
            return f"belongs to user {there.st_uid}"
        if there.st_mode & stat.S_IWOTH and not there.st_mode & stat.S_ISVTX:
            return "is open: everybody may remove what lies there"
        return None

    def _refused(self, place: Path, flaw: str) -> ConfigurationError:
        which = "it" if place == self._whole else f"{place}, on the way there,"
        return ConfigurationError(f"{self._use.what} {self._whole}: {which} {flaw}", advice=self._use.advice)
