"""Processes as the kernel lists them, the end of many at once, and all that is below a subreaper.

Orphans below a subreaper become its children, whatever sessions, groups and environments they made for
themselves. So the links from child to parent are all that is needed: nobody below can get out, and nobody is
below exactly when the kernel says that there are no children. (Where processes have to be found that are
*not* below one, as from a supervisor, `tree_by_mark` looks for sessions and marks too, and ends them by
`kill_all` as well.)

A signal goes through a pidfd that is compared with what was seen, so that it never meets a stranger that got
the number of one that has ended meanwhile.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple

from queue_workflows import clock as time
from queue_workflows.host.kernel import IS_LINUX

if TYPE_CHECKING:
    import psutil

_PATIENCE_S: Final = 5.0  # a process in uninterruptible sleep dies when the kernel lets it
_LOOK_AGAIN_S: Final = 0.1
_TICK_S: Final = 0.005
_ROUNDS_OF_STOPPING: Final = 100
_ZOMBIE: Final = frozenset("ZXx")
_STILL: Final = _ZOMBIE | frozenset("Tt")


class Member(NamedTuple):
    """One process as it was when looked at; `started` tells it from a later one of the same number."""

    pid: int
    parent: int
    group: int
    session: int
    started: float
    state: str

    @property
    def key(self) -> tuple[int, float]:
        """What is true of this process alone."""
        return self.pid, self.started

    @property
    def is_alive(self) -> bool:
        """Whether it still runs anything."""
        return self.state not in _ZOMBIE


def sees_us() -> bool:
    """Whether /proc is there, and is that of our own PID namespace: in another's, numbers are others'."""
    try:
        return os.readlink("/proc/self") == str(os.getpid())
    except OSError:
        return False


def seen(pid: int) -> Member | None:
    """A process as it is, or None if there is none of this number."""
    if not IS_LINUX:
        return _seen_elsewhere(pid)
    try:
        stat = os.open(f"/proc/{pid}/stat", os.O_RDONLY)
        try:
            # The name stands in brackets and may hold anything, brackets too.
            fields = os.read(stat, 4096).rpartition(b") ")[2].split(None, 20)
        finally:
            os.close(stat)
        parent, group, session, started = (int(fields[number]) for number in (1, 2, 3, 19))
        return Member(pid, parent, group, session, started, fields[0].decode())
    except (OSError, IndexError, ValueError):
        return None


def _seen_elsewhere(pid: int) -> Member | None:
    import psutil

    try:
        process = psutil.Process(pid)
        group, session = os.getpgid(pid), os.getsid(pid)
        return Member(pid, process.ppid(), group, session, process.create_time(), _state_of(process))
    except (psutil.Error, OSError):
        return None


def _state_of(process: psutil.Process) -> str:
    """The letter that Linux has for the state of a process elsewhere."""
    import psutil

    letters = {psutil.STATUS_ZOMBIE: "Z", psutil.STATUS_DEAD: "X", psutil.STATUS_STOPPED: "T"}
    try:
        return letters.get(process.status(), "R")
    except psutil.AccessDenied:
        return "R"


def below(root: int, *, without: Iterable[int] = ()) -> list[Member]:
    """What is below a process, zombies too; not those in `without`, nor what they have below them."""
    spared = frozenset(without)
    return under(root, [member for member in everyone() if member.pid not in spared])


def everyone() -> list[Member]:
    """All processes of this machine, zombies too."""
    names = os.listdir("/proc") if IS_LINUX else ()
    found = (seen(int(name)) for name in names if name.isdigit())
    return [member for member in found if member is not None]


def under(root: int, everybody: Iterable[Member]) -> list[Member]:
    """The members of `everybody` that are below a process."""
    children: dict[int, list[Member]] = {}
    for member in everybody:
        children.setdefault(member.parent, []).append(member)
    found: list[Member] = []
    parents = [root]
    while parents:
        fresh = children.pop(parents.pop(), [])
        found += fresh
        parents += [member.pid for member in fresh]
    return found


def send(number: signal.Signals, members: Iterable[Member]) -> None:
    """Signal those that are still the processes they were."""
    for member in members:
        with suppress(OSError):
            _send(number, member)


def _send(number: signal.Signals, member: Member) -> None:
    try:
        descriptor = os.pidfd_open(member.pid) if IS_LINUX else None
    except ProcessLookupError:
        return
    except OSError:  # a kernel, or a sandbox, without it
        descriptor = None
    if descriptor is None:
        if _now(member) is not None:
            os.kill(member.pid, number)
        return
    try:
        if _now(member) is not None:
            signal.pidfd_send_signal(descriptor, number)
    finally:
        os.close(descriptor)


def _now(member: Member) -> Member | None:
    """The process as it is by now, or None if it has ended and been waited for."""
    now = seen(member.pid)
    return now if now is not None and now.started == member.started else None


def living(members: Iterable[Member]) -> list[Member]:
    """The members that still run something, as they are by now."""
    found = (_now(member) for member in members)
    return [member for member in found if member is not None and member.is_alive]


class Told:
    """Signals each process below this one once; false until there was one."""

    def __init__(self) -> None:
        self._keys: set[tuple[int, float]] = set()

    def __bool__(self) -> bool:
        return bool(self._keys)

    def tell(self, number: signal.Signals, *, only: int | None = None) -> None:
        """Signal those that have not been, or one; also those that came into being while others were."""
        found = [member for member in below(os.getpid()) if only is None or member.pid == only]
        fresh = [member for member in found if member.key not in self._keys]
        send(number, fresh)
        self._keys |= {member.key for member in fresh}


def kill_below(reap: Callable[[], object]) -> list[int]:
    """SIGKILL all that is below this process; returns the pids that live all the same."""
    return kill_all(lambda: below(os.getpid()), reap)


def kill_all(
    look: Callable[[], list[Member]],
    reap: Callable[[], object],
    *,
    patience_s: float = _PATIENCE_S,
    still_s: float = 0.0,
    now: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> list[int]:
    """SIGKILL what `look` finds until it finds none; returns the pids that live all the same.

    All are stopped before any is killed, so that none can fork faster than it is found. `still_s` is how long
    it is waited for each to stand still: what was in the midst of a fork may have a child that is found only
    then. That is for a `look` that does not find the children of what was killed.
    """

    until = now() + patience_s
    while True:
        alive = [member for member in look() if member.is_alive]
        if not alive or now() >= until:
            reap()
            return sorted(member.pid for member in alive)
        killed = _stopped(alive, look, lambda fresh: wait_for(fresh, now() + still_s, now, sleep, _STILL))
        send(signal.SIGKILL, killed)
        reap()
        wait_for(killed, min(until, now() + _LOOK_AGAIN_S), now, sleep)


def _stopped(
    alive: list[Member], look: Callable[[], list[Member]], stand_still: Callable[[list[Member]], None]
) -> list[Member]:
    """Stop all of them, and what they started before they stood still; returns both."""
    known: dict[tuple[int, float], Member] = {}
    for _ in range(_ROUNDS_OF_STOPPING):
        fresh = [member for member in alive if member.key not in known]
        if not fresh:
            break
        send(signal.SIGSTOP, fresh)
        known |= {member.key: member for member in fresh}
        stand_still(fresh)
        alive = [member for member in look() if member.is_alive]
    return list(known.values())


def wait_for(
    members: Iterable[Member],
    until: float,
    now: Callable[[], float],
    sleep: Callable[[float], None],
    states: frozenset[str] = _ZOMBIE,
) -> None:
    """Wait until each of them has ended, or is in one of these states, or until it is time."""
    while now() < until and any(each.state not in states for each in living(members)):
        sleep(_TICK_S)
