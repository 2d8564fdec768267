"""Commands that are not ours, started on behalf of this process, and none of which outlives it.

A `Spawner` starts its small process (see `spawner`) at the first command and again when that was killed.
`run` blocks its thread until the command and all that it started have ended; the thread sleeps in a read, so
that many at once cost nothing while they run.
"""

from __future__ import annotations

import errno
import fcntl
import json
import math
import os
import select
import signal
import socket
import subprocess
import sys
import termios
import time
import uuid
from array import array
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import Any, Final, Self, TypeAlias, cast

from queue_workflows.errors import ProcessLost, SpawnRefused
from queue_workflows.host.commands.command import Command, Ended, Stop
from queue_workflows.host.commands.keeper import LENGTH, SAID, STARTED, STOP
from queue_workflows.host.commands.orphans import COMMAND, end_orphans
from queue_workflows.host.directories.below import OpenDirectory, path_of
from queue_workflows.host.kernel import IS_LINUX
from queue_workflows.host.processes import tree_below
from queue_workflows.host.processes.launcher import Child, spawn
from queue_workflows.host.processes.tree_by_mark import MARK, kill_tree, kill_trees

# Is called when a command runs, with a function that waits so many seconds and says whether it has ended.
Started: TypeAlias = Callable[[Callable[[float], bool]], None]
_ROOT: Final = str(Path(__file__).parents[3])
_PROGRAM: Final = (
    "import sys; root, control, worker = sys.argv[1:]; sys.path.insert(0, root); "
    "from queue_workflows.host.commands.spawner import main; main(int(control), int(worker))"
)
_END_PATIENCE_S: Final = 15.0
# The kernel queues no more for a process that does not take it.
_FULL: Final = frozenset({errno.EAGAIN, errno.ENOBUFS, errno.ETOOMANYREFS})
_FULL_S: Final = 0.1
# How often it is looked after a command that says nothing.
_FIRST_LOOK_S: Final = 1.0
_LONGEST_LOOK_S: Final = 10.0
# How long a command that was told to end may take to be read by a keeper at all.
_UNREAD_S: Final = 10.0
# How much longer than its time and grace a command may take to be ended and told of.
_OVERDUE_S: Final = 60.0


