"""What this machine has only one of, held by one process at a time.

          deadline  ├─────────────────────────────────────────────────────────────┤
    life of the job │ ├─────────────────────────────────────────────────────────┤ │
    of its processes│ │  ├──────────────────────────────────────────────────┤   │ │
    of its lock     │ │  │  acquire ├───────── held ─────────┤ release      │   │ │

A lock lives within the life of a process, that within the life of a job, that within a deadline. Each is kept
by what is around it: the kernel frees the lock of a process that ends, however it ends; of a job that has a
lock the worker ends what came with it before it says that the job is over, as far as that can be told
(`leftover_processes`); a job that reaches its deadline is ended. So a lock that is held has a live owner, and
is waited for; nobody ever takes one away. Where a lock is held for too long, its owner is ended, and the lock
is free.

    free ──try──> opened and flocked ──the file is still the one at its path──> held ──release, death──> free
                          │                                                      │
                          └ another is: somebody removed ours ─> try again       └ close-on-exec: no child
                                                                                   has it that outlives us

The name of the lock, the pid of its holder and the holder's deadline stand in the file, for people and for
`probe`; whether the lock is held is not decided by them. Which job has it stands there too, for a hook that
may share the lock with that job, if the database says so. The file was changed last when its lock was taken.
`release` leaves the file, for the next job; the end of a `with` removes it, and so may a janitor, while it
holds the lock. What waited for the removed file finds out, and opens the one that is there.

Processes that have agreed on it may have a lock together: `lock_share`. All others wait for each of them.

A lock belongs to its object, and stays held when nobody refers to that any more: it ends by `release`, by the
end of its `with`, or with the process. A process that was forked holds none of its parent's.
"""

from __future__ import annotations

import hashlib
import logging
import math
import os
import random
import re
import stat
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Final, Self

from queue_workflows import clock as time
from queue_workflows.errors import LockHeld, LockUnusable
from queue_workflows.host.kernel import IS_LINUX
from queue_workflows.host.locks.flock import (
    has_alone,
    is_at,
    lock_directory,
    remove,
    try_lock,
    unlock,
    usable,
)
from queue_workflows.host.locks.owner_note import (
    SUFFIX,
    Claim,
    held_in_a_former,
    read_claim,
    told,
    write_claim,
)
from queue_workflows.host.locks.share_files import held_shares

_log = logging.getLogger(__name__)

# What a job may put before a name, as in `claims/by_host_lock`, which is much to import for a word.
ELSEWHERE: Final = "elsewhere:"
FIRST_LOOK_S: Final = 0.01
LONGEST_LOOK_S: Final = 0.25
_SAY_AGAIN_S: Final = 60.0
_LONGEST_STEM: Final = 96
# Elsewhere file systems take `a` and `A` for one name.
_STRANGE: Final = re.compile(r"[^A-Za-z0-9._-]" if IS_LINUX else r"[^a-z0-9._-]")
_LONGEST_TEXT: Final = 200
_NOT_REGULAR: Final = "it is not a regular file"
_held: Final[set[HostLock]] = set()


def lock_file_name(name: str) -> str:
    """The name of the lock's file; no two locks share one, because what had to be changed gets a digest."""
    if not isinstance(name, str) or not name or "\0" in name:
        raise LockUnusable(name, "a lock needs a name")
    stem = _STRANGE.sub("_", name)[:_LONGEST_STEM]
    if stem.startswith("."):
        stem = "_" + stem[1:]
    if stem != name:
        digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()
        stem = f"{stem[: _LONGEST_STEM - 33]}~{digest[:32]}"
    return stem + SUFFIX


def _checked(name: str, deadline_s: float | None) -> float | None:
    """Refused here, where nothing is held yet; what is written down has to be readable for others."""
    if deadline_s is None or (
        isinstance(deadline_s, int | float) and not isinstance(deadline_s, bool) and 0 < deadline_s < math.inf
    ):
        return deadline_s
    what = f"its deadline_s is {deadline_s!r:.80}"
    raise LockUnusable(name, what, advice="give a number of seconds above 0, or None")


