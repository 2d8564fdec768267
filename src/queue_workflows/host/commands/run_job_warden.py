"""Runs one command that is not ours, and ends when nothing of it is left; standard library only.

    qwf run-job ──exec──> warden ──fork──> its second ──spawn──> the command ──> whatever it starts
                          has the locks    has them too          a session of its own
                          subreaper        subreaper

Two, so that no death of one process leaves the command alone with a lock that is free. When the warden is
killed, the kernel tells the second, which ends the command; when the second is killed, all that was below it
falls to the warden, which kills it. The descriptors of the locks are open in both and in nobody else, so a
lock is free when the last of the two has ended, and that is after the last process of the command.

    running ──the command ends──────────────────────────────┐ the rest gets SIGTERM
       ├──SIGTERM, SIGHUP: to all of them ──────────────────┤
       ├──the deadline: SIGTERM to all, one line on stderr──┤
       └──any other signal: to the command, and on          v
                                                ending ──grace──> SIGKILL to all ──nobody left──> its status

The end of what started `qwf run-job` is as SIGTERM, unless it is detached (see `processes/starter`).

Either may be stopped, as the warden is by a terminal's Ctrl-Z. At the deadline the kernel lets both go on.
The warden lets its second go on at once, and is let go on by that when there is nothing left to hold.

Signals are held (blocked) from before the exec and taken one at a time, so PID 1 gets them too. The command
is in a session of its own: a terminal's Ctrl-C comes to the warden alone, and to the command's group once.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from errno import ENOEXEC
from typing import Final, NamedTuple, NoReturn

from queue_workflows.host.kernel import LEFT_ALONE, PR_SET_CHILD_SUBREAPER, PR_SET_PDEATHSIG, prctl
from queue_workflows.host.processes import tree_below
from queue_workflows.host.processes.lease_timer import Wake
from queue_workflows.host.processes.pid1 import held_signals, reap, shell_status

NOT_FOUND: Final = 127
NOT_EXECUTABLE: Final = 126
DEADLINE: Final = 73
TERMINATED: Final = 143
NO_PROGRAM: Final = "no program, and without a first line such as #!/bin/sh"
_ENDING: Final = frozenset({signal.SIGTERM, signal.SIGHUP})
_OF_TERMINALS: Final = frozenset({signal.SIGINT, signal.SIGQUIT, signal.SIGHUP})
_TO_GROUP: Final = frozenset({signal.SIGINT, signal.SIGQUIT})
# The clock of a wait stands still while the machine is suspended, that of the deadline does not.
_LOOK_EVERY_S: Final = 5.0
_PROGRAM: Final = (
    "import sys; sys.path.insert(0, sys.argv[1]); "
    "from queue_workflows.host.commands.run_job_warden import main; main(sys.argv[2], sys.argv[3:])"
)


class RunTerms(NamedTuple):
    """How long a command may take, in words too, and to end; what is held for it; what it ends with."""

    deadline: float | None
    deadline_words: str
    grace_s: float
    held: list[int]
    starter_pid: int | None = None
    # Those of the first descriptors, which go with the command.
    lock_files: Sequence[str] = ()


def clock() -> float:
    """What a deadline is on: it counts the time that the machine is suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def become(terms: RunTerms, command: list[str]) -> NoReturn:
    """Turn this process into the warden of a command; raises OSError if that cannot be."""
    root = os.path.abspath(__file__).rsplit(os.sep, 4)[0]
    for descriptor in terms.held:
        os.set_inheritable(descriptor, True)
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):
            stream.flush()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, held_signals())
    try:
        arguments = [sys.executable, "-I", "-S", "-c", _PROGRAM, root, json.dumps(terms), *command]
        os.execv(sys.executable, arguments)  # noqa: S606
    finally:  # only reached when the exec failed
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def main(terms: str, command: list[str]) -> NoReturn:
    """The warden, from what `become` gave it."""
    given = RunTerms(*json.loads(terms))
    for descriptor in given.held:
        os.set_inheritable(descriptor, False)
    signal.pthread_sigmask(signal.SIG_BLOCK, held_signals())
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # inherited as ignored, it would make statuses vanish
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    warden = os.getpid()
    second = os.fork()
    wake = Wake(slack_s=0)
    if given.deadline is not None:
        wake.arm(given.deadline)
    if second == 0:
        try:
            status = _Second(given, command).run(warden)
            if os.getppid() == warden:
                os.kill(warden, signal.SIGCONT)
            os._exit(status)
        except BaseException as wrong:
            _say(f"{type(wrong).__name__}: {wrong}")
            os._exit(1)
    ended = _warden(second, given.starter_pid, command[0])
    _remove_lock_files(given)
    sys.exit(ended)