class Spawner:
    """Runs commands for this process; thread-safe. `close` ends all of them at once."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._control: socket.socket | None = None
        self._child: Child | None = None
        self._closed = False

    def run(
        self,
        command: Command,
        *,
        stop: Stop | None = None,
        started: Started | None = None,
        said: Callable[[], None] | None = None,
    ) -> Ended:
        """Run it to its end; `SpawnRefused` if it cannot start, `ProcessLost` if its keeper was killed.

        `started` is called in this thread once the command runs, and ends it by what it raises; `said`, while
        that waits for the end or afterwards, once the command has printed its `line`.
        """
        stop = stop or Stop()
        ours, theirs = socket.socketpair()
        with ours:
            with theirs:
                mark = self._hand_over(theirs, command.beneath, stop)
            message = _message(command, mark, tells_start=started is not None)
            try:
                waiting = _Waiting(ours, command, stop, self._resume, said)
                waiting.send(LENGTH.pack(len(message)) + message)
                stop._listen(waiting.tell)
                if started is not None and waiting.has_started():
                    started(waiting.ends_within)
                waiting.until_it_speaks()
                report = read_report(ours)
            except _Overdue:
                report = None
                kill_trees((), mark=mark, grace_s=0)
            except OSError:
                report = None
            finally:
                stop._listen(None)
        if report is None:
            self._look_after()
            raise ProcessLost(command.argv[0])
        if not IS_LINUX:  # no subreapers: a daemon may have got out
            kill_trees((), mark=mark, grace_s=command.grace_s)
        return _ended(command, mark, report, stop.reason)

    def close(self) -> None:
        """End all that is below, at once, and wait for it; nothing can be run any more."""
        with self._lock:
            self._closed = True
            child, control, self._child, self._control = self._child, self._control, None, None
        _end(child, control)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _hand_over(self, theirs: socket.socket, beneath: Path | OpenDirectory | None, stop: Stop) -> str:
        """Give a keeper its end of the socket; returns the mark that its command is to bear.

        Where no further keeper can be started for a while, as many commands wait as the kernel queues for
        them, and further ones here, where a stop or `close` ends their wait.
        """
        given = (
            [theirs.fileno(), beneath.descriptor] if isinstance(beneath, OpenDirectory) else [theirs.fileno()]
        )
        gone = 0
        while gone < 2:
            with self._lock:
                child, control = self._at_work()
                try:
                    _give(control, given)
                    return f"{child.mark}{COMMAND}{uuid.uuid4().hex}"
                except OSError as wrong:
                    if wrong.errno not in _FULL:  # it was killed: the next one takes it
                        self._forget()
                        gone += 1
                        continue
            if stop.reason is not None:
                break
            time.sleep(_FULL_S)
        raise ProcessLost("the spawner")

    def _resume(self) -> None:
        """Have the spawner go on, if a command has stopped it."""
        with self._lock:
            seen = None if self._child is None else tree_below.seen(self._child.pid)
            if seen is not None and seen.state == "T":
                tree_below.send(signal.SIGCONT, [seen])

    def _at_work(self) -> tuple[Child, socket.socket]:
        if self._closed:
            raise ProcessLost("the spawner")
        self._forget_the_dead()
        if self._child is None or self._control is None:
            end_orphans()
            self._child, self._control = _start()
        return self._child, self._control

    def _look_after(self) -> None:
        """A keeper was killed; the spawner sees to what it left, unless it was killed too."""
        with self._lock:
            self._forget_the_dead()

    def _forget_the_dead(self) -> None:
        if self._child is not None and self._child.poll() is not None:
            self._forget()

    def _forget(self) -> None:
        """Have done with a spawner that somebody killed, and with what its keepers may not have ended."""
        child, control, self._child, self._control = self._child, self._control, None, None
        _end(child, control)
        if child is not None:
            kill_trees((), mark=child.mark, grace_s=0)


class _Overdue(TimeoutError):
    """A command should have been ended long ago: nobody knows what its keeper is at."""


class _Waiting:
    """A worker's end of the socket to a keeper, which may be slow to come or may have been tampered with."""

    def __init__(
        self,
        ours: socket.socket,
        command: Command,
        stop: Stop,
        resume: Callable[[], None],
        said: Callable[[], None] | None = None,
    ) -> None:
        self._ours, self._command, self._stop, self._resume = ours, command, stop, resume
        self._said = said
        self._read_at: float | None = None
        # When the grace of a stop is over.
        self._ends_at = math.inf
        self._look_s = _FIRST_LOOK_S
        self._owed: bytes | None = None
        self._paying = Lock()

    def send(self, message: bytes) -> None:
        """Send all of the message, even if nobody reads it yet."""
        rest = memoryview(message)
        while rest:
            try:
                rest = rest[self._ours.send(rest, socket.MSG_DONTWAIT) :]
            except BlockingIOError:
                self._await(select.POLLOUT)

    def tell(self, grace_s: float | None) -> None:
        """Have the command ended."""
        self._is_unread()
        given_s = self._command.grace_s if grace_s is None else grace_s
        with self._paying:
            self._owed = STOP.pack(given_s)
            self._ends_at = min(self._ends_at, time.monotonic() + given_s)
        self._pay()

    def _pay(self) -> None:
        """Send the stop that is owed; while the command itself fills the socket it stays owed."""
        with self._paying:
            if self._owed is not None:
                try:
                    self._ours.send(self._owed, socket.MSG_DONTWAIT)
                except BlockingIOError:
                    return
                except OSError:  # it has just ended
                    pass
                self._owed = None

    def has_started(self) -> bool:
        """Wait until the command runs; false if it never does."""
        self.until_it_speaks()
        if self._ours.recv(len(STARTED), socket.MSG_PEEK) != STARTED:
            return False
        return bool(self._ours.recv(len(STARTED)))

    def ends_within(self, seconds: float) -> bool:
        """Wait so long at most; whether it has ended by then."""
        poll = select.poll()
        poll.register(self._ours, select.POLLIN)
        return bool(poll.poll(seconds * 1000)) and not self._takes_word()

    def until_it_speaks(self) -> None:
        """Wait until there is something to read, beside the word of its line."""
        self._await(select.POLLIN)
        while self._takes_word():
            self._await(select.POLLIN)

    def _takes_word(self) -> bool:
        """Take the word that it has printed its line, if that is what is there to be read."""
        if self._ours.recv(len(SAID), socket.MSG_PEEK) != SAID:
            return False
        self._ours.recv(len(SAID))
        if self._said is not None:
            self._said()
        return True

    def _await(self, event: int) -> None:
        """Raises `TimeoutError` when nobody has read what is to stop, and `_Overdue`."""
        poll = select.poll()
        poll.register(self._ours, event)
        while not poll.poll(self._look_s * 1000):
            self._look_s = min(self._look_s * 2, _LONGEST_LOOK_S)
            self._resume()
            asked_at, now = self._stop.asked_at, time.monotonic()
            is_unread = self._is_unread()  # looked at first: what is owed is unread itself
            self._pay()
            if is_unread:
                if asked_at is not None and now > asked_at + _UNREAD_S:
                    raise TimeoutError
            elif self._is_overdue(asked_at):
                raise _Overdue

    def _is_unread(self) -> bool:
        """Whether no keeper has read the command yet, as where none can be started."""
        if self._read_at is None:
            left = array("i", [0])
            with suppress(OSError):
                fcntl.ioctl(self._ours, termios.TIOCOUTQ, left)
            if left[0] == 0:
                self._read_at = time.monotonic()
        return self._read_at is None

    def _is_overdue(self, asked_at: float | None) -> bool:
        """Whether the command is overdue; its times begin when a keeper reads of it, which may be late."""
        if self._read_at is None:
            return False
        limit, grace_s = self._command.timeout_s, self._command.grace_s
        if asked_at is not None:
            # A stop comes before the time is up, and its grace may be longer.
            ends_at = max(self._ends_at, self._read_at + grace_s)
        else:
            ends_at = math.inf if limit is None else self._read_at + limit + grace_s
        return time.monotonic() > ends_at + _OVERDUE_S