class HostLock:
    """A lock of this machine, held from `acquire` or `with` until `release`, by one thing at a time.

    Two objects of one name exclude each other in one process too. `deadline_s` is how long the holder means
    to live at most, and `note` what it is, for people that look.
    """

    def __init__(
        self,
        name: str,
        *,
        directory: Path | None = None,
        deadline_s: float | None = None,
        note: str | None = None,
    ) -> None:
        """The lock of this name in `directory`, or where `QWF_LOCK_DIR` says.

        A directory on a network file system is refused, and one that another account can change.
        """
        self.name = name
        file = lock_file_name(name)
        if name.startswith(ELSEWHERE):
            raise LockUnusable(
                name,
                f"{ELSEWHERE!r} says where a job may go, and is no part of a lock's name",
                advice=f"leave it out: {name.removeprefix(ELSEWHERE)!r}",
            )
        if directory is None:
            # Here, because a caller that names a directory need not pay for reading all settings.
            from queue_workflows.config import effective_settings

            directory = lock_directory(effective_settings().lock_dir)
        self.path = usable(Path(directory)).absolute() / file
        self._claim = Claim(
            name[:_LONGEST_TEXT],
            0,
            _checked(name, deadline_s),
            note and str(note)[:_LONGEST_TEXT],
            str(self.path.parent),
        )
        self._fd: int | None = None

    @property
    def held(self) -> bool:
        """Whether this object holds the lock."""
        return self._fd is not None

    def try_acquire(self) -> bool:
        """Take the lock if nobody has it."""
        if self._fd is not None:
            raise RuntimeError(f"the lock {self.name!r} is held by this object already")
        fd = self._try()
        if fd is not None and self._is_held_elsewhere():
            unlock(fd)
            fd = None
        if fd is None:
            return False
        if not stat.S_ISREG(os.fstat(fd).st_mode):  # no janitor could judge it
            unlock(fd)
            raise LockUnusable(self.name, f"{self.path}: {_NOT_REGULAR}")
        self._fd = fd
        _held.add(self)
        return True

    def _is_held_elsewhere(self) -> bool:
        """Whether it is held in a way that the lock of the file at the path does not tell."""
        if held_in_a_former(self.path.parent, self.path.name) is not None:
            return True
        return any(held_shares(self.path, tidies=True))

    def _try(self) -> int | None:
        """The descriptor of the lock, with the claim in it, of the file that is at the path after that."""
        try:
            while (fd := try_lock(self.path)) is not None:
                write_claim(fd, replace(self._claim, pid=os.getpid()))
                # If the directory was replaced, the claims tell which processes hold locks in the former one.
                if is_at(fd, self.path):
                    break
                unlock(fd)
        except OSError as exc:
            raise LockUnusable(self.name, f"{self.path}: {exc.strerror or exc}") from exc
        return fd

    @property
    def is_seen(self) -> bool:
        """Whether others that come to the path meet this lock; not once its file or directory was removed."""
        return self._fd is not None and is_at(self._fd, self.path)

    def follow(self) -> bool:
        """Take the lock at the path as well, unless somebody has it, and be seen again; never waits.

        The holder of the former file has the new one then, and no other could take it meanwhile.
        """
        if self._fd is None or self.is_seen or not self.path.parent.is_dir():
            return False
        if (fd := self._try()) is None:
            return False
        before, self._fd = self._fd, fd
        unlock(before)
        return True

    def acquire(
        self,
        *,
        timeout_s: float | None = None,
        on_wait: Callable[[float], None] | None = None,
        sleep: Callable[[float], None] = time.sleep,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """Take the lock, and wait for it if need be; LockHeld when that took longer than `timeout_s`.

        `on_wait` is called with the seconds waited before every new look, and ends the waiting by raising. A
        caller without it has a warning say what is waited for: that is on stderr where no logging is set up.
        """
        began, look_s, said_at = now(), FIRST_LOOK_S, -_SAY_AGAIN_S
        while not self.try_acquire():
            waited_s = now() - began
            left_s = _SAY_AGAIN_S if timeout_s is None else timeout_s - waited_s
            if left_s <= 0:
                sleep(FIRST_LOOK_S)  # a process that only looks has it for a moment
                if self.try_acquire():
                    break
                raise LockHeld(self.name, self._holder(), waited_s)
            if on_wait is not None:
                on_wait(waited_s)
            elif waited_s - said_at >= _SAY_AGAIN_S:
                _log.warning("waiting for the lock %r, which %s", self.name, self.holding())
                said_at = waited_s
            sleep(min(look_s * random.uniform(0.75, 1.25), left_s))  # noqa: S311
            look_s = min(look_s * 2, LONGEST_LOOK_S)
        if said_at >= 0:
            _log.warning("has the lock %r after %.1f s", self.name, now() - began)

    def release(self) -> None:
        """Free the lock, if this object holds it; the file stays."""
        self._warn_unless_seen()
        self._let_go()

    def _warn_unless_seen(self) -> None:
        if self._fd is not None and not self.is_seen:
            _log.warning(
                "the file of the lock %r was removed while process %d held it: others may have had it",
                self.name,
                os.getpid(),
            )

    def unlink_and_release(self) -> None:
        """Remove the file while the lock is held, and free it; not a file that was put there since."""
        try:
            remove(self._fd, self.path)
        finally:
            self._let_go()

    def _let_go(self) -> None:
        fd, self._fd = self._fd, None
        _held.discard(self)
        if fd is not None:
            unlock(fd)

    def fileno(self) -> int:
        """The descriptor, for a child that is to have the lock too; `release` frees it for both."""
        if self._fd is None:
            raise RuntimeError(f"the lock {self.name!r} is not held by this object")
        return self._fd

    def __enter__(self) -> Self:
        self.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        self._warn_unless_seen()
        with suppress(OSError):  # its directory is another account's: a janitor of that removes the file
            self.unlink_and_release()

    @property
    def is_last(self) -> bool:
        """Whether nobody has a share in it, so that it is free when this object lets go of it."""
        return not any(held_shares(self.path))

    def holder(self) -> Claim | None:
        """The claim of the lock's holder, for a message; that of its last holder where none has it."""
        return told(next(held_shares(self.path), self.path))

    def holding(self) -> str:
        """What holds the lock and since when, in words for one that waits for it."""
        try:
            seen = next(held_shares(self.path), self.path)
            taken_at = datetime.fromtimestamp(seen.stat().st_mtime).astimezone()
        except OSError:
            return f"{self._holder()} holds"
        return f"{self._holder()} holds since {taken_at:%Y-%m-%d %H:%M:%S%z}"

    def _holder(self) -> str:
        return str(self.holder() or "another process")


@dataclass(frozen=True, slots=True)
class Held:
    """A live process has had the lock for so long."""

    age_s: float
    claim: Claim | None


@dataclass(slots=True)
class Free:
    """No process has the lock but the prober, which keeps it until one of the verbs is called."""

    path: Path
    claim: Claim | None
    _fd: int | None

    def fileno(self) -> int:
        """The descriptor, for a child that is to have the lock too; `release` frees it for both."""
        if self._fd is None:
            raise RuntimeError(f"{self.path} was let go of")
        return self._fd

    def release(self) -> None:
        """Give it back; the file stays."""
        fd, self._fd = self._fd, None
        if fd is not None:
            unlock(fd)

    def unlink_and_release(self) -> None:
        """Remove the file while nobody else has or looks at the lock; not one that was put there since."""
        try:
            if self._fd is not None and has_alone(self._fd):
                remove(self._fd, self.path)
        finally:
            self.release()


@dataclass(frozen=True, slots=True)
class Absent:
    """There is no lock file, so none has the lock; a caller that means to act on that takes it first."""


@dataclass(frozen=True, slots=True)
class Unusable:
    """There is nothing to learn from this lock file, and nothing may be done to it."""

    why: str


Probe = Held | Free | Absent | Unusable


def probe(directory: Path, file: str, *, now: Callable[[], float] = time.time) -> Probe:
    """Whether somebody has the lock of that file; where nobody has, we hold it from here on.

    Changes neither a file nor its times. A missing directory is unusable, as it may be mounted later.
    """
    path = directory / file
    try:
        fd = try_lock(path, create=False, shared=True)
        if fd is None:
            return _held_by_another(path, now)
    except FileNotFoundError as exc:
        return (
            _held_by_share(path, now) or Absent()
            if directory.is_dir()
            else Unusable(f"{directory}: {exc.strerror}: it was removed, or is not mounted")
        )
    except OSError as exc:
        return Unusable(f"{path}: {exc.strerror or exc}")
    try:
        if (held := _held_by_share(path, now)) is not None:
            unlock(fd)
            return held
        flaw = _flaw(os.fstat(fd))
        claim = None if flaw else read_claim(fd)
    except (OSError, ValueError) as exc:
        flaw, claim = str(exc), None
    if flaw:
        unlock(fd)
        return Unusable(f"{path}: {flaw}")
    return Free(path, claim, fd)


def _held_by_share(path: Path, now: Callable[[], float]) -> Held | None:
    for share in held_shares(path):
        with suppress(FileNotFoundError):
            return _held_by_another(share, now)
    return None


def _held_by_another(path: Path, now: Callable[[], float]) -> Held:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        age_s = max(0.0, now() - os.fstat(fd).st_mtime)
        claim = read_claim(fd)
    except ValueError:
        claim = None
    finally:
        os.close(fd)
    return Held(age_s, claim)


def _flaw(there: os.stat_result) -> str | None:
    """Why a file is none that a holder of ours made."""
    if not stat.S_ISREG(there.st_mode):
        return _NOT_REGULAR
    if there.st_nlink > 1:
        return "it has another name too"
    if there.st_uid != os.geteuid() != 0:
        return f"it belongs to user {there.st_uid}"
    return None


def _hold_none() -> None:
    """Close the copies of the locks' descriptors that a forked process has."""
    for lock in _held:
        if lock._fd is not None:
            os.close(lock._fd)
            lock._fd = None
    _held.clear()


os.register_at_fork(after_in_child=_hold_none)
