"""Processes forked from one that has imported everything, where starting an interpreter for each is too dear.

A supervisor starts the fork server by exec like any other child, and talks to it over a socket:

    supervisor ── fork: these variables, these descriptors ──> fork server ──fork──> a process of ours
        ^  └───── reap: this pid, which has ended ─────────>   (one thread,          in a session of its own
        └──────── its pid, its status ──────────────────────    no connection)

A forked process is the fork server's child to the kernel, so the supervisor watches it by a pidfd, and gets
its status from the fork server. That waits for a child only when told to: until then the pid stays its own.
It ends when the socket does, which is when its supervisor does, however that ends; with it its children hear
that their parent has died.

A fork copies one thread and all descriptors. So a process with a second thread, with a socket of its own or
with a device open is not forked from, and says so: a host app's imports may have made any of these. What a
library seeds for itself when it is imported is the same in all that are forked, but for what Python and
OpenSSL seed anew.

What a forked process leaves behind when it dies becomes the fork server's child. So to know whether there is
anything to sweep takes a look at its children, and not one at every process of the machine.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import select
import socket
import sys
import time
import uuid
from collections.abc import Collection, Mapping, MutableMapping
from contextlib import suppress
from typing import Any, Final

from queue_workflows.host.kernel import IS_LINUX, PR_SET_CHILD_SUBREAPER, prctl
from queue_workflows.host.processes import last_word
from queue_workflows.host.processes.last_word import LastWord
from queue_workflows.host.processes.pid1 import LAUNCHER_PID
from queue_workflows.host.processes.tree_by_mark import MARK

# Room behind the fork server's mark, in which a forked process shows its own.
MARK_ROOM: Final = "/" + "0" * 32
_LONGEST: Final = 65_536
_MOST_DESCRIPTORS: Final = 8
# A fork is a matter of milliseconds; a machine that is short of everything may take longer.
_ANSWERS_WITHIN_S: Final = 5.0
# How often what forked processes left behind is waited for once it has ended.
_REAPS_EVERY_S: Final = 5.0
_STREAMS: Final = 2
# What two processes cannot share: connections, and what watches them; devices.
_UNSHARED: Final = (
    *("socket:", "anon_inode:[eventpoll", "anon_inode:[io_uring"),
    *("/dev/nvidia", "/dev/kfd", "/dev/dri"),
)


class ForkedChild:
    """A process that was forked for us; what a supervisor asks of a child of its own it answers too."""

    def __init__(self, pid: int, mark: str, word: LastWord, line: ForkServerLine) -> None:
        self.pid = pid
        self.mark = mark
        self.returncode: int | None = None
        self._last_word = word
        self._line = line

    @property
    def is_lost(self) -> bool:
        """Whether the fork server is gone, so that nobody keeps the pid from becoming another's."""
        return self._line.is_lost

    def poll(self) -> int | None:
        """The status, once it has ended; without the fork server what it said itself, else a kill."""
        if self.returncode is None:
            self.returncode = self._line.reap(self.pid)
        if self.returncode is None and self.is_lost:
            self._line.living.discard(self.pid)
            said = self._last_word.said(self.pid)
            self.returncode = -9 if said is None else said
        return self.returncode

    def has_left_nothing(self) -> bool:
        """Whether it is certain that nothing that it started lives; to be asked once it has ended."""
        return self._line.has_nobody_else()

    def chose(self, status: int) -> bool:
        """Whether its own code decided on this end."""
        return self._last_word.announced(self.pid, status)

    def begun(self) -> frozenset[int]:
        """The jobs that its threads began last."""
        return self._last_word.begun()


class ForkServerLine:
    """The supervisor's end; asks one thing at a time, and is `is_lost` once there is no answer."""

    def __init__(self, own: socket.socket) -> None:
        self._own = own
        own.settimeout(_ANSWERS_WITHIN_S)
        self.is_lost = False
        # Of those forked from it, which nobody has waited for.
        self.living: set[int] = set()

    def fileno(self) -> int:
        """Readable when it stands by, and when it has ended."""
        return self._own.fileno()

    def greeting(self) -> dict[str, Any] | None:
        """What it says when it stands by; None if it ended before."""
        return self._answer()

    def become(self, environ: Mapping[str, str]) -> bool:
        """Let it be itself what it would fork; whether it could be told."""
        with suppress(OSError):
            self._own.send(json.dumps({"become": dict(environ)}).encode())
            return True
        return False

    def fork(self, environ: Mapping[str, str], mark: str) -> ForkedChild | None:
        """A process with these variables besides; None if it could not be."""
        word = LastWord()
        given = {last_word.PIPE: word.fd}
        until = time.monotonic() + _ANSWERS_WITHIN_S
        request = {"fork": dict(environ), "given": list(given), "mark": mark, "until": until}
        try:
            answer = self._ask(request, list(given.values()))
        finally:
            word.handed_over()
        if answer is None or "pid" not in answer:
            return None
        self.living.add(answer["pid"])
        return ForkedChild(answer["pid"], mark, word, self)

    def reap(self, pid: int) -> int | None:
        """Wait for one that has ended: its status, None if it has not."""
        answer = self._ask({"reap": pid})
        if answer is None or "status" not in answer:
            return None
        self.living.discard(pid)
        return int(answer["status"])

    def has_nobody_else(self) -> bool:
        """Whether none but those that it forked, and what its imports started, are its children."""
        answer = self._ask({"look": True})
        return answer is not None and answer.get("others") == 0

    def close(self) -> None:
        """Ask nothing more, so that the fork server ends."""
        self._own.close()

    def _ask(self, request: dict[str, Any], descriptors: list[int] | None = None) -> dict[str, Any] | None:
        if self.is_lost:
            return None
        try:
            socket.send_fds(self._own, [json.dumps(request).encode()], descriptors or [])
        except OSError:
            self.lose()
            return None
        return self._answer()

    def _answer(self) -> dict[str, Any] | None:
        try:
            message = self._own.recv(_LONGEST)
        except OSError:  # too late counts as never: a later answer would be taken for another's
            message = b""
        if not message:
            self.lose()
            return None
        answer: dict[str, Any] = json.loads(message)
        return answer

    def lose(self) -> None:
        """Count the fork server as lost: there are no more answers."""
        self.is_lost = True