def _warden(second: int, starter_pid: int | None, program: str) -> int:
    """Pass signals on until the second has ended, then see that nobody is left."""
    held = held_signals()
    deaf = {number for number in _OF_TERMINALS if signal.getsignal(number) is signal.SIG_IGN}
    status = None
    while status is None:
        number = signal.sigwaitinfo(held).si_signo
        if number == LEFT_ALONE and starter_pid is not None:
            if os.getppid() == starter_pid:  # one thread of it has ended
                continue
            _say(f"process {starter_pid}, which started this one, has ended: ending {_shown(program)}")
            number = signal.SIGTERM
        if number == signal.SIGCHLD:
            status = reap(second)
            if status is None:
                os.kill(second, signal.SIGCONT)  # it may have been stopped
        elif number not in deaf and number != signal.SIGTTOU:
            os.kill(second, number)  # not waited for yet, so this pid is still its own
    _end_all(lambda: reap(second))
    return shell_status(status)


def _remove_lock_files(terms: RunTerms) -> None:
    """Remove the files of locks that we still hold; not one that was put in its place since."""
    for descriptor, path in zip(terms.held, terms.lock_files, strict=False):
        with suppress(OSError):
            if os.path.samestat(os.fstat(descriptor), os.stat(path, follow_symlinks=False)):
                os.unlink(path)


class _Second:
    """Has the command for its child, and all that it let go of."""

    def __init__(self, terms: RunTerms, command: list[str]) -> None:
        self._terms, self._command = terms, command
        self._pid = 0
        self._status: int | None = None
        self._kill_at: float | None = None
        self._told = tree_below.Told()
        self._timed_out = False

    def run(self, warden: int) -> int:
        """Attend the command until the last process that it started has ended; the status to end with."""
        os.setsid()
        prctl(PR_SET_CHILD_SUBREAPER, 1)
        prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != warden:
            return TERMINATED
        try:
            self._pid = self._spawned()
        except OSError as wrong:
            return _refused(self._command[0], wrong)
        held = held_signals()
        while self._reap():
            if self._kill_at is not None and clock() >= self._kill_at:
                _end_all(self._reap)
                continue
            taken = signal.sigtimedwait(held, self._patience())
            if taken is not None:
                self._take(taken.si_signo)
            self._see_to_deadline()
        return DEADLINE if self._timed_out else shell_status(self._status or 0)

    def _spawned(self) -> int:
        if not self._command[0]:
            raise FileNotFoundError
        return os.posix_spawnp(
            *(self._command[0], self._command, os.environ),
            setsid=True,
            setsigmask=(),
            setsigdef=(signal.SIGPIPE, signal.SIGXFSZ),  # the two that Python ignores at its start
        )

    def _patience(self) -> float:
        """How long to wait for the next moment at which something is to be done unasked."""
        at = self._terms.deadline if self._kill_at is None else self._kill_at
        return _LOOK_EVERY_S if at is None else max(0.0, min(_LOOK_EVERY_S, at - clock()))

    def _take(self, number: int) -> None:
        if number == signal.SIGCHLD:
            if self._kill_at is not None:
                self._told.tell(signal.SIGTERM)
        elif number in _ENDING:
            self._end(signal.Signals(number))
        elif self._status is None and number != signal.SIGTTOU:
            with suppress(OSError):
                (os.killpg if number in _TO_GROUP else os.kill)(self._pid, number)

    def _see_to_deadline(self) -> None:
        terms = self._terms
        if self._kill_at is None and terms.deadline is not None and clock() >= terms.deadline:
            self._timed_out = True
            _say(f"the deadline of {terms.deadline_words} has passed: ending {_shown(self._command[0])}")
            self._end(signal.SIGTERM)

    def _end(self, number: signal.Signals) -> None:
        if self._kill_at is None:
            self._kill_at = clock() + self._terms.grace_s
            self._told.tell(number)

    def _reap(self) -> bool:
        """Wait for all that have ended; whether anybody is left."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            if pid == self._pid:
                self._status = status
                self._end(signal.SIGTERM)


def _refused(program: str, wrong: OSError) -> int:
    if isinstance(wrong, FileNotFoundError):
        is_there = "/" in program and os.path.exists(program)
        what = "what its first line names is not there" if is_there else "command not found"
        _say(f"{_shown(program)}: {what} — correct its name, its path or PATH")
        return NOT_FOUND
    why = NO_PROGRAM if wrong.errno == ENOEXEC else wrong.strerror
    _say(f"{_shown(program)} cannot be run: {why} — correct its path or its rights")
    return NOT_EXECUTABLE


def _shown(program: str) -> str:
    """A program's name, on one line."""
    return program if program and program.isprintable() else repr(program)


def _end_all(reap: Callable[[], object]) -> None:
    """SIGKILL to all below; what is in uninterruptible sleep is waited for, as it may use what is locked."""
    is_said = False
    while survivors := tree_below.kill_below(reap):
        if not is_said:
            _say(f"{', '.join(map(str, survivors))} do not die: waiting for the kernel to let go of them")
            is_said = True


def _say(text: str) -> None:
    with suppress(OSError):
        os.write(2, f"qwf: {text}\n".encode("utf-8", "backslashreplace"))
