"""What the jobs of a worker started and left running.

    a job that owns nothing here and ends by itself   left alone: host apps keep pools in a worker
    one that has a host lock, or is `exclusive`       ended before its end is written and its lock freed
    one that was told to stop                         ended before its end is written
    the worker ends                                   all that is left is ended

What came with a job began after it did, and is a child of ours. So is what forked twice while a worker's only
job owns something: then orphans come to us. Else it bears our mark and is nobody's child. Of many jobs at
once only the children of a job's own thread can be told to be its: orphans, and what coroutines start, stay.

Adopted processes have to be waited for, others are waited for by what started them. To the kernel both are
alike, so we adopt only while all that comes is to be ended and waited for.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import psutil

from queue_workflows import clock as time
from queue_workflows.engine.execution.guards import HeldJob
from queue_workflows.engine.limits.held_host_locks import KeptLocks
from queue_workflows.host.kernel import IS_LINUX, PR_SET_CHILD_SUBREAPER, prctl
from queue_workflows.host.processes.lease_timer import boottime
from queue_workflows.host.processes.tree_below import Member, everyone, seen, under
from queue_workflows.host.processes.tree_by_mark import MARK, kill_trees, mark_of
from queue_workflows.repositories.sql.checks import EXCLUSIVE
from queue_workflows.repositories.sql.claimed_job import ClaimedJob
from queue_workflows.roles.process_exit import own_mark

_log = logging.getLogger(__name__)

# How long what is left may take over its end, at most.
GRACE_S: Final = 10.0
# What ends may leave others, as a shell does.
_ROUNDS: Final = 5
# By what limits the time of a call and does not see that it is over.
_RAISED_AT_MOST: Final = 200
_TICKS_A_SECOND: Final = os.sysconf("SC_CLK_TCK")


def owns_something(job: ClaimedJob) -> bool:
    """Whether a job has something to itself that others wait for."""
    return job.host_lock is not None or (job.limit_key is not None and job.limit_key.startswith(EXCLUSIVE))


class Leftovers:
    """Called by the thread of a job, before and after its function; an ordinary job pays for a clock."""

    def __init__(self, locks: KeptLocks, *, cancel_grace_s: float, is_concurrent: bool) -> None:
        self._locks = locks
        self._grace_s = min(GRACE_S, cancel_grace_s / 2)
        self._is_concurrent = is_concurrent
        self._mark = own_mark()

    def before(self, job: ClaimedJob) -> float:
        """The moment at which a job begins, for `after`; what it starts bears our mark."""
        if owns_something(job):
            self._adopt(True)
        self.mark()
        return boottime()

    def mark(self) -> None:
        """Have what a job starts bear our mark, also where one before it has emptied the environment."""
        if self._mark is not None and MARK not in os.environ:
            os.environ[MARK] = self._mark

    def after(self, held: HeldJob, began: float) -> None:
        """End what came with a job that owns something or was told to stop."""
        owns = owns_something(held.job)
        holds = owns or (self._locks.held and self._locks.has_of((held.job.fence,)))
        if held.ctx.stopping is None and not holds:
            return
        # Its function has ended: what follows is none of its time.
        held.is_ending = True
        grace_s = max(0.0, min(self._grace_s, (held.end_at - time.monotonic()) / 2))
        since = int(began * _TICKS_A_SECOND)
        if self._is_concurrent:
            _end(lambda: _of_this_thread(since), grace_s)
            return
        _end(lambda: [] if owns and is_childless() else _came(since), grace_s)
        if owns:
            self._adopt(False)
            if not is_childless():
                _wait_for(since)

    def _adopt(self, do: bool) -> None:
        if IS_LINUX and not self._is_concurrent:
            with suppress(OSError):
                prctl(PR_SET_CHILD_SUBREAPER, int(do))


def end_all(grace_s: float) -> None:
    """End what a worker's jobs have left, at its own end, whatever they still raise in this thread."""
    for _ in range(_RAISED_AT_MOST):
        try:
            _end(lambda: _came(0), grace_s)
        except BaseException:  # noqa: S112 - what jobs raise, which has nobody to come to any more
            continue
        return
    _log.warning("what jobs left running could not be looked for: something is raised again and again")


def is_childless() -> bool:
    """Whether this process has no child, also none that has ended; one question to the kernel."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return True
    return False


def _end(look: Callable[[], list[Member]], grace_s: float) -> None:
    with _deaf_to_children():
        for _ in range(_ROUNDS):
            if not (found := [member.pid for member in look() if member.is_alive]):
                return
            try:
                kill_trees(found, grace_s=grace_s)
            except (psutil.Error, ValueError, OSError) as exc:
                _log.warning("what a job left running could not be ended: %s", exc)
                return
            grace_s = 0.0
    if left := [member.pid for member in look() if member.is_alive]:
        _log.warning("what a job left running does not end: %s", " ".join(map(str, left)))


def _came(since: int) -> list[Member]:
    """Our children since then, and what bears our mark and is below none of ours."""
    everybody, ourselves, mark = everyone(), os.getpid(), own_mark()
    spared = _trackers()
    below = {member.pid for member in under(ourselves, everybody)} | {ourselves}
    later = [each for each in everybody if each.started >= since and each.pid not in spared]
    children = [each for each in later if each.parent == ourselves]
    if mark is None:
        return children
    return children + [each for each in later if each.pid not in below and mark_of(each.pid).startswith(mark)]


def _of_this_thread(since: int) -> list[Member]:
    """The children of this thread since then."""
    try:
        text = Path(f"/proc/self/task/{threading.get_native_id()}/children").read_text()
    except OSError:
        return []
    found = [seen(int(pid)) for pid in text.split()]
    spared = _trackers()
    return [each for each in found if each is not None and each.started >= since and each.pid not in spared]


def _trackers() -> set[int]:
    """What Python keeps beside a process that shares memory, which ends after it and tidies up."""
    module = sys.modules.get("multiprocessing.resource_tracker")
    pid = getattr(getattr(module, "_resource_tracker", None), "_pid", None)
    return set() if pid is None else {pid}


def _wait_for(since: int) -> None:
    """Wait for children that have ended; what comes back to us has no other parent to do it."""
    for each in everyone():
        if each.parent == os.getpid() and each.started >= since and not each.is_alive:
            with suppress(ChildProcessError):
                os.waitpid(each.pid, os.WNOHANG)


@contextmanager
def _deaf_to_children() -> Iterator[None]:
    """Keep handlers of SIGCHLD out of the way: those of some libraries raise when a child of theirs dies."""
    handler = signal.getsignal(signal.SIGCHLD)
    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        yield
        return
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGCHLD, handler)
