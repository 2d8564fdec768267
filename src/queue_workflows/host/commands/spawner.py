"""The small process that starts a worker's commands, and the one beside each command that sees to its end.

    worker ──spawns once──> spawner ──forks──> keeper ──spawns──> the command ──> whatever it starts
       │                    (reaps)            (subreaper)
       └──── a socket for each command, handed from the worker to the keeper ────┘

Forking a worker's whole program for each command would be slow and unsafe, starting Python for each slower
still; this process stays small, has one thread and only the standard library. Keepers wait for commands on
one socket that all of them share with the worker, are forked ahead of need, and are used again; so what a
command pays for is little more than its own start.

How nothing is left behind:

- A keeper is a subreaper: whatever its command starts stays below it, and its end is the end of all of it.
- When the worker is gone, its ends of the sockets close and the keeper kills all that is below it.
- When the spawner is gone, the kernel tells the keepers (PR_SET_PDEATHSIG), and they do the same. The spawner
  learns so of the worker's end, because a socket may have been inherited by a child that somebody forked.
- A keeper that is stopped (SIGSTOP) is killed: its command may not outwit its timeout like that.
- When a keeper is killed, what it kept falls to the spawner, which is a subreaper too and kills all that
  is below it besides keepers.
"""

from __future__ import annotations

import errno
import gc
import os
import select
import signal
import socket
import sys
from contextlib import suppress
from typing import Final, NoReturn

from queue_workflows.host.commands.cgroups import SpawnerCgroup
from queue_workflows.host.commands.keeper import NEWS, Keeper
from queue_workflows.host.kernel import IS_LINUX, PR_SET_CHILD_SUBREAPER, PR_SET_PDEATHSIG, prctl
from queue_workflows.host.processes import tree_below

_FORK_AGAIN_MS: Final = 1000
_DEAF_TO: Final = (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)


class Spawner:
    """The process that keeps one keeper ready, reaps those that are done, and outlives none of its worker."""

    def __init__(self, control: socket.socket, worker: int) -> None:
        self._control, self._worker = control, worker
        self._cgroups = SpawnerCgroup.open() if IS_LINUX else None
        self._keepers: dict[int, bool] = {}  # whether each has a command
        self._owes_one = False
        self._news, self._tell = os.pipe()
        self._woken, wake = os.pipe()
        for descriptor in (self._news, self._woken, wake):
            os.set_blocking(descriptor, False)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, _nothing)
        signal.signal(signal.SIGTERM, _nothing)
        for number in _DEAF_TO:
            signal.signal(number, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        if IS_LINUX:
            prctl(PR_SET_CHILD_SUBREAPER, 1)
            prctl(PR_SET_PDEATHSIG, signal.SIGTERM)

    def run(self) -> None:
        """Serve until the worker is gone, or closes its end; then nothing is left below this process."""
        poll = select.poll()
        poll.register(self._control, 0)  # its end is told unasked
        poll.register(self._news, select.POLLIN)
        poll.register(self._woken, select.POLLIN)
        while os.getppid() == self._worker:
            ready = not (self._owes_one or all(self._keepers.values())) or self._fork()
            if self._control.fileno() in dict(poll.poll(None if ready else _FORK_AGAIN_MS)):
                break
            _drain(self._woken)
            self._reap()
            for word, pid in NEWS.iter_unpack(_drain(self._news)):
                if pid in self._keepers:
                    self._keepers[pid] = word == b"+"
        self._end()

    def _fork(self) -> bool:
        """Another keeper; False when there are too many processes, or is no memory, for the moment."""
        spawner = os.getpid()
        try:
            pid = os.fork()
        except OSError as wrong:
            print(f"qwf spawner: cannot fork: {wrong.strerror}", file=sys.stderr, flush=True)
            return False
        if pid == 0:
            self._become_keeper(spawner)
        self._keepers[pid] = self._owes_one = False
        return True

    def _become_keeper(self, spawner: int) -> NoReturn:
        try:
            for descriptor in (self._news, self._woken):
                os.close(descriptor)
            Keeper(self._control, self._tell, spawner, self._cgroups).run()
            os._exit(0)
        except BaseException as wrong:
            print(f"qwf keeper: {type(wrong).__name__}: {wrong}", file=sys.stderr, flush=True)
            os._exit(1)

    def _reap(self) -> None:
        """Wait for all that have ended; after a keeper that did not end well, see to what it left behind."""
        lost = False
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG | os.WUNTRACED)
            except ChildProcessError:
                break
            if pid == 0:
                break
            if os.WIFSTOPPED(status):
                self._end_stopped(pid)
                continue
            lost = lost or status != 0 or pid not in self._keepers
            if self._keepers.pop(pid, None) is not None and self._cgroups:
                self._cgroups.forget(str(pid))
        if lost:
            # A command may have woken it, of which no other one that sleeps will hear: a new one looks.
            self._owes_one = True
            tree_below.kill_all(self._strays, _nobody)

    def _end_stopped(self, pid: int) -> None:
        """A keeper that stands still heeds no timeout; only its own command has a reason to stop it."""
        if pid in self._keepers:
            os.kill(pid, signal.SIGKILL)  # not waited for, so the number is still its own

    def _strays(self) -> list[tree_below.Member]:
        return tree_below.below(os.getpid(), without=self._keepers)

    def _end(self) -> None:
        """End what is below, keepers and all; they may be doing so themselves."""
        self._control.close()
        tree_below.kill_below(_reap_all)
        if self._cgroups:
            self._cgroups.close()


def _nothing(*_: object) -> None:
    """A handler, so that the signal wakes the poll."""


def _nobody() -> None:
    """Reap none: a child that has ended is waited for at the next SIGCHLD."""


def _reap_all() -> None:
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _drain(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, NEWS.size * 512)
    except OSError as wrong:
        if wrong.errno != errno.EAGAIN:
            raise
        return b""


def main(control: int, worker: int) -> None:
    """The spawner of a worker, from the descriptor of its socket and the worker's pid."""
    os.chdir("/")
    os.set_inheritable(control, False)  # it came by exec, and must not go on by one
    gc.disable()
    gc.freeze()  # what the collector touches would be copied into every keeper
    Spawner(socket.socket(fileno=control), worker).run()