def mark_below(above: str) -> str:
    """A mark for a process forked from one with this mark."""
    return f"{above}/{uuid.uuid4().hex}"


def serve(given: socket.socket, environ: MutableMapping[str, str] = os.environ) -> bool:
    """Stand by and fork; True in a process that is to work now, False when nobody asks any more."""
    # What is there by now is shared by all that are forked, as long as nobody touches it.
    gc.collect()
    gc.freeze()
    if IS_LINUX:
        prctl(PR_SET_CHILD_SUBREAPER, 1)
    # What has been written is the fork server's, and not for each of its children to write again.
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):
            stream.flush()
    known = _children() or set()
    with given:
        _answer(given, {"obstacle": _obstacle(given, environ)})
        while True:
            _reap_until_asked(given, known)
            request, received = _asked(given)
            if "become" in request:
                environ.update(request["become"])
                return True
            if "fork" in request:
                pid = _forked(given, request, received, environ)
                if pid == 0:
                    return True
                known.add(pid)
            elif "reap" in request:
                answer = _reaped(request["reap"])
                _answer(given, answer)
                if "status" in answer:
                    known.discard(request["reap"])
            elif "look" in request:
                _answer(given, {"others": _others(known)})
            else:
                return False


def _reap_until_asked(given: socket.socket, known: Collection[int]) -> None:
    """Wait for what forked processes have left behind, which would else fill the table of processes."""
    while not select.select([given], [], [], _REAPS_EVERY_S)[0]:
        _others(known)


def _asked(given: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """The next request and its descriptors; an empty one when the other end is closed."""
    try:
        message, received, _, _ = socket.recv_fds(given, _LONGEST, _MOST_DESCRIPTORS)
    except OSError:
        return {}, []
    return (json.loads(message) if message else {}), received


def _answer(given: socket.socket, answer: dict[str, Any]) -> None:
    # An end that was closed meanwhile is told nothing.
    with suppress(OSError):
        given.send(json.dumps(answer).encode())


def _forked(
    given: socket.socket, request: dict[str, Any], received: list[int], environ: MutableMapping[str, str]
) -> int:
    """Fork, and tell; 0 in the child."""
    own_pid = os.getpid()
    is_late = time.monotonic() > request["until"]
    obstacle = "nobody waits for it any more" if is_late else _obstacle(given, environ)
    answer: dict[str, Any] = {"obstacle": obstacle}
    if obstacle is None:
        try:
            pid = os.fork()
        except OSError as exc:
            answer = {"obstacle": str(exc)}
        else:
            if pid == 0:
                _begin(request, received, own_pid, environ)
                return 0
            answer = {"pid": pid}
    for descriptor in received:
        os.close(descriptor)
    _answer(given, answer)
    return int(answer.get("pid", -1))


def _begin(
    request: dict[str, Any], received: list[int], launcher_pid: int, environ: MutableMapping[str, str]
) -> None:
    """Give the forked child what an exec would have given it."""
    os.setsid()
    environ.update(request["fork"])
    environ[LAUNCHER_PID] = str(launcher_pid)
    for name, descriptor in zip(request["given"], received, strict=True):
        os.set_inheritable(descriptor, False)
        environ[name] = str(descriptor)
    _show_mark(request["mark"])
    environ[MARK] = request["mark"]
    last_word.own.take(environ)


def _reaped(pid: int) -> dict[str, Any]:
    try:
        ended, status = os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return {"status": -9}
    return {"status": os.waitstatus_to_exitcode(status)} if ended else {}


def _others(known: Collection[int]) -> int | None:
    """How many children there are that nobody asked for, as forked processes left them; None if unknown."""
    children = _children()
    if children is None:
        return None
    others = 0
    for pid in children.difference(known):
        with suppress(ChildProcessError):
            others += os.waitpid(pid, os.WNOHANG)[0] == 0
    return others


def _children() -> set[int] | None:
    own_pid = os.getpid()
    try:
        with open(f"/proc/{own_pid}/task/{own_pid}/children", encoding="ascii") as children:
            return set(map(int, children.read().split()))
    except OSError:
        return None


def _obstacle(given: socket.socket, environ: Mapping[str, str]) -> str | None:
    """What a fork could not copy or must not, if there is something."""
    if not IS_LINUX:
        return "this is not Linux"
    if not environ.get(MARK, "").endswith(MARK_ROOM):
        return "there is no room for marks"
    if len(os.listdir("/proc/self/task")) > 1:
        return "a thread was started by an import"
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            if int(name) > _STREAMS and int(name) != given.fileno():
                what = os.readlink(f"/proc/self/fd/{name}")
                if what.startswith(_UNSHARED):
                    return f"an import has opened {what}"
    return None


def _show_mark(mark: str) -> None:
    """Where /proc shows the environment that the last exec was given: a sweep looks for marks there."""
    libc = ctypes.CDLL(None)
    libc.getenv.argtypes, libc.getenv.restype = [ctypes.c_char_p], ctypes.c_void_p
    shown = libc.getenv(MARK.encode())
    if shown and len(ctypes.string_at(shown)) == len(mark):
        ctypes.memmove(shown, mark.encode(), len(mark))
