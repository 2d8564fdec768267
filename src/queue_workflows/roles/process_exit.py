"""How a process of ours goes when a job in it will not: all at once, and with what the job started."""

from __future__ import annotations

import logging
import os
import resource
import signal
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final, NoReturn

import psutil

from queue_workflows import clock as time
from queue_workflows.db.connections.exhaustion import has_room
from queue_workflows.errors import ExitCode
from queue_workflows.host.processes import last_word
from queue_workflows.host.processes.pid1 import LAUNCHER_PID
from queue_workflows.host.processes.tree_by_mark import MARK, kill_trees
from queue_workflows.roles import exec_inheritance
from queue_workflows.roles.identity import Identity
from queue_workflows.telemetry.provider import flush
from queue_workflows.thread_start import start_thread

_log = logging.getLogger(__name__)
_FLUSH_S: Final = 1.0
_DIES_WITHIN_S: Final = 1.0
# Descriptors for the last moments of a process that has no more.
_ROOM: Final = 64


@contextmanager
def leaving_after(seconds: float, status: int) -> Iterator[None]:
    """Do something that what a job left running may keep from its end, and end this process if it does."""
    done = threading.Event()
    start_thread(lambda: None if done.wait(seconds) else _leave_it_behind(status), "qwf-end")
    try:
        yield
    finally:
        done.set()


def _leave_it_behind(status: int) -> None:
    _log.warning("left behind: what a job started on the event loop and what does not end")
    flush(_FLUSH_S)
    leave(status)


def leave(status: int, last: Callable[[], None] | None = None) -> NoReturn:
    """End this process from any thread; no `finally` of the job runs, which may never get that far.

    Nothing comes between `last` and the end: what a job does until then, it does before that. It ends also
    where a job raises something in this thread meanwhile, which then comes to nobody.
    """
    try:
        end_children()
        _flush()
        last_word.own.announce(status)
        _do(last)
    finally:
        os._exit(status)


def die_of(number: int) -> NoReturn:
    """End this process by a signal that nobody hears any more, which says best what ended it."""
    try:
        end_children()
        _flush()
        os.kill(os.getpid(), number)
        # A job may have held it back in every thread.
        time.sleep(_DIES_WITHIN_S)
    finally:
        os._exit(ExitCode.FAILED)


def _do(last: Callable[[], None] | None) -> None:
    if last is not None:
        # What cannot be done any more is seen to when the leases have lapsed.
        with suppress(Exception):
            last()


def execute_anew(
    launcher_pid: int | None, identity: Identity, jobs_done: int, last: Callable[[], None] | None = None
) -> NoReturn:
    """Replace this process by a fresh one of the same command and pid: nothing that was loaded stays."""
    exec_inheritance.own.restore()
    if launcher_pid is not None:
        os.environ[LAUNCHER_PID] = str(launcher_pid)
    identity.hand_on(jobs_done)
    last_word.own.hand_on()
    _reap()
    _flush()
    # A job may have held signals back in this thread, and an exec hands that on: nobody would hear a stop.
    # These wait until the fresh interpreter can say what ended it: `cli/shared/signals` lets them through.
    signal.pthread_sigmask(signal.SIG_SETMASK, (signal.SIGINT, signal.SIGTERM))
    _do(last)
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])  # noqa: S606


def bear_mark(*, is_launched: bool) -> None:
    """Let all that jobs start be known as ours, which a launcher of ours sees to for those that it starts.

    Another's is not ours alone, as where a job starts a worker. Executed anew we have our own already.
    """
    above, own = os.environ.get(MARK, ""), f"{os.getpid()}-"
    if not above or not (is_launched or above.rpartition("/")[2].startswith(own)):
        own += uuid.uuid4().hex
        os.environ[MARK] = f"{above}/{own}" if above else own
    exec_inheritance.own.mark = os.environ[MARK]


def own_mark() -> str | None:
    """What all bear that our jobs start, also where one of them has emptied the environment."""
    return exec_inheritance.own.mark or os.environ.get(MARK)


def end_children() -> None:
    """What its jobs left running goes before a process of ours does, and before its job is another's.

    Also a daemon, which is nobody's child: it has our mark.
    """
    # A process that is out of descriptors cannot look for them; then what started it has to.
    with suppress(psutil.Error, ValueError, OSError):
        _make_room()
        children = [child.pid for child in psutil.Process().children()]
        kill_trees(children, grace_s=0, mark=own_mark())


def _make_room() -> None:
    """Allow a few descriptors more, where a job has used up all that were allowed."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard and not has_room(2):
        resource.setrlimit(
            resource.RLIMIT_NOFILE, (soft + _ROOM if hard < 0 else min(soft + _ROOM, hard), hard)
        )


def _reap() -> None:
    """Wait for children that have ended: what comes after us knows nothing of them."""
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):
            stream.flush()
    logging.shutdown()
