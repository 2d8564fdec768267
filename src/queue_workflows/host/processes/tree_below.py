"""Everything below a process that is a subreaper, and its end; standard library only.

Orphans below a subreaper become its children, whatever sessions, groups and environments they made for
themselves. So the links from child to parent are all that is needed: nobody below can get out, and nobody is
below exactly when the kernel says that there are no children. (Where processes have to be found that are
*not* below one, as from a supervisor, `tree_by_mark` looks for sessions and marks too.)

A signal goes through a pidfd that is compared with what was seen, so that it never meets a stranger that got
the number of one that has ended meanwhile.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Final, NamedTuple

from queue_workflows import clock as time
from queue_workflows.host.kernel import IS_LINUX

_TICK_S: Final = 0.005
_ROUNDS_OF_STOPPING: Final = 100
_ZOMBIE: Final = frozenset("ZXx")


class Member(NamedTuple):
    """One process as it was when looked at; `started` tells it from a later one of the same number."""

    pid: int
    parent: int
    started: int
    state: str

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
    try:
        stat = os.open(f"/proc/{pid}/stat", os.O_RDONLY)
        try:
            # The name stands in brackets and may hold anything, brackets too.
            fields = os.read(stat, 4096).rpartition(b") ")[2].split(None, 20)
        finally:
            os.close(stat)
        return Member(pid, int(fields[1]), int(fields[19]), fields[0].decode())
    except (OSError, IndexError, ValueError):
        return None


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
        descriptor = os.pidfd_open(member.pid)
    except ProcessLookupError:
        return
    except OSError:  # a kernel, or a sandbox, without it
        if _is_still(member):
            os.kill(member.pid, number)
        return
    try:
        if _is_still(member):
            signal.pidfd_send_signal(descriptor, number)
    finally:
        os.close(descriptor)


def _is_still(member: Member) -> bool:
    now = seen(member.pid)
    return now is not None and now.started == member.started


def kill_all(
    look: Callable[[], list[Member]],
    reap: Callable[[], object],
    *,
    patience_s: float,
    now: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> list[int]:
    """SIGKILL what `look` finds until it finds none; returns the pids that live all the same.

    All are stopped before any is killed, so that none can fork faster than it is found.
    """
    until = now() + patience_s
    while True:
        alive = [member for member in look() if member.is_alive]
        if not alive or now() >= until:
            reap()
            return sorted(member.pid for member in alive)
        send(signal.SIGKILL, _stopped(alive, look))
        reap()
        sleep(_TICK_S)


def _stopped(alive: list[Member], look: Callable[[], list[Member]]) -> list[Member]:
    """Stop all of them, and what they started before they stood still; returns both."""
    known: dict[tuple[int, int], Member] = {}
    for _ in range(_ROUNDS_OF_STOPPING):
        fresh = [member for member in alive if (member.pid, member.started) not in known]
        if not fresh:
            break
        send(signal.SIGSTOP, fresh)
        known |= {(member.pid, member.started): member for member in fresh}
        alive = [member for member in look() if member.is_alive]
    return list(known.values())
