"""One command from its start to the end of all that it started: output, time, stop, tree. See `spawner`.

    running ──time is up, or told to stop──> ending: SIGTERM to the command ──grace──> SIGKILL to all
       │                                          │ it ended, or some seconds passed
       │                                          └──> SIGTERM to all
       └─ the command ended, others of it live ────────^ (after a moment in which they may end by themselves)
       └─ nobody is left ──> what the pipes still hold, then the report

The command is told first and alone, as it may have an end of its own to see to: a script that closes its
browser waits in vain for one that the same signal has ended.

What the command prints goes to files here, so that neither the worker's memory nor its interpreter lock has
a part in it: up to a cap, and beyond it the bytes are counted and thrown away.
"""

from __future__ import annotations

import errno
import json
import os
import select
import signal
import socket
import struct
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import cache
from typing import Any, Final

from queue_workflows.host.commands.cgroups import CommandCgroup, SpawnerCgroup
from queue_workflows.host.commands.output_files import Capped, HeadAndTail, LineWatch, Sink
from queue_workflows.host.directories.below import Beneath, OpenDirectory, directory_beneath
from queue_workflows.host.kernel import IS_LINUX, PR_SET_CHILD_SUBREAPER, PR_SET_PDEATHSIG, prctl
from queue_workflows.host.processes import tree_below
from queue_workflows.host.processes.oom_kills import OomKills, memory_cgroup

LENGTH: Final = struct.Struct("!I")
STOP: Final = struct.Struct("!d")  # how much grace is left
# Before the report, as JSON may begin with it, where the worker asks to be told that the command has begun.
STARTED: Final = b"\n"
# So is this, once it has printed the line that the worker waits for.
SAID: Final = b" "
NEWS: Final = struct.Struct("!cI")  # from a keeper to the spawner: busy or free, and its pid
_COMMANDS: Final = 1000
_IDLE_S: Final = 10.0
# How long after a command a keeper is taken for busy: of several at once it has the next one by then.
_SOON_S: Final = 0.2 if hasattr(select, "EPOLLEXCLUSIVE") else 0.02
_LINGER_S: Final = 0.5
# How long a command that is ended sees to what it started before that is told too, and no more of its grace.
_ALONE_S, _ALONE_SHARE = 5.0, 0.25
_BUSY_TRIES: Final = 20
_RESET: Final = (
    *(signal.SIGPIPE, signal.SIGXFSZ, signal.SIGCHLD, signal.SIGTERM),
    *(signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2),
)


class Keeper:
    """Sees to one command after another, each to the end of all that it started."""

    def __init__(
        self, control: socket.socket, tell: int, spawner: int, cgroups: SpawnerCgroup | None
    ) -> None:
        self._control, self._tell, self._spawner = control, tell, spawner
        self._cgroup = None if cgroups is None else cgroups.cgroup(str(os.getpid()))
        self._woken, wake = os.pipe()
        for descriptor in (self._woken, wake):
            os.set_blocking(descriptor, False)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        if IS_LINUX:
            prctl(PR_SET_CHILD_SUBREAPER, 1)
            prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
        self._wait = _waiting_for(control, self._woken)

    def run(self) -> None:
        """Keep commands until the worker or spawner is gone, or so many keepers have too little to do."""
        served, is_busy = 0, False
        while served < _COMMANDS:
            given = self._next(_SOON_S if is_busy else _IDLE_S if served else None)
            if given is None:
                if not is_busy:
                    return
                # Not before a moment without a command: the spawner would be woken for each.
                is_busy = False
                os.write(self._tell, NEWS.pack(b"-", os.getpid()))
                continue
            if not is_busy:
                is_busy = True
                os.write(self._tell, NEWS.pack(b"+", os.getpid()))
            worker, held = given
            with worker:
                if not self._serve(worker, held):
                    os._exit(1)
            os.chdir("/")
            served += 1

    def _next(self, patience_s: float | None) -> tuple[socket.socket, list[int]] | None:
        """The worker's socket for the next command, and what is open for that; None when none will come."""
        until = None if patience_s is None else time.monotonic() + patience_s
        while not self._is_orphaned():
            events = self._wait(None if until is None else max(until - time.monotonic(), 0.0))
            if not events:
                return None
            if (self._woken, select.POLLIN) in events:
                os.read(self._woken, 4096)
                continue
            try:
                said, descriptors, _, _ = socket.recv_fds(self._control, 1, 2, socket.MSG_DONTWAIT)
            except BlockingIOError:  # another one took it
                continue
            if not said:
                return None
            if descriptors:
                for descriptor in descriptors:
                    os.set_inheritable(descriptor, False)
                first, *held = descriptors
                # Told what it is, it does not ask the kernel.
                return socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, 0, first), held
        return None

    def _serve(self, worker: socket.socket, held: list[int]) -> bool:
        """One command to its end, and the report of it; whether nothing is left of it."""
        begun = self._begun(worker, held)
        if begun is None:
            return True
        report = begun.to_its_end() if isinstance(begun, Run) else begun
        if report is None:
            return False
        with suppress(OSError):
            worker.sendall(json.dumps(report).encode())
        return not report.get("survivors")

    def _begun(self, worker: socket.socket, held: list[int]) -> Run | dict[str, Any] | None:
        """The command, started, or the report that it cannot be; None when the worker is gone."""
        try:
            command = _received(worker)
            if command is None:
                return None
            if held:
                command["beneath"] = OpenDirectory(command["beneath"], held[0])
            run = Run(worker, command, self._woken, self._is_orphaned, self._cgroup)
            if command["tells_start"]:
                with suppress(OSError):
                    worker.send(STARTED)
            return run
        except OSError as wrong:
            return {"refused": [wrong.errno, str(wrong.filename or "")]}
        finally:
            # Not for as long as it runs: with the worker goes what keeps a directory from being removed.
            for descriptor in held:
                os.close(descriptor)

    def _is_orphaned(self) -> bool:
        return os.getppid() != self._spawner


