"""Starting processes of ours: as PID 1 of a container, and as children that a supervisor watches.

Children are started by exec, never by a bare fork: that would hand them locked locks, open connections
and half a program's threads. Each gets a session of its own, so that a terminal's Ctrl-C reaches the
supervisor alone and the whole of a child can be found by its session; the pid of its launcher, which it
compares with its parent (see `tree_by_mark`); and a mark in its environment, which its descendants inherit.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import IO, Final, Protocol

from queue_workflows.host.processes import pid1
from queue_workflows.host.processes.last_word import PIPE, LastWord
from queue_workflows.host.processes.pid1 import LAUNCHER_PID
from queue_workflows.host.processes.tree_by_mark import MARK

_Stream = int | IO[bytes] | None
_ISOLATED: Final = ("-I", "-S")


def own_command(arguments: Sequence[str]) -> list[str]:
    """The command that runs `qwf` with these arguments on the interpreter, and the import rules, of ours."""
    safe_path = ["-P"] if sys.flags.safe_path else []
    return [sys.executable, *safe_path, "-m", "queue_workflows", *arguments]


def run_as_child_if_pid1(argv: Sequence[str] | None = None) -> None:
    """Nothing, unless this process is PID 1: then it becomes the launcher, and this call does not return.

    The child runs `qwf` with `argv`, or by default the very command line that this process was started with;
    there this call returns, as the child is not PID 1. To be called early, before there are threads.
    """
    if os.getpid() != 1:
        return
    command = [sys.executable, *sys.orig_argv[1:]] if argv is None else own_command(argv)
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, pid1.held_signals())
    try:
        os.execv(sys.executable, [sys.executable, *_ISOLATED, pid1.__file__, *command])  # noqa: S606
    finally:  # only reached when the exec failed
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class Started(Protocol):
    """What a supervisor asks of a process of its own: one that `spawn` started, or a fork server forked."""

    @property
    def pid(self) -> int:
        """Its own until it was waited for."""

    @property
    def mark(self) -> str:
        """What `kill_tree` finds its descendants by."""

    @property
    def returncode(self) -> int | None:
        """The status that `poll` found."""

    @property
    def is_lost(self) -> bool:
        """Whether somebody else may wait for it, so that its pid may become another's."""

    def has_left_nothing(self) -> bool:
        """Whether it is certain that nothing that it started lives; to be asked once it has ended."""

    def poll(self) -> int | None:
        """Wait for it if it has ended; its status, as Popen gives it."""

    def chose(self, status: int) -> bool:
        """Whether its own code decided on this end."""

    def begun(self) -> frozenset[int]:
        """The jobs that its threads began last; empty where that is not known."""


class Child(subprocess.Popen[bytes]):
    """A started process; `mark` is what `kill_tree` finds its descendants by."""

    mark: str
    last_word: LastWord | None = None
    is_lost = False

    def has_left_nothing(self) -> bool:
        """False, as to be certain would take a look at every process."""
        return False

    def chose(self, status: int) -> bool:
        """Whether its own code decided on this end; one that was given no pipe is believed."""
        return self.last_word is None or self.last_word.announced(self.pid, status)

    def begun(self) -> frozenset[int]:
        """The jobs that its threads began last."""
        return frozenset() if self.last_word is None else self.last_word.begun()


def spawn(
    command: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    pass_launcher: bool = True,
    cwd: str | os.PathLike[str] | None = None,
    stdin: _Stream = subprocess.DEVNULL,
    stdout: _Stream = None,
    stderr: _Stream = None,
    pass_fds: Sequence[int] = (),
    with_last_word: bool = False,
    mark_room: str = "",
) -> Child:
    """Start a command in a session of its own; `env` replaces our environment.

    To be called from a thread that stays: a child that dies with its parent dies with the thread that spawned
    it. The child inherits that thread's signal mask, so it must not hold back what a child should hear.
    `pass_launcher=False` is for commands that are not ours, `with_last_word` for those of ours that announce
    how they end; `mark_room` stands behind its mark, for one that forks others.
    """
    environ = dict(os.environ if env is None else env)
    environ.pop(LAUNCHER_PID, None)
    if pass_launcher:
        environ[LAUNCHER_PID] = str(os.getpid())
    above = environ.get(MARK) or os.environ.get(MARK)
    mark = f"{above}/{uuid.uuid4().hex}" if above else uuid.uuid4().hex
    environ[MARK] = mark + mark_room
    last_word = LastWord() if with_last_word else None
    if last_word is not None:
        environ[PIPE] = str(last_word.fd)
        pass_fds = [*pass_fds, last_word.fd]
    try:
        child = Child(
            command,
            env=environ,
            cwd=cwd,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            pass_fds=pass_fds,
            start_new_session=True,
        )
    finally:
        if last_word is not None:
            last_word.handed_over()
    child.last_word = last_word
    child.mark = mark
    return child


def watch(child: Started) -> int:
    """A descriptor that becomes readable when the child has ended, for a selector; the caller closes it.

    The child is not waited for yet, so its pid stays its own until `child.poll()`. Where the kernel has no
    pidfd, a thread waits and closes the other end of a pipe.
    """
    if child.returncode is not None:
        raise ProcessLookupError(f"process {child.pid} has ended and been waited for")
    try:
        return os.pidfd_open(child.pid)
    except (AttributeError, OSError) as exc:
        if isinstance(exc, ProcessLookupError):
            raise
    if not isinstance(child, subprocess.Popen):
        raise ProcessLookupError(f"process {child.pid} is not a child, and cannot be watched without pidfd")
    readable, writable = os.pipe()
    threading.Thread(target=_close_at_end, args=(child, writable), name="qwf-watch", daemon=True).start()
    return readable


def tell(child: Started, fd: int, number: int) -> None:
    """Send a signal to a child that is watched by `fd`, and to no other that may have its pid by now."""
    with suppress(ProcessLookupError):
        try:
            signal.pidfd_send_signal(fd, number)
        except (AttributeError, OSError) as exc:
            if isinstance(exc, ProcessLookupError):
                raise
            # Not by Popen, which would wait for it.
            os.kill(child.pid, number)


def _close_at_end(child: subprocess.Popen[bytes], writable: int) -> None:
    try:
        child.wait()
    finally:
        os.close(writable)
