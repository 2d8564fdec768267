"""Commands that are not ours, started on behalf of this process, and none of which outlives it.

A `Spawner` starts its small process (see `shim`) at the first command and again when that was killed. `run`
blocks its thread until the command and all that it started have ended; the thread sleeps in a read, so that
many at once cost nothing while they run.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from types import TracebackType
from typing import Any, Final, Self, cast

from queue_workflows.errors import ProcessLost, SpawnRefused
from queue_workflows.host.keeper import LENGTH, STOP
from queue_workflows.host.kernel import IS_LINUX
from queue_workflows.host.launcher import Child, spawn
from queue_workflows.host.lifetime import MARK, kill_tree, kill_trees
from queue_workflows.host.orphans import COMMAND, end_orphans

_ROOT: Final = str(Path(__file__).parents[2])
_PROGRAM: Final = (
    "import sys; root, control, worker = sys.argv[1:]; sys.path.insert(0, root); "
    "from queue_workflows.host.shim import main; main(int(control), int(worker))"
)
_END_PATIENCE_S: Final = 15.0


@dataclass(frozen=True, slots=True)
class Command:
    """What to run, where, with which environment, for how long, and where its output goes.

    No link below `beneath` is followed on the way to where it works and to its output.
    """

    argv: Sequence[str]
    env: Mapping[str, str]
    cwd: Path
    stdout_path: Path
    stderr_path: Path
    timeout_s: float | None = None
    grace_s: float = 10.0
    stdout_cap: int = 16 * 1024 * 1024
    stderr_cap: int = 1024 * 1024
    beneath: Path | None = None


@dataclass(frozen=True, slots=True)
class Ended:
    """How a command ended; `survivors` are processes of it that even SIGKILL has not ended yet.

    `stopped` is the reason of the `Stop` that ended it, `mark` what its processes had in their environment,
    `stderr_tail` the end of what it said.
    """

    code: int | None
    signal: int | None
    timed_out: bool
    stopped: str | None
    seconds: float
    stdout_bytes: int
    stdout_truncated: bool
    stderr_bytes: int
    stderr_truncated: bool
    output_error: str | None = None
    survivors: tuple[int, ...] = ()
    mark: str = ""
    stderr_tail: str = ""


class Stop:
    """A wish that a command ends, to be made from any thread, before it starts or while it runs."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._tell: Callable[[float | None], None] | None = None
        self._grace_s: float | None = None
        self.reason: str | None = None

    def request(self, reason: str, *, grace_s: float | None = None) -> None:
        """SIGTERM, the grace (by default the command's), SIGKILL; asked again, the grace can only shrink."""
        with self._lock:
            self.reason = self.reason or reason
            self._grace_s = grace_s
            if self._tell is not None:
                self._tell(grace_s)

    def _listen(self, tell: Callable[[float | None], None] | None) -> None:
        with self._lock:
            self._tell = tell
            if tell is not None and self.reason is not None:
                tell(self._grace_s)


class Spawner:
    """Runs commands for this process; thread-safe. `close` ends all of them at once."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._control: socket.socket | None = None
        self._child: Child | None = None
        self._closed = False

    def run(self, command: Command, *, stop: Stop | None = None) -> Ended:
        """Run it to its end; `SpawnRefused` if it cannot start, `ProcessLost` if its keeper was killed."""
        stop = stop or Stop()
        ours, theirs = socket.socketpair()
        with ours:
            with theirs:
                mark = self._hand_over(theirs)
            message = _message(command, mark)
            try:
                ours.sendall(LENGTH.pack(len(message)) + message)
                stop._listen(lambda grace: _tell(ours, command.grace_s if grace is None else grace))
                report = read_report(ours)
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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _hand_over(self, theirs: socket.socket) -> str:
        """Give a keeper its end of the socket; returns the mark that its command is to bear."""
        with self._lock:
            for _ in range(2):
                child, control = self._at_work()
                with suppress(OSError):  # it was killed: the next one takes it
                    socket.send_fds(control, [b"+"], [theirs.fileno()])
                    return f"{child.mark}{COMMAND}{uuid.uuid4().hex}"
                self._forget()
        raise ProcessLost("the spawner")

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


def _message(command: Command, mark: str) -> bytes:
    """The command as the keeper reads it; half characters stand for the bytes that they were decoded from."""
    return json.dumps(
        {
            "argv": list(command.argv),
            "env": {**command.env, MARK: mark},
            "cwd": os.fspath(command.cwd),
            "stdout": os.fspath(command.stdout_path),
            "stderr": os.fspath(command.stderr_path),
            "beneath": None if command.beneath is None else os.fspath(command.beneath),
            "stdout_cap": command.stdout_cap,
            "stderr_cap": command.stderr_cap,
            "timeout_s": command.timeout_s,
            "grace_s": command.grace_s,
        }
    ).encode()


def _tell(ours: socket.socket, grace_s: float) -> None:
    with suppress(OSError):  # it has just ended
        ours.sendall(STOP.pack(grace_s))


def read_report(ours: socket.socket) -> dict[str, Any] | None:
    """What a keeper says at the end; None where it was killed before it had said all of it."""
    parts = bytearray()
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
        signal=signal.Signals(-code) if code is not None and code < 0 else None,
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
    )
