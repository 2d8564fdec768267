"""The janitor of a machine: ends what owners left behind that are gone, and nothing that has an owner.

A thing that a job owns outside the database (a deployed server, a device, a port, a directory) has a name,
and its owner holds the lock of that name for longer than the thing is there. Nobody asks whether an owner is
well: the kernel frees the lock when it ends, however it ends. So a process that can take the lock knows that
there is no owner, and while it has the lock there cannot be one.

    discover ──names──> those that match the whole pattern ──the lock of each──┬── held by somebody: live
                                                                              └── held by us: an orphan
    orphan ──still there?──yes──> teardown ──gone?──yes──> lock file removed, then the lock let go
                 └──no: its owner was in time───────────────^     └──no, raised, too slow: let go, tried later

A new run of the name waits for the lock meanwhile, so that it never meets what is being removed. Two
janitors cannot have one lock, and the second finds the thing gone. What a look decides is this table:

    the thing     its lock                      what is done
    ───────────   ───────────────────────────   ────────────────────────────────────────────────────────────
    is there      free, or has no file          reap: its owner is gone, as all are after a reboot
    is there      held                          leave: it is live
    is there      held, its file was removed    flag: its owner lives, and nobody else can see that
                  or its directory replaced
    is there      held for over two deadlines   flag: it is live all the same, and somebody should look
    is there      cannot be judged, or the      skip, and say why: a doubt never ends anything
                  directory is missing
    is there      any, reaped in vain before    wait for its next try, which comes later each time
    is not        free for a while              tidy: the lock file is removed while we hold the lock
    is not        free since a moment ago       leave: somebody may be about to make the thing
    is not        held                          leave, or flag as above
    is not        cannot be judged              skip, and say why

Names outside the pattern are no candidates: they are not even looked at. The deadline is the kind's, or for a
lock without a thing what its holder wrote down, to be told and not to be acted on.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Final

from queue_workflows.host.janitor.resources import DEADLINE_S, ResourceKind
from queue_workflows.host.locks.lock import (
    Absent,
    Free,
    Held,
    HostLock,
    Probe,
    Unusable,
    lock_file_name,
    probe,
)
from queue_workflows.host.locks.owner_note import SUFFIX, Claim

STALE_S: Final = 3600.0
_FIRST_S: Final = 10.0
_MOST_S: Final = 600.0


class Action(StrEnum):
    """What a look at a thing and its lock comes to; the last two are what became of `REAP`."""

    REAP = "reap"
    LEAVE = "leave"
    FLAG = "flag"
    SKIP = "skip"
    WAIT = "wait"
    TIDY = "tidy"
    REAPED = "reaped"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Removed:
    """A live process has the lock of a file that is not there any more."""

    pid: int


@dataclass(frozen=True)
class Verdict:
    """What is done about one name, and why; `kind` is empty for a lock file without a thing."""

    kind: str
    name: str
    deed: Action
    why: str
    pid: int | None = None
    age_s: float | None = None


def judge(
    thing: bool, lock: Probe | Removed, *, deadline_s: float, idle_s: float = 0.0
) -> tuple[Action, str]:
    """What the table above says of a lock; `idle_s` is how long ago a lock that is free was taken."""
    if isinstance(lock, Unusable):
        return Action.SKIP, lock.why
    if isinstance(lock, Held | Removed):
        return _judge_live(lock, deadline_s)
    if thing:
        return Action.REAP, "it has no lock" if isinstance(lock, Absent) else "nobody holds its lock"
    if isinstance(lock, Free) and idle_s > STALE_S:
        return Action.TIDY, "nobody holds it"
    return Action.LEAVE, "nobody holds it, for a short while"


def _judge_live(lock: Held | Removed, deadline_s: float) -> tuple[Action, str]:
    if isinstance(lock, Removed):
        return Action.FLAG, "live, though its lock file is not there any more; held"
    if lock.age_s > 2 * deadline_s:
        return Action.FLAG, f"held for {lock.age_s:.0f} s, and its deadline is {deadline_s:g} s"
    return Action.LEAVE, f"live: held for {lock.age_s:.0f} s"


def candidates(kind: ResourceKind, found: Iterable[object]) -> tuple[list[str], int]:
    """The names of a kind among those found, each once, and how many others there were."""
    names = list(found)
    fit = sorted({name for name in names if isinstance(name, str) and kind.takes(name)})
    return fit, sum(not kind.takes(name) for name in names)


@dataclass(frozen=True)
class FailedTries:
    """How often one was reaped in vain, and when it is tried again."""

    times: int = 0
    due_at: float = 0.0

    def again(self, now: float) -> FailedTries:
        """The state after one more failed try: the delay doubles."""
        return FailedTries(self.times + 1, now + min(_MOST_S, _FIRST_S * 2.0 ** min(self.times, 30)))


@dataclass(frozen=True)
class Found:
    """A verdict, and the lock, held by us, where there is something to do with it."""

    verdict: Verdict
    lock: HostLock | None = None


def look_at(
    kind: ResourceKind,
    name: str,
    directory: Path,
    removed: Callable[[], Mapping[str, int]] = dict,
    *,
    dry: bool = False,
) -> Found:
    """Judge a candidate; with its lock in hand if it is to be reaped, unless this is only to tell.

    `removed` says which process has which removed lock file, and is asked before anything is reaped.
    """
    file = lock_file_name(name)
    lock: Probe | Removed = probe(directory, file)
    if isinstance(lock, Free):
        lock.release()
    # Also of a free one: in a directory that was put in the place of another it is not the owner's.
    if isinstance(lock, Absent | Free) and (pid := removed().get(file)):
        lock = Removed(pid)
    deed, why = judge(True, lock, deadline_s=kind.deadline_s)
    verdict = _verdict(kind.name, name, deed, why, lock)
    if dry or deed is not Action.REAP:
        return Found(verdict)
    # What was free is taken as any owner takes it, so that what waits for it reads which process has it.
    ours = HostLock(name, directory=directory, deadline_s=kind.timeout_s, note="a janitor, reaping")
    if not ours.try_acquire():
        return Found(replace(verdict, deed=Action.LEAVE, why="live: somebody has just taken its lock"))
    return Found(verdict, ours)


def tidy(
    directory: Path,
    spared: Iterable[str],
    kinds: Sequence[ResourceKind],
    *,
    now: float,
    dry: bool = False,
) -> list[Verdict]:
    """Judge the lock files of all but the names that are there, and remove those that are stale."""
    files = {lock_file_name(name) for name in spared}
    verdicts = []
    for file in sorted(lock_files(directory)):
        if file not in files and (verdict := _look_at_file(directory, file, kinds, now, dry)) is not None:
            verdicts.append(verdict)
    return verdicts


def lock_files(directory: Path) -> Sequence[str]:
    """What lies in the directory and is called like a lock; none where there is no directory."""
    try:
        return [name for name in os.listdir(directory) if name.endswith(SUFFIX)]
    except FileNotFoundError:
        return []


def _look_at_file(
    directory: Path, file: str, kinds: Sequence[ResourceKind], now: float, dry: bool
) -> Verdict | None:
    try:
        idle_s = now - (directory / file).lstat().st_mtime
    except FileNotFoundError:
        return None
    lock = probe(directory, file)
    if isinstance(lock, Absent):
        return None
    claim = None if isinstance(lock, Unusable) else lock.claim
    deed, why = judge(False, lock, deadline_s=_deadline(claim, kinds), idle_s=idle_s)
    if isinstance(lock, Free):
        if deed is Action.TIDY and not dry:
            lock.unlink_and_release()
        else:
            lock.release()
    return _verdict("", claim.name if claim else file, deed, why, lock)


def _deadline(claim: Claim | None, kinds: Sequence[ResourceKind]) -> float:
    """The deadline that the holder stated, else that of the kind that takes its name."""
    told = [claim.deadline_s] if claim is not None and claim.deadline_s else []
    told += [kind.deadline_s for kind in kinds if claim is not None and kind.takes(claim.name)]
    return next(iter(told), DEADLINE_S)


def _verdict(kind: str, name: str, deed: Action, why: str, lock: Probe | Removed) -> Verdict:
    if isinstance(lock, Removed):
        return Verdict(kind, name, deed, why, lock.pid)
    if not isinstance(lock, Held):
        return Verdict(kind, name, deed, why)
    return Verdict(kind, name, deed, why, lock.claim.pid if lock.claim else None, round(lock.age_s, 3))