def _waiting_for(control: socket.socket, woken: int) -> Callable[[float | None], list[tuple[int, int]]]:
    """Waits for either, so many seconds. Where the kernel can, a command wakes one of all keepers that wait.

    Else all of them wake up for each command and one finds it; where they take turns at that, the spawner
    takes every one for busy and forks further ones.
    """
    if hasattr(select, "EPOLLEXCLUSIVE"):
        epoll = select.epoll()
        epoll.register(control, select.EPOLLIN | select.EPOLLEXCLUSIVE)
        epoll.register(woken, select.EPOLLIN)
        return epoll.poll
    poll = select.poll()
    poll.register(control, select.POLLIN)
    poll.register(woken, select.POLLIN)
    return lambda left: poll.poll(None if left is None else left * 1000)


def _received(worker: socket.socket) -> dict[str, Any] | None:
    """The command, or None when the worker is gone."""
    head = _exactly(worker, LENGTH.size)
    body = head and _exactly(worker, LENGTH.unpack(head)[0])
    return json.loads(body) if body else None


def _exactly(worker: socket.socket, size: int) -> bytes | None:
    parts = bytearray()
    while len(parts) < size:
        part = worker.recv(min(size - len(parts), 1 << 20))
        if not part:
            return None
        parts += part
    return bytes(parts)