def _give(control: socket.socket, given: list[int]) -> None:
    descriptors = array("i", given)
    control.sendmsg([b"+"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, descriptors)], socket.MSG_DONTWAIT)


def _start() -> tuple[Child, socket.socket]:
    ours, theirs = socket.socketpair()
    command = [sys.executable, "-I", "-S", "-c", _PROGRAM, _ROOT, str(theirs.fileno()), str(os.getpid())]
    # Of our environment it gets what Python itself may need to start, and no secret.
    needed = {name: os.environ[name] for name in ("LD_LIBRARY_PATH",) if name in os.environ}
    with theirs:
        child = spawn(
            command, env=needed, pass_launcher=False, stdout=subprocess.DEVNULL, pass_fds=[theirs.fileno()]
        )
    return child, ours


def _end(child: Child | None, control: socket.socket | None) -> None:
    """A spawner ends by itself, with all below it, when its socket does; a stopped one is to be killed."""
    if control is not None:
        with control, suppress(OSError):
            control.shutdown(socket.SHUT_RDWR)  # closing would not do, if somebody has inherited it
    if child is not None:
        try:
            child.wait(_END_PATIENCE_S)
        except subprocess.TimeoutExpired:
            kill_tree(child.pid, mark=child.mark, grace_s=0)
            child.wait()


def _message(command: Command, mark: str, *, tells_start: bool) -> bytes:
    """The command as the keeper reads it; half characters stand for the bytes that they were decoded from."""
    return json.dumps(
        {
            "argv": list(command.argv),
            "env": {**command.env, MARK: mark},
            "cwd": os.fspath(command.cwd),
            "stdout": os.fspath(command.stdout_path),
            "stderr": os.fspath(command.stderr_path),
            "beneath": None if command.beneath is None else path_of(command.beneath),
            "stdout_cap": command.stdout_cap,
            "stderr_cap": command.stderr_cap,
            "timeout_s": command.timeout_s,
            "grace_s": command.grace_s,
            "tells_start": tells_start,
            "line": command.line,
        }
    ).encode()


def read_report(ours: socket.socket) -> dict[str, Any] | None:
    """What a keeper says at the end; None where it was killed before it had said all of it."""
    parts = bytearray()
    # Where a keeper ends without having read that it is to stop, the kernel says so in place of the end.
    with suppress(ConnectionResetError):
        while part := ours.recv(65_536):
            parts += part
    try:
        return cast("dict[str, Any]", json.loads(parts))
    except ValueError:
        return None


def _ended(command: Command, mark: str, report: dict[str, Any], reason: str | None) -> Ended:
    if "refused" in report:
        raise SpawnRefused(command.argv[0], *report["refused"])
    status, wrong = report["status"], report["wrong"]
    code = None if status is None else os.waitstatus_to_exitcode(status)
    return Ended(
        code=code if code is not None and code >= 0 else None,
        signal=-code if code is not None and code < 0 else None,
        timed_out=report["timed_out"],
        stopped=reason if report["stopped"] else None,
        seconds=report["seconds"],
        stdout_bytes=report["stdout"][0],
        stdout_truncated=report["stdout"][1],
        stderr_bytes=report["stderr"][0],
        stderr_truncated=report["stderr"][1],
        output_error=None if wrong is None else os.strerror(wrong),
        survivors=tuple(report["survivors"]),
        mark=mark,
        stderr_tail=report["last_words"],
        killed_by=report["killed_by"],
    )
