"""How a program that owns something comes to its end, whatever it is that ends it.

A lock, a port or a deployed app is given back by its owner and nobody else, so the owner has to come through
its `finally` blocks on every path that leaves it the time, and must not live on where nobody would end it.

    harden() ── the launcher is gone ──> Orphaned: nothing was begun
       │
    running ── SIGTERM, also the launcher's end · SIGHUP · SIGINT ──┐  the first decides the status:
       │  └──── SIGALRM, from the deadline or from elsewhere ───────┤  143 · 143 · 130 · 73
       │                                                            v
       │                                              unwinding: `finally` blocks, once
       │                                                            │
       └── returns, or raises ──────────────> torn down <───────────┘   whatever comes now is noted
                                     on_teardown, once │
                                                       v
                                                     ended
    from the first signal on, and from the deadline on: `teardown_s`; what is not through by then is ended

- The signals become one exception in the main thread, a SystemExit (see `unwind`). A second signal does
  not break off a teardown, so a `finally` block runs to its end; only the last bound does that.
- The last bound is kept twice: by a thread, which ends the process with its status, and by the kernel's
  timer, which also ends a process that was stopped or has its GIL held (see `lease_timer`).
- The deadline is on the clock that counts the time a machine is suspended. Where code took SIGALRM, as for a
  timeout of its own, or blocks it, the thread begins the teardown with another signal a second later.
- A child that was forked inherits none of it: there the signals do what they do to any program.

Our roles have loops of their own and stop gracefully; what they share with this is here too: being bound to
their launcher, which signals end a process, and what its status says of them.
"""

from __future__ import annotations

import atexit
import logging
import os
import signal
import threading
from collections.abc import Callable, Sequence
from math import inf
from queue import Empty, SimpleQueue
from types import FrameType
from typing import Any, Final, Self

from queue_workflows.errors import ConfigurationError, ExitCode
from queue_workflows.host.processes.lease_timer import Alarm, DeadMan, boottime
from queue_workflows.host.processes.starter import bound_to_starter
from queue_workflows.host.processes.tree_by_mark import die_with_parent, take_launcher_pid
from queue_workflows.host.processes.unwind import INSIST_EVERY_S, Unwinding

_log = logging.getLogger(__name__)

ENDING: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
# What a supervisor tells a worker that is to end as soon as it holds nothing, however long that takes.
RETIRE: Final[int] = signal.SIGRTMIN + 5 if hasattr(signal, "SIGRTMIN") else signal.SIGUSR2
# How a supervisor asks a worker to stop. Any other stop may come from a job of that worker. Where the kernel
# has no such signals the two cannot be told apart.
ASKED: Final[int] = signal.SIGRTMIN + 6 if hasattr(signal, "SIGRTMIN") else signal.SIGTERM
_OF_TERMINALS: Final = (signal.SIGINT, signal.SIGHUP)
_EXITS: Final[dict[int, ExitCode]] = {
    signal.SIGINT: ExitCode.INTERRUPTED,
    signal.SIGALRM: ExitCode.DEADLINE,
}
# The kernel's timer comes after the thread, which can still tell the status.
_KERNEL_LATER_S: Final = 2.0
_SAID_WITHIN_S: Final = 5.0
_SIGALRM_WITHIN_S: Final = 1.0
_CLOCKS_AGREE_S: Final = 5.0  # a wait stands still while the machine is suspended
LONGEST_DEADLINE_S: Final = 366 * 86_400.0


def bound_to_launcher() -> int | None:
    """Die with the process that launched this one, if that told so (see `tree_by_mark`); its pid, or None.

    Refuses to run without it. For roles, which a shell may leave running; to be called early, from the main
    thread.
    """
    launcher_pid = take_launcher_pid()
    die_with_parent(launcher_pid)
    return launcher_pid


def exit_code_of(number: int) -> ExitCode:
    """What a process ends with that a signal ended before its work was done."""
    return _EXITS.get(number, ExitCode.TERMINATED)


def hearable(numbers: Sequence[signal.Signals] = ENDING) -> list[signal.Signals]:
    """The signals to take; a terminal's that we were started deaf to (`nohup`, a shell's `&`) stay so."""
    return [
        number
        for number in numbers
        if number not in _OF_TERMINALS or signal.getsignal(number) is not signal.SIG_IGN
    ]


class TornDown(SystemExit):
    """A signal, or the deadline, on its way out of the main thread; `code` is what the process ends with."""


