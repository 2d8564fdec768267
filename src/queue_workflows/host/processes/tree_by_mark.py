"""How a process ends with the one that started it, and how a whole process tree is ended.

Down, from parent to child: the child asks the kernel for a signal when its parent dies (PR_SET_PDEATHSIG),
and then compares its parent with the pid that the launcher handed in, because a parent that died before the
asking sends nothing. "Parent" is, to the kernel, the *thread* that spawned: when that thread ends the child
gets the signal, although the process lives on. So children are spawned from a thread that stays, such as the
main one.

`kill_tree` is the one place where processes are killed. A tree is found anew each time it is looked at, since
processes start others while they are being ended:

      its root
    + the children of any member            (also orphans, when a member is a subreaper)
    + the sessions and groups that members lead      (a child that forked twice and is nobody's child now)
    + those with the mark in their environment       (that, and its own session: a daemon)

      SIGTERM to all ──grace──> SIGSTOP to all, until they stand still and nobody new is found ──> SIGKILL

Members are stopped before they are killed, so that none can fork while another dies: a dead parent's children
could not be traced back. The mark is put there by `launcher.spawn`; marks nest, so killing a worker reaches
the daemons of its jobs. A process that means to outlive its tree drops the mark from its environment and
moves to a session of its own, as the keeper of the embedded server does.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable, MutableMapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import psutil

from queue_workflows import clock as time
from queue_workflows.errors import Orphaned
from queue_workflows.host.kernel import IS_LINUX, PR_SET_DUMPABLE, PR_SET_PDEATHSIG, prctl
from queue_workflows.host.processes.pid1 import LAUNCHER_PID

MARK: Final = "_QWF_TREE"
_TICK_S: Final = 0.02
_KILL_PATIENCE_S: Final = 5.0  # a process in uninterruptible sleep dies when the kernel lets it
_FREEZE_PATIENCE_S: Final = 1.0
_ENDED: Final = frozenset({psutil.STATUS_DEAD, psutil.STATUS_ZOMBIE})
_STANDING_STILL: Final = _ENDED | {psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP}
_MARKED: Final = f"\0{MARK}=".encode()
_CHUNK: Final = 65_536
SHORTEST_MARK: Final = 32  # random enough that nobody else's begins with it


def take_launcher_pid(environ: MutableMapping[str, str] = os.environ) -> int | None:
    """The pid of our launcher, as that told it; taken out, as it is not true of our children."""
    told = environ.pop(LAUNCHER_PID, "")
    return int(told) if told.isascii() and told.isdigit() else None


def die_with_parent(launcher_pid: int | None, *, with_signal: int = signal.SIGTERM) -> bool:
    """Get the signal when our parent dies; whether the kernel promised it, which it does on Linux only.

    None means that nobody of ours started this process (a shell or an init system did): it is on its own. To
    be called from the main thread, since the promise ends with the thread that asked for it. Raises Orphaned
    when our parent is not the launcher any more; a parent of 1 is right only where the launcher is PID 1.
    """
    if launcher_pid is None:
        return False
    if IS_LINUX:
        prctl(PR_SET_PDEATHSIG, with_signal)
    parent = os.getppid()
    if parent != launcher_pid:
        raise Orphaned(launcher_pid, parent)
    return IS_LINUX


def hide_memory() -> None:
    """Let no other process of our user read this one's environment and memory, where the DSN stands.

    It takes the right to trace any process, as root has, to read them all the same, to attach a debugger or
    to get a core dump. It ends with an exec, so what this process starts is as open as any other.
    """
    if IS_LINUX:
        prctl(PR_SET_DUMPABLE, 0)


@dataclass(frozen=True)
class _Seen:
    """One process as it was when looked at; `began` tells it from a later one of the same number."""

    pid: int
    began: float
    parent: int
    group: int
    session: int
    mark: str

    @property
    def key(self) -> tuple[int, float]:
        """What is true of this process alone."""
        return self.pid, self.began


def kill_tree(
    pid: int,
    *,
    grace_s: float,
    mark: str | None = None,
    sleep: Callable[[float], None] = time.sleep,
    now: Callable[[], float] = time.monotonic,
) -> list[int]:
    """End the process and all that it started: SIGTERM, the grace, SIGKILL; the pids that live all the same.

    The pid must be of a child that nobody has waited for yet, else it may be somebody else's by now; waiting
    for it stays with the caller. `mark` is `Child.mark`, for what the root started and let go of. A stopped
    member is not woken for its SIGTERM: it would go on with work that it may have lost.
    """
    return kill_trees([pid], grace_s=grace_s, mark=mark, sleep=sleep, now=now)


def kill_trees(
    pids: Iterable[int],
    *,
    grace_s: float,
    mark: str | None = None,
    sleep: Callable[[float], None] = time.sleep,
    now: Callable[[], float] = time.monotonic,
) -> list[int]:
    """End several at once as `kill_tree` ends one: together they take no longer than the slowest."""
    roots, spared = frozenset(pids), _ourselves_and_above()
    if unfit := sorted(pid for pid in roots if pid <= 1 or pid in spared):
        raise ValueError(f"process {unfit[0]} is not one to kill")
    if mark is not None and len(mark) < SHORTEST_MARK:
        raise ValueError(f"{mark!r} is no mark: too many processes could bear it")
    tree = _Tree(roots, mark, spared)
    if not tree.alive() and not tree.look():
        # A root that has ended left nobody behind: nothing to stop, and nothing to wait for.
        return []
    if grace_s > 0:
        tree.signal(signal.SIGTERM)
        _wait(tree.alive, now() + grace_s, sleep, now)
    tree.freeze(now() + _FREEZE_PATIENCE_S, sleep, now)
    until = now() + _KILL_PATIENCE_S
    while True:
        tree.signal(signal.SIGKILL)
        left = _wait(tree.alive, until, sleep, now)
        # What came into being all the same, as from a thread that was slow to stop, may bear the mark.
        if not tree.look() or now() >= until:
            break
    tree.reap_adopted()
    return left


class _Tree:
    """The members found so far; those that have ended stay, because of the sessions and groups they led."""

    def __init__(self, roots: frozenset[int], mark: str | None, spared: frozenset[int]) -> None:
        self._roots = roots
        self._mark = mark
        self._spared = spared
        # Signals meet this process or none.
        self._members: dict[tuple[int, float], psutil.Process | None] = {}
        self._leaders = set(roots)
        everyone = _everyone()
        self._grow(everyone, fresh=[seen for seen in everyone if seen.pid in roots])

    def look(self) -> list[psutil.Process]:
        """Add what the tree consists of now; returns those that are new.

        The number of a member that has ended names its session and group while there is anybody in them; only
        after that can a stranger get it. So a number that a stranger has leads nothing any more.
        """
        everyone = _everyone()
        self._leaders -= {seen.pid for seen in everyone if seen.key not in self._members}
        return self._grow(everyone, fresh=[])

    def _grow(self, everyone: list[_Seen], fresh: list[_Seen]) -> list[psutil.Process]:
        found: list[psutil.Process] = []
        rest = [seen for seen in everyone if seen.key not in self._members and seen.pid not in self._spared]
        while True:
            for seen in fresh:
                self._members[seen.key] = process = _process_of(seen)
                found += [] if process is None else [process]
            self._leaders |= {seen.pid for seen in fresh}
            rest = [seen for seen in rest if seen.key not in self._members]
            fresh = [seen for seen in rest if self._belongs(seen)]
            if not fresh:
                return found

    def _processes(self) -> list[psutil.Process]:
        return [process for process in self._members.values() if process is not None]

    def _belongs(self, seen: _Seen) -> bool:
        marked = self._mark is not None and seen.mark.startswith(self._mark)
        return marked or not self._leaders.isdisjoint((seen.parent, seen.group, seen.session))

    def freeze(self, until: float, sleep: Callable[[float], None], now: Callable[[], float]) -> None:
        """Stop all; one that was in the midst of a fork is looked at again once it stands still."""
        self.look()
        self.signal(signal.SIGSTOP)
        while True:
            _wait(self.moving, until, sleep, now)
            fresh = self.look()
            if not fresh or now() >= until:
                return
            self.signal(signal.SIGSTOP, fresh)

    def signal(self, number: signal.Signals, to: Iterable[psutil.Process] | None = None) -> None:
        for process in self._processes() if to is None else to:
            # Gone already, or not ours to signal: then it is among those that are reported as alive.
            with suppress(psutil.Error):
                process.send_signal(number)

    def alive(self) -> list[int]:
        return sorted(process.pid for process in self._processes() if _status(process) not in _ENDED)

    def moving(self) -> list[int]:
        return [process.pid for process in self._processes() if _status(process) not in _STANDING_STILL]

    def reap_adopted(self) -> None:
        """Where we are PID 1 or a subreaper, the tree's orphans have become our children."""
        for process in self._processes():
            if process.pid not in self._roots:
                with suppress(ChildProcessError):
                    os.waitpid(process.pid, os.WNOHANG)