class Run:
    """A started command; made, it runs, or OSError says why it cannot."""

    def __init__(
        self,
        worker: socket.socket,
        command: dict[str, Any],
        woken: int,
        is_orphaned: Callable[[], bool],
        cgroup: CommandCgroup | None,
    ) -> None:
        self._worker, self._woken, self._is_orphaned, self._cgroup = worker, woken, is_orphaned, cgroup
        self._grace_s = float(command["grace_s"])
        self._poll = select.poll()
        self._pipes: dict[int, Sink] = {}
        self._status: int | None = None
        self._seconds = 0.0
        self._timed_out = self._stopped = self._ending = self._alone = False
        self._told = tree_below.Told()
        # When those are told to end that the command started, if it has not ended by then.
        self._all_at: float | None = None
        with _directory(command["cwd"], command["beneath"]) as there:
            os.fchdir(there)
        self._out, self._err = _sinks(command)
        if command["line"] is not None:
            lines = LineWatch(command["line"], self._tell_line)
            self._out.look, self._err.look = lines.stream(), lines.stream()
        self._start(command)
        limit = command["timeout_s"]
        self._until: float | None = None if limit is None else self._began + float(limit)
        self._poll.register(worker, select.POLLIN)
        self._poll.register(woken, select.POLLIN)

    def _start(self, command: dict[str, Any]) -> None:
        directory = _own_memory_cgroup()
        self._oom_kills = None if directory is None else OomKills(directory)
        theirs = [self._pipe_to(self._out), self._pipe_to(self._err)]
        self._began = time.monotonic()
        try:
            with self._cgroup.around() if self._cgroup else nullcontext():
                self._pid = _spawned(command["argv"], command["env"], *theirs)
        except OSError:
            for sink in (self._out, self._err):
                sink.close()
            for descriptor in self._pipes:
                os.close(descriptor)
            raise
        finally:
            for descriptor in theirs:
                os.close(descriptor)

    def _tell_line(self) -> None:
        with suppress(OSError):
            self._worker.send(SAID)

    def _pipe_to(self, sink: Sink) -> int:
        ours, theirs = os.pipe()
        os.set_blocking(ours, False)
        self._pipes[ours] = sink
        self._poll.register(ours, select.POLLIN)
        return theirs

    def to_its_end(self) -> dict[str, Any] | None:
        """What became of it, or None if there is nobody to be told."""
        survivors: list[int] = []
        while not self._alone and not survivors:
            gone = self._wait()
            self._reap()
            if gone or self._is_orphaned():
                self._kill()
                return None
            if self._all_at is not None and time.monotonic() >= self._all_at:
                self._tell_all()
            if self._alone or self._until is None or time.monotonic() < self._until:
                continue
            if self._ending:
                survivors = self._kill()
            elif self._status is not None:
                self._end(self._grace_s)
            else:
                self._timed_out = True
                self._end(self._grace_s)
        for descriptor in list(self._pipes):
            self._last(descriptor)
        return self._report(survivors)

    def _wait(self) -> bool:
        """Wait until something happens, or it is time; whether the worker is gone."""
        times = [at for at in (self._until, self._all_at) if at is not None]
        left = max(min(times) - time.monotonic(), 0.0) if times else None
        for descriptor, _ in self._poll.poll(None if left is None else left * 1000 + 1):
            if descriptor in self._pipes:
                self._read(descriptor)
            elif descriptor == self._woken:
                with suppress(BlockingIOError):
                    os.read(self._woken, 4096)
            elif not self._heard():
                return True
        return False

    def _heard(self) -> bool:
        """Heed the worker's word, or say that it is gone."""
        try:
            said = _exactly(self._worker, STOP.size)
        except OSError:
            return False
        if said is None:
            return False
        grace = float(STOP.unpack(said)[0])
        self._stopped = self._stopped or self._status is None
        if self._ending and self._until is not None:
            now = time.monotonic()
            self._until = min(self._until, now + grace)
            if self._all_at is not None:
                self._all_at = min(self._all_at, now + grace * _ALONE_SHARE)
        else:
            self._end(grace)
        return True

    def _end(self, grace_s: float) -> None:
        """SIGTERM; a stopped process is not woken for it, as it would go on with its work."""
        self._ending = True
        now = time.monotonic()
        self._until = now + grace_s
        if grace_s <= 0:
            return
        if self._status is not None:
            self._tell_all()
            return
        self._all_at = now + min(_ALONE_S, grace_s * _ALONE_SHARE)
        self._told.tell(signal.SIGTERM, only=self._pid)

    def _tell_all(self) -> None:
        self._all_at = None
        if not IS_LINUX:
            self._signal_group(signal.SIGTERM)
        self._told.tell(signal.SIGTERM)

    def _kill(self) -> list[int]:
        """SIGKILL to all; those that live all the same, as in uninterruptible sleep."""
        if self._cgroup:
            self._cgroup.kill()
        if not IS_LINUX:
            self._signal_group(signal.SIGKILL)
        survivors = tree_below.kill_below(self._reap)
        if self._status is None and not survivors:
            with suppress(ChildProcessError):
                self._note(os.waitpid(self._pid, 0)[1])
        return survivors

    def _signal_group(self, number: signal.Signals) -> None:
        """Where there are no subreapers: the command's group, which a daemon may have left."""
        with suppress(OSError):
            os.killpg(self._pid, number)

    def _reap(self) -> None:
        """Wait for all that have ended; when the command is among them, the rest has a moment."""
        orphans = False
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                self._alone = True
                return
            if pid == 0:
                break
            if pid == self._pid:
                self._note(status)
            orphans = bool(self._told) and self._status is not None
        if orphans:
            self._tell_all()

    def _note(self, status: int) -> None:
        self._status = status
        self._seconds = time.monotonic() - self._began
        if not self._ending:
            self._until = time.monotonic() + min(_LINGER_S, self._grace_s)

    def _read(self, descriptor: int) -> bool:
        """Take what a pipe has; whether it may have more."""
        try:
            more = self._pipes[descriptor].take(descriptor)
        except BlockingIOError:
            return False
        if not more:
            self._poll.unregister(descriptor)
            os.close(descriptor)
            del self._pipes[descriptor]
        return more

    def _last(self, descriptor: int) -> None:
        """Read what a pipe holds when none below is left; a stranger that has it open is not waited for."""
        for _ in range(64):
            if not self._read(descriptor):
                break
        if self._pipes.pop(descriptor, None) is not None:
            os.close(descriptor)

    def _report(self, survivors: list[int]) -> dict[str, Any]:
        wrong = [self._out.close(), self._err.close()]
        # A shell says so of what it ran in its own place.
        killed = self._status in (int(signal.SIGKILL), (128 + signal.SIGKILL) << 8) and not self._ending
        out_of_memory = self._oom_kills.explain() if killed and self._oom_kills else None
        return {
            "status": self._status,
            "timed_out": self._timed_out,
            "stopped": self._stopped,
            "seconds": self._seconds or time.monotonic() - self._began,
            "stdout": [self._out.size, self._out.is_cut],
            "stderr": [self._err.size, self._err.is_cut],
            "last_words": self._err.last_words.decode("utf-8", "replace"),
            "wrong": wrong[0] or wrong[1],
            "survivors": survivors,
            "killed_by": out_of_memory.in_words() if out_of_memory else "",
        }


