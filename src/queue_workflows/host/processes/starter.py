"""The process that started this one, and what it means for a program that owns something.

A process of ours tells its pid to what it starts, and what a job starts bears a mark; `tree_by_mark` has how
the kernel tells of their end. A shell, cron or a container's first process tells nothing: there the parent is
taken for the starter. It may not be, where the starter died before anybody asked for its end to be told:

    our session is our own        we, or `setsid`, `cron`, systemd, a container's runtime, left every other
    our parent is in it           it forked us
    our parent is in another      no fork leads to that: our starter is gone, and this process was adopted
    our parent has no number      it is outside of this PID namespace, as with `docker exec`

The kernel takes the thread that forked for the parent, and signals its end too. A starter that told nothing
may well fork in a thread that is over soon, so its end comes by a signal of its own, and counts only once the
parent is another process.
"""

from __future__ import annotations

import os
import signal
from typing import Final

from queue_workflows.errors import Orphaned
from queue_workflows.host.kernel import IS_LINUX, LEFT_ALONE
from queue_workflows.host.processes.tree_by_mark import MARK, die_with_parent, take_launcher_pid

_OUTSIDE: Final = 0


def bound_to_starter(named: int | None = None, *, detach: bool = False) -> int | None:
    """Get SIGTERM when the process that started this one ends; its pid, None for one that is detached.

    `named` is the pid of that process, where the caller knows it. Raises Orphaned where it is gone already.
    To be called early, from the main thread.
    """
    told = take_launcher_pid()
    if detach:
        return None
    if named is None and (told is not None or MARK in os.environ):
        starter = os.getppid() if told is None else told
        die_with_parent(starter)
        return starter
    starter = os.getppid() if named is None else named
    if IS_LINUX:
        signal.signal(LEFT_ALONE, lambda _number, _frame: _end_without(starter))
    die_with_parent(starter, with_signal=LEFT_ALONE)
    if named is None and _is_adopted(starter):
        raise Orphaned(None, starter)
    return starter


def _end_without(starter: int) -> None:
    if os.getppid() != starter:
        os.kill(os.getpid(), signal.SIGTERM)


def _is_adopted(parent: int) -> bool:
    """Whether our parent cannot have forked us: we are in a session that neither it nor this process made."""
    session = os.getsid(0)
    if parent == _OUTSIDE or session == os.getpid():
        return False
    try:
        return os.getsid(parent) != session
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