class Hardened:
    """What `harden` set up: in force until `close`, the end of a `with`, or the end of the process."""

    def __init__(
        self,
        *,
        deadline_s: float | None,
        teardown_s: float,
        on_teardown: Callable[[], object] | None,
        launcher_pid: int | None,
    ) -> None:
        self.launcher_pid = launcher_pid
        self.by: signal.Signals | None = None
        self._deadline_s, self._teardown_s, self._on_teardown = deadline_s, teardown_s, on_teardown
        self._pid = os.getpid()
        self._unwinding = Unwinding(by_timer=False)
        self._before: dict[signal.Signals, Any] = {}
        self._closed = False
        self._begun: SimpleQueue[signal.Signals | None] = SimpleQueue()  # a signal handler may put into it
        self._overdue_at = inf
        self._is_overdue = False
        self._said = threading.Event()
        self._over = threading.Event()
        self._alarm, self._deadman = Alarm(slack_s=0), DeadMan(slack_s=0)

    def begin(self) -> None:
        """Take the signals, set the timers."""
        if self._deadline_s is not None:
            now = boottime()
            self._overdue_at = now + self._deadline_s + _SIGALRM_WITHIN_S
            self._alarm.arm(now + self._deadline_s)
            self._deadman.arm(now + self._deadline_s + self._teardown_s + _KERNEL_LATER_S)
        # After the arming, which a handler that arms must not interrupt.
        for number in (*hearable(), signal.SIGALRM):
            self._before[number] = signal.signal(number, self._asked)
        threading.Thread(target=self._watch, name="qwf-hardened", daemon=True).start()
        atexit.register(self.close)

    @property
    def exit_code(self) -> ExitCode | None:
        """What the process ends with, once a signal or the deadline has decided it."""
        return None if self.by is None else exit_code_of(self.by)

    def close(self) -> None:
        """Do the teardown's last part, once; what comes meanwhile is noted, what comes later is not ours."""
        if self._closed or os.getpid() != self._pid:
            return
        self._closed = True
        self._unwinding.end()
        try:
            if self._on_teardown is not None:
                self._on_teardown()
        finally:
            if self.by is not None:
                self._said.wait(_SAID_WITHIN_S)  # a thread that is no part of the interpreter's end
            self._over.set()
            self._begun.put(None)
            self._alarm.close()
            self._deadman.close()
            for number, handler in self._before.items():
                signal.signal(number, handler)
            atexit.unregister(self.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _asked(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self._pid:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
            return
        if self.by is not None:
            return
        self.by = signal.SIGALRM if self._is_overdue else signal.Signals(number)
        self._begun.put(self.by)
        if not self._closed:
            self._deadman.arm(boottime() + self._teardown_s + _KERNEL_LATER_S)
            code = int(exit_code_of(self.by))
            self._unwinding.begin(lambda: TornDown(code), frame)

    def _watch(self) -> None:
        """Say, in a thread, why this process ends, and see to it that it does."""
        by = self._first()
        if by is None:
            return
        if by == signal.SIGALRM and self._deadline_s is not None:
            _log.error("the deadline of %g s has passed: tearing down", self._deadline_s)
        elif self.launcher_pid not in (None, os.getppid()):
            _log.warning("process %d, which started this one, has ended: tearing down", self.launcher_pid)
        else:
            _log.warning("%s: tearing down", by.name)
        self._said.set()
        end_at = boottime() + self._teardown_s
        while not self._over.wait(INSIST_EVERY_S):
            if boottime() >= end_at:
                _log.critical("the teardown is not through after %g s: ended", self._teardown_s)
                os._exit(exit_code_of(by))
            self._unwinding.insist()

    def _first(self) -> signal.Signals | None:
        """What the end begins with; None where it is over without."""
        while (left_s := self._overdue_at - boottime()) > 0:
            try:
                return self._begun.get(timeout=min(left_s, _CLOCKS_AGREE_S))
            except Empty:
                pass
        return self._ask_anew()

    def _ask_anew(self) -> signal.Signals | None:
        """The deadline's SIGALRM was not heard: send the main thread a signal that is ours yet."""
        if self._over.is_set():
            return None
        self._is_overdue = True
        main = threading.main_thread().ident
        ours = [each for each in self._before if signal.getsignal(each) == self._asked]
        if main is not None and self.by is None and ours:
            signal.pthread_kill(main, ours[0])
        return self.by or signal.SIGALRM


def harden(
    *,
    deadline_s: float | None = 3600.0,
    on_teardown: Callable[[], object] | None = None,
    launcher_pid: int | None = None,
    detach: bool = False,
    teardown_s: float = 60.0,
) -> Hardened:
    """From here on this program ends in one way, through its `finally` blocks, and not after its launcher.

    SIGTERM, SIGHUP, SIGINT and the deadline raise one SystemExit in the main thread; `on_teardown` is called
    once at the end, on every path. What is not through `teardown_s` after the signal is killed. The launcher
    is `launcher_pid`, by default the process that started this one, be that a shell; with `detach` there is
    none, and the program may outlive everybody. Raises Orphaned when the launcher is gone.
    """
    if threading.current_thread() is not threading.main_thread():
        raise ConfigurationError(
            "harden() was called in a thread that gets no signals",
            advice="call it first thing in the main one",
        )
    for name, seconds in (("deadline_s", deadline_s), ("teardown_s", teardown_s)):
        if seconds is None:
            continue
        if not isinstance(seconds, int | float) or not 0 < seconds <= LONGEST_DEADLINE_S:
            raise ConfigurationError(
                f"harden(): {name} is {seconds!r}", advice="give a number of seconds above 0, up to a year"
            )
    if detach and launcher_pid is not None:
        raise ConfigurationError(
            f"harden(): detached, and to end with process {launcher_pid}", advice="say one of the two"
        )
    hardened = Hardened(
        deadline_s=deadline_s,
        teardown_s=teardown_s,
        on_teardown=on_teardown,
        launcher_pid=bound_to_starter(launcher_pid, detach=detach),
    )
    hardened.begin()
    return hardened