def _ourselves_and_above() -> frozenset[int]:
    """The processes that no mistake of a caller may end: this process, its ancestors, and init."""
    try:
        return frozenset({1, os.getpid(), *(parent.pid for parent in psutil.Process().parents())})
    except psutil.Error:  # one of them has just ended
        return frozenset({1, os.getpid(), os.getppid()})


def _everyone() -> list[_Seen]:
    found = (_seen(pid) for pid in psutil.pids())
    return [seen for seen in found if seen is not None]


def _seen(pid: int) -> _Seen | None:
    """A process as it is; on Linux read without detours, as a supervisor looks at all of them often."""
    try:
        if not IS_LINUX:
            process = psutil.Process(pid)
            group, session = os.getpgid(pid), os.getsid(pid)
            return _Seen(pid, process.create_time(), process.ppid(), group, session, _mark_of(process))
        # The name stands in brackets and may hold anything, brackets too.
        fields = _read(f"/proc/{pid}/stat").rpartition(b") ")[2].split(None, 20)
        parent, group, session, began = (int(fields[number]) for number in (1, 2, 3, 19))
    except (psutil.Error, OSError, IndexError, ValueError):
        return None
    try:
        environ = _read(f"/proc/{pid}/environ")
    except OSError:  # another user's, or ended: it has no mark that we could see
        environ = b""
    mark = (b"\0" + environ).partition(_MARKED)[2].partition(b"\0")[0]
    return _Seen(pid, began, parent, group, session, mark.decode("ascii", "replace"))