@cache
def _own_memory_cgroup() -> str | None:
    """What a keeper's commands count in; it is read once, as a look takes as long as a short command."""
    return memory_cgroup()


def _directory(path: str, beneath: Beneath | None) -> AbstractContextManager[int]:
    """The directory, open; without `beneath` whatever the path leads to."""
    return directory_beneath(path, beneath=path if beneath is None else beneath)


def _sinks(command: dict[str, Any]) -> tuple[Sink, HeadAndTail]:
    """The files of both streams; their directory is looked up once, if it is one."""
    (place, out), (beside, err) = os.path.split(command["stdout"]), os.path.split(command["stderr"])
    beneath = command["beneath"]
    with _directory(place or ".", beneath) as within:
        kept = Capped(out, command["stdout_cap"], within)
        try:
            with nullcontext(within) if beside == place else _directory(beside or ".", beneath) as at:
                return kept, HeadAndTail(err, command["stderr_cap"], at)
        except OSError:
            kept.close()
            raise


def _spawned(argv: list[str], environment: dict[str, str], out: int, err: int) -> int:
    """The pid of the command, in a session of its own, with the three streams and no other descriptor.

    Tried again while somebody is still writing the program's file.
    """
    program = _found(argv[0], environment.get("PATH", os.defpath))
    actions = [
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
        (os.POSIX_SPAWN_DUP2, out, 1),
        (os.POSIX_SPAWN_DUP2, err, 2),
    ]
    for tries in range(_BUSY_TRIES):
        try:
            return os.posix_spawn(
                *(program, argv, environment),
                file_actions=actions,
                setsid=True,
                setsigmask=(),
                setsigdef=_RESET,
            )
        except FileNotFoundError as wrong:
            if os.path.exists(program):
                wrong.filename = f"{program}, or what its first line names"
            raise
        except OSError as wrong:
            if wrong.errno != errno.ETXTBSY or tries == _BUSY_TRIES - 1:
                raise
            time.sleep(0.01)
    raise AssertionError("unreachable")


def _found(program: str, path: str) -> str:
    """Where a program is: as it is named, or for a bare name the first of that name in the PATH."""
    if "/" in program:
        return program
    for directory in path.split(os.pathsep):
        candidate = os.path.join(directory or ".", program)
        if os.access(candidate, os.X_OK) and not os.path.isdir(candidate):
            return candidate
    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), program)
