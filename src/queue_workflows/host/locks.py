"""What this machine has only one of, held by one process at a time.

          deadline  ├─────────────────────────────────────────────────────────────┤
    life of the job │ ├─────────────────────────────────────────────────────────┤ │
    of its processes│ │  ├──────────────────────────────────────────────────┤   │ │
    of its lock     │ │  │  acquire ├───────── held ─────────┤ release      │   │ │

A lock lives within the life of a process, that within the life of a job, that within a deadline. Each is kept
by what is around it: the kernel frees the lock of a process that ends, however it ends; of a job that has a
lock the worker ends what came with it before it says that the job is over, as far as that can be told
(`roles.leftovers`); a job that reaches its deadline is ended. So a lock that is held has a live owner, and is
waited for; nobody ever takes one away. Where a lock is held for too long, its owner is ended, and the lock is
free.

    free ──try──> opened and flocked ──the file is still the one at its path──> held ──release, death──> free
                          │                                                      │
                          └ another is: somebody removed ours ─> try again       └ close-on-exec: no child
                                                                                   has it that outlives us

The name of the lock, the pid of its holder and the holder's deadline stand in the file, for people and for
`probe`; nothing is decided by them. The file was changed last when its lock was taken. Releasing leaves the
file; only `probe`, which a janitor uses, may remove it, while it holds the lock. Who waited for the removed
file finds out, and opens the one that is there.

A lock belongs to its object, and stays held when nobody refers to that any more: it ends by `release`, by the
end of its `with`, or with the process. A process that was forked holds none of its parent's.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import random
import re
import stat
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from queue_workflows.errors import LockHeld, LockUnusable
from queue_workflows.host.flock import has_alone, is_at, local, lock_directory, remove, try_lock, unlock
from queue_workflows.host.kernel import IS_LINUX

_log = logging.getLogger(__name__)

# By which a file is known as one of these among others of the directory.
SUFFIX: Final = ".hostlock"
# What a job may put before a name (as in `repositories.host_locks`, which is much to import for a word).
ELSEWHERE: Final = "elsewhere:"
FIRST_LOOK_S: Final = 0.01
LONGEST_LOOK_S: Final = 0.25
_SAY_AGAIN_S: Final = 60.0
_LONGEST_STEM: Final = 96
# Elsewhere file systems take `a` and `A` for one name.
_STRANGE: Final = re.compile(r"[^A-Za-z0-9._-]" if IS_LINUX else r"[^a-z0-9._-]")
_LONGEST_CLAIM: Final = 4096
_LONGEST_NOTE: Final = 200
_held: Final[set[HostLock]] = set()


def lock_file_name(name: str) -> str:
    """The name of the lock's file; no two locks share one, because what had to be changed gets a digest."""
    if not name or "\0" in name:
        raise LockUnusable(name, "a lock needs a name")
    stem = _STRANGE.sub("_", name)[:_LONGEST_STEM]
    if stem.startswith("."):
        stem = "_" + stem[1:]
    if stem != name:
        digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()
        stem = f"{stem[: _LONGEST_STEM - 33]}~{digest[:32]}"
    return stem + SUFFIX


@dataclass(frozen=True, slots=True)
class Claim:
    """What a holder wrote down of itself; to be told, not to be trusted."""

    name: str
    pid: int
    deadline_s: float | None = None
    note: str | None = None

    def __str__(self) -> str:
        return f"process {self.pid}" + (f" ({self.note})" if self.note else "")


class HostLock:
    """A lock of this machine, held from `acquire` or `with` until `release`, by one thing at a time.

    Two objects of one name exclude each other in one process too. `deadline_s` is how long the holder means
    to live at most, and `note` what it is, for those who look.
    """

    def __init__(
        self,
        name: str,
        *,
        directory: Path | None = None,
        deadline_s: float | None = None,
        note: str | None = None,
    ) -> None:
        """In `directory`, or where `QWF_LOCK_DIR` says; refuses a network file system."""
        self.name = name
        file = lock_file_name(name)
        if name.startswith(ELSEWHERE):
            raise LockUnusable(
                name,
                f"{ELSEWHERE!r} says where a job may go, and is no part of a lock's name",
                advice=f"leave it out: {name.removeprefix(ELSEWHERE)!r}",
            )
        if directory is None:
            # Here, because who names a directory need not pay for reading all settings.
            from queue_workflows.config import effective_settings

            directory = lock_directory(effective_settings().lock_dir)
        self.path = local(directory) / file
        self._claim = (deadline_s, note and note[:_LONGEST_NOTE])
        self._fd: int | None = None

    @property
    def held(self) -> bool:
        """Whether this object holds the lock."""
        return self._fd is not None

    def try_acquire(self) -> bool:
        """Take the lock if nobody has it."""
        if self._fd is not None:
            raise RuntimeError(f"the lock {self.name!r} is held by this object already")
        try:
            fd = try_lock(self.path)
        except OSError as exc:
            raise LockUnusable(self.name, f"{self.path}: {exc.strerror or exc}") from exc
        if fd is None:
            return False
        self._fd = fd
        _held.add(self)
        _write_claim(fd, Claim(self.name, os.getpid(), *self._claim))
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

        `on_wait` is called with the seconds waited before every new look, and ends the waiting by raising.
        """
        began, look_s, said_at = now(), FIRST_LOOK_S, -_SAY_AGAIN_S
        while not self.try_acquire():
            waited_s = now() - began
            left_s = _SAY_AGAIN_S if timeout_s is None else timeout_s - waited_s
            if left_s <= 0:
                sleep(FIRST_LOOK_S)  # who only looks has it for a moment
                if self.try_acquire():
                    break
                raise LockHeld(self.name, self._holder(), waited_s)
            if waited_s - said_at >= _SAY_AGAIN_S:
                _log.info("waits for the lock %r, which %s holds", self.name, self._holder())
                said_at = waited_s
            if on_wait is not None:
                on_wait(waited_s)
            sleep(min(look_s * random.uniform(0.75, 1.25), left_s))  # noqa: S311
            look_s = min(look_s * 2, LONGEST_LOOK_S)
        if said_at >= 0:
            _log.info("has the lock %r after %.1f s", self.name, now() - began)

    def release(self) -> None:
        """Free the lock, if this object holds it; the file stays."""
        if self._fd is not None and not is_at(self._fd, self.path):
            _log.warning(
                "the file of the lock %r was removed while process %d held it: others may have had it",
                self.name,
                os.getpid(),
            )
        self._let_go()

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

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.release()

    def holder(self) -> Claim | None:
        """Who says to hold the lock, for a message; its last holder where nobody has it."""
        return told(self.path)

    def _holder(self) -> str:
        return str(self.holder() or "another process")


def told(path: Path) -> Claim | None:
    """Who says to hold the lock of a file, or held it last; None where there is nothing to read."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        return _read_claim(fd)
    except (OSError, ValueError):
        return None
    finally:
        os.close(fd)


