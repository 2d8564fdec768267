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
from typing import Final

import psutil

from queue_workflows import clock as time
from queue_workflows.errors import Orphaned
from queue_workflows.host.kernel import IS_LINUX, PR_SET_DUMPABLE, PR_SET_PDEATHSIG, prctl
from queue_workflows.host.processes import tree_below
from queue_workflows.host.processes.pid1 import LAUNCHER_PID
from queue_workflows.host.processes.tree_below import Member, everyone, seen

MARK: Final = "_QWF_TREE"
_KILL_PATIENCE_S: Final = 5.0  # a process in uninterruptible sleep dies when the kernel lets it
_FREEZE_PATIENCE_S: Final = 1.0
_MARKED: Final = f"\0{MARK}=".encode()
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
    if not (alive := [member for member in tree.found() if member.is_alive]):
        # A root that has ended left nobody behind: nothing to stop, and nothing to wait for.
        return []
    if grace_s > 0:
        tree_below.send(signal.SIGTERM, alive)
        tree_below.wait_for(alive, now() + grace_s, now, sleep)
    return tree_below.kill_all(
        *(tree.found, tree.reap_adopted),
        patience_s=_KILL_PATIENCE_S,
        still_s=_FREEZE_PATIENCE_S,
        now=now,
        sleep=sleep,
    )


class _Tree:
    """The members found so far; those that have ended stay, because of the sessions and groups they led."""

    def __init__(self, roots: frozenset[int], mark: str | None, spared: frozenset[int]) -> None:
        self._roots = roots
        self._mark = mark
        self._spared = spared
        self._keys = {member.key for member in map(seen, roots) if member is not None}
        self._leaders = set(roots)

    def found(self) -> list[Member]:
        """What the tree consists of now, with all that has come into it.

        The number of a member that has ended names its session and group while there is anybody in them; only
        after that can a stranger get it. So a number that a stranger has leads nothing any more.
        """
        everybody = _everyone()
        self._leaders -= {each.pid for each in everybody if each.key not in self._keys}
        rest = [each for each in everybody if each.key not in self._keys and each.pid not in self._spared]
        fresh = [each for each in rest if self._mark is not None and mark_of(each.pid).startswith(self._mark)]
        while True:
            self._keys |= {each.key for each in fresh}
            self._leaders |= {each.pid for each in fresh}
            rest = [each for each in rest if each.key not in self._keys]
            fresh = [each for each in rest if self._is_led(each)]
            if not fresh:
                return [each for each in everybody if each.key in self._keys]

    def _is_led(self, member: Member) -> bool:
        return not self._leaders.isdisjoint((member.parent, member.group, member.session))

    def reap_adopted(self) -> None:
        """Where we are PID 1 or a subreaper, the tree's orphans have become our children."""
        for pid, _ in self._keys:
            if pid not in self._roots:
                with suppress(ChildProcessError):
                    os.waitpid(pid, os.WNOHANG)


def _ourselves_and_above() -> frozenset[int]:
    """The processes that no mistake of a caller may end: this process, its ancestors, and init."""
    found, pid = {1, os.getpid()}, os.getppid()
    while pid > 0 and pid not in found:
        found.add(pid)
        above = seen(pid)
        pid = 0 if above is None else above.parent
    return frozenset(found)


def _everyone() -> list[Member]:
    return everyone() if IS_LINUX else [each for each in map(seen, psutil.pids()) if each is not None]


def mark_of(pid: int) -> str:
    """The mark that a process bears, empty where it has none, or none that this user may see."""
    try:
        if not IS_LINUX:
            return psutil.Process(pid).environ().get(MARK, "")
        with open(f"/proc/{pid}/environ", "rb", buffering=0) as variables:
            environ = variables.read()
    except (psutil.Error, OSError):
        return ""
    mark = (b"\0" + environ).partition(_MARKED)[2].partition(b"\0")[0]
    return mark.decode("ascii", "replace")


def marks() -> dict[int, str]:
    """Which processes bear which mark, as far as this user may see it."""
    return {each.pid: mark for each in _everyone() if (mark := mark_of(each.pid))}
