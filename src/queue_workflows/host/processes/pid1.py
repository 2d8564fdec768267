"""PID 1 of a PID namespace, as of most containers: starts one command and does what the kernel leaves to it.

The kernel treats the first process of a namespace unlike any other: a signal that it has no handler for is
dropped, even the dead man's SIGKILL, and it has to wait for every orphan. So `launcher` turns such a
process, by exec, into this script, which runs the real command as its child.

    PID 1:  qwf worker … ──exec, signals held──> this script ──spawn──> the same `qwf worker …`, not PID 1
                                                     │
                     SIGCHLD: reap all; was it the command, end with its status
                     other:   pass it on to the command, however often it comes

Signals are held (blocked) from before the exec and taken one at a time, so none is lost on the way: one that
comes before the command exists waits for it, one that meets the command before it has set its handlers ends
it, as signals do. Only the first milliseconds, until Python has started, are beyond reach. The command gets
its own process group, in the foreground of a terminal, so that Ctrl-C reaches it once and not twice. When it
ends, this process does, and the kernel kills what is left in the namespace.

It runs with nothing but the standard library and no site packages, because it stays for the command's life.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

LAUNCHER_PID: Final = "QWF_LAUNCHER_PID"
# Loaded by its path, as there is no package to import it from here.
_OOM_KILLS: Final = os.path.join(os.path.dirname(os.path.abspath(__file__)), "oom_kills.py")
# What a process is called that its own timer is about to kill; the kernel keeps 15 characters.
KILLED_BY_TIMER: Final = "qwf-lease-over"
TIMER_IN_WORDS: Final = "by its own timer, as its leases could not be renewed"

# The first two cannot be caught; stopping is between the terminal and each process; faults are our own.
_NOT_HELD: Final = frozenset(
    {
        signal.SIGKILL,
        signal.SIGSTOP,
        signal.SIGTSTP,
        signal.SIGTTIN,
        signal.SIGCONT,
        signal.SIGABRT,
        signal.SIGBUS,
        signal.SIGFPE,
        signal.SIGILL,
        signal.SIGSEGV,
        signal.SIGSYS,
        signal.SIGTRAP,
    }
)


def held_signals() -> set[int]:
    """What is passed on, SIGCHLD, and SIGTTOU, which would stop a process that moves the foreground."""
    return {int(number) for number in signal.valid_signals() - _NOT_HELD}


def shell_status(wait_status: int) -> int:
    """A wait status as a shell says it: 128 + n for one killed by signal n."""
    code = os.waitstatus_to_exitcode(wait_status)
    return code if code >= 0 else 128 - code


def run(command: Sequence[str], environ: Mapping[str, str]) -> int:
    """Run the command to its end and return its status; signals are held already, or are from here on."""
    _hide_memory()
    held = held_signals()
    signal.pthread_sigmask(signal.SIG_BLOCK, held)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # inherited as ignored, it would make statuses vanish
    child = os.posix_spawn(
        command[0],
        list(command),
        {**environ, LAUNCHER_PID: str(os.getpid())},
        setpgroup=0,
        setsigmask=(),
        setsigdef=(signal.SIGPIPE, signal.SIGXFSZ),  # the two that Python ignores at its start
    )
    with suppress(OSError):  # no terminal, or not ours
        os.tcsetpgrp(0, child)
    kills = runpy.run_path(_OOM_KILLS)["MemoryCgroups"]().of(child)
    while True:
        number = signal.sigwaitinfo(held).si_signo
        if number != signal.SIGCHLD:
            _pass_on(child, number)
            continue
        is_announced = has_announced_kill(child)
        if (status := reap(child)) is not None:
            if status == signal.SIGKILL and (words := _killed_by(kills, is_announced=is_announced)):
                print(f"process {child} was killed {words}", file=sys.stderr, flush=True)
            return shell_status(status)


def _killed_by(kills: Any, *, is_announced: bool) -> str:
    """What sent SIGKILL to the command, in words; empty if that is not known."""
    if is_announced:
        return TIMER_IN_WORDS
    out_of_memory = kills and kills.explain()
    return out_of_memory.in_words() if out_of_memory else ""


def _hide_memory() -> None:
    """What this process was started with is for the command alone; see `tree_by_mark.hide_memory`."""
    if sys.platform.startswith("linux"):
        import ctypes

        ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)  # PR_SET_DUMPABLE


def _pass_on(child: int, number: int) -> None:
    if number != signal.SIGTTOU:
        os.kill(child, number)  # not reaped yet, so this pid is still the command's


def has_announced_kill(pid: int) -> bool:
    """Whether a child that was not waited for yet has said that its own timer is about to kill it."""
    try:
        with open(f"/proc/{pid}/comm") as name:
            return name.read().strip() == KILLED_BY_TIMER
    except OSError:
        return False


def reap(child: int) -> int | None:
    """Wait for all that have ended; the wait status of the command if it is among them."""
    found = None
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return found
        if pid == 0:
            return found
        if pid == child:
            found = status


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:], os.environ))