@dataclass(frozen=True, slots=True)
class Held:
    """Somebody lives who has the lock, for so long."""

    age_s: float
    claim: Claim | None


@dataclass(slots=True)
class Free:
    """Nobody has it but who probed: it stays in that hand until one of the verbs is called."""

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
    """There is no such file, so nobody has the lock; who means to act on that takes it first."""


@dataclass(frozen=True, slots=True)
class Unusable:
    """There is nothing to learn from it, and nothing may be done to it."""

    why: str


Probe = Held | Free | Absent | Unusable


def probe(directory: Path, file: str, *, now: Callable[[], float] = time.time) -> Probe:
    """Whether somebody has the lock of that file; where nobody has, it is in our hand from here on.

    Changes neither a file nor its times. A missing directory is unusable, as it may be mounted later.
    """
    path = directory / file
    try:
        fd = try_lock(path, create=False, shared=True)
        if fd is None:
            return _held_by_another(path, now)
    except FileNotFoundError as exc:
        return (
            Absent()
            if directory.is_dir()
            else Unusable(f"{directory}: {exc.strerror}: it was removed, or is not mounted")
        )
    except OSError as exc:
        return Unusable(f"{path}: {exc.strerror or exc}")
    try:
        flaw = _flaw(os.fstat(fd))
        claim = None if flaw else _read_claim(fd)
    except (OSError, ValueError) as exc:
        flaw, claim = str(exc), None
    if flaw:
        unlock(fd)
        return Unusable(f"{path}: {flaw}")
    return Free(path, claim, fd)


def _held_by_another(path: Path, now: Callable[[], float]) -> Probe:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        age_s = max(0.0, now() - os.fstat(fd).st_mtime)
        claim = _read_claim(fd)
    except ValueError:
        claim = None
    finally:
        os.close(fd)
    return Held(age_s, claim)


def _flaw(there: os.stat_result) -> str | None:
    """Why a file is none that a holder of ours made."""
    if not stat.S_ISREG(there.st_mode):
        return "it is not a regular file"
    if there.st_nlink > 1:
        return "it has another name too"
    if there.st_uid != os.geteuid() != 0:
        return f"it belongs to user {there.st_uid}"
    return None


def _write_claim(fd: int, claim: Claim) -> None:
    """Say who holds it; a lock is held without that too, as on a full disk."""
    given = {key: value for key, value in asdict(claim).items() if value is not None}
    try:
        os.ftruncate(fd, 0)
        os.pwrite(fd, (json.dumps(given) + "\n").encode()[:_LONGEST_CLAIM], 0)
        os.utime(fd)
    except OSError as exc:
        _log.warning("the lock %r is held, which cannot be written down: %s", claim.name, exc)


def _read_claim(fd: int) -> Claim | None:
    """What stands in the file, None for nothing; ValueError for what no holder of ours wrote."""
    text = os.pread(fd, _LONGEST_CLAIM, 0)
    if not text:
        return None
    try:
        match json.loads(text):
            case {"name": str(name), "pid": int(pid), **rest}:
                deadline_s, note = rest.get("deadline_s"), rest.get("note")
                if isinstance(deadline_s, float | int | None) and isinstance(note, str | None):
                    return Claim(name, pid, deadline_s, note)
    except ValueError:
        pass
    raise ValueError("what stands in it is not a holder's")


def _hold_none() -> None:
    """In a process that was forked, which has copies of the descriptors."""
    for lock in _held:
        if lock._fd is not None:
            os.close(lock._fd)
            lock._fd = None
    _held.clear()


os.register_at_fork(after_in_child=_hold_none)