def _read(path: str) -> bytes:
    fd = os.open(path, os.O_RDONLY)
    try:
        chunks = [os.read(fd, _CHUNK)]
        while len(chunks[-1]) == _CHUNK:
            chunks.append(os.read(fd, _CHUNK))
    finally:
        os.close(fd)
    return b"".join(chunks)


def _process_of(seen: _Seen) -> psutil.Process | None:
    """What signals it, if the number is its own still."""
    try:
        process = psutil.Process(seen.pid)
    except psutil.Error:
        return None
    now = _seen(seen.pid)
    return process if now is not None and now.began == seen.began else None


def _mark_of(process: psutil.Process) -> str:
    try:
        return process.environ().get(MARK, "")
    except (psutil.Error, OSError):  # another user's, or ended: it has no mark that we could see
        return ""


def marks() -> dict[int, str]:
    """Which processes bear which mark, as far as this user may see it."""
    found = {}
    for pid in psutil.pids():
        with suppress(psutil.Error):
            if mark := _mark_of(psutil.Process(pid)):
                found[pid] = mark
    return found


def _status(process: psutil.Process) -> str:
    try:
        return process.status() if process.is_running() else psutil.STATUS_DEAD
    except psutil.NoSuchProcess:  # also a zombie, which the kernel tells little of
        return psutil.STATUS_DEAD
    except psutil.AccessDenied:
        return psutil.STATUS_RUNNING


def _wait(
    alive: Callable[[], list[int]], until: float, sleep: Callable[[float], None], now: Callable[[], float]
) -> list[int]:
    """Wait until none is alive or it is time; returns those alive then."""
    while (left := alive()) and now() < until:
        sleep(_TICK_S)
    return left
