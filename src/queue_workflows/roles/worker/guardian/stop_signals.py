"""The signals that stop a worker, heard by a thread: the main one may be deep in C code for a long time.

They arrive by a descriptor that C writes to. A handler in Python runs as well, where the main thread gets to
it: it tells a main thread that waits, whatever the listening thread is waiting for.

A forked child shares the descriptor and would inherit the handler. It gets neither: when a job ends a child
of its own by SIGTERM, as multiprocessing does, that must end the child, and not be heard as a stop of the
worker. So the signals are held from before the fork until the child has let go of both.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import threading
import weakref
from collections.abc import Callable
from types import FrameType
from typing import Any, Final

from queue_workflows.db.connections.exhaustion import has_room
from queue_workflows.db.listen.join_thread import Wakeup
from queue_workflows.host.kernel import LEFT_ALONE
from queue_workflows.host.processes.harden import ASKED, RETIRE, hearable
from queue_workflows.host.processes.unwind import raise_what_was_asked

_NOTHING: Final = b"\0"
_DEFAULTS: Final[dict[int, Any]] = {signal.SIGINT: signal.default_int_handler}


class StopSignals:
    """From `begin` to `close` the stop signals come here; both are for the main thread."""

    def __init__(self, in_main: Callable[[int], None]) -> None:
        """`in_main` is called by the handler, in the main thread, as soon as that runs Python."""
        self._in_main = in_main
        self._bell = Wakeup()
        self._before: dict[int, Any] = {}
        self._masks: dict[int, set[int]] = {}

    def begin(self) -> None:
        """Hear the stop signals from now on; one that came before, and got lost, ends the worker here."""
        raise_what_was_asked()
        for number in dict.fromkeys((*hearable(), RETIRE, ASKED, LEFT_ALONE)):
            self._before[number] = signal.signal(number, self._heard)
        signal.set_wakeup_fd(self._bell.writer, warn_on_full_buffer=False)
        _stop_signals.add(self)

    def close(self) -> None:
        """Give the signals back to the handlers that had them before."""
        _stop_signals.discard(self)
        signal.set_wakeup_fd(-1)
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before.clear()

    def wait(self, seconds: float) -> list[int]:
        """Wait for signals, a ring, or the time; each signal as often as it came."""
        select.select([self._bell], [], [], seconds)
        return [number for number in self._bell.answer() if number in self._before]

    def can_hear(self) -> bool:
        """Whether its descriptors are its own still; a job that closes all of the process closes them too."""
        return self._bell.is_whole()

    def has_room(self) -> bool:
        """Whether the process can still get descriptors."""
        return has_room(self._bell.writer)

    def hear_again(self) -> None:
        """Take back the signals that a job in the main thread has set to something of its own."""
        for number in self._before:
            if signal.getsignal(number) != self._heard:
                signal.signal(number, self._heard)
        signal.set_wakeup_fd(self._bell.writer, warn_on_full_buffer=False)

    def ring(self) -> None:
        """End the present or the next wait; from any thread."""
        self._bell.ring(_NOTHING)

    def hand_over(self) -> bool:
        """Hear no more, from any thread before an exec; whether a stop was heard. One that comes now ends us.

        Else it would be heard by what the exec is about to sweep away. Python sets actions in the main thread
        only, so this asks the C library.
        """
        libc = ctypes.CDLL(None)
        libc.signal.argtypes, libc.signal.restype = [ctypes.c_int, ctypes.c_void_p], ctypes.c_void_p
        for number in self._before:
            libc.signal(number, None)  # SIG_DFL
        return bool(self.wait(0))

    def before_fork(self) -> None:
        """Hold the signals in the thread that forks."""
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, list(self._before))
        self._masks[threading.get_ident()] = mask

    def after_fork(self, *, in_child: bool) -> None:
        """Let the signals through again; in the child, to what they do in any process."""
        if in_child:
            signal.set_wakeup_fd(-1)
            for number in self._before:
                signal.signal(number, _DEFAULTS.get(number, signal.SIG_DFL))
        mask = self._masks.pop(threading.get_ident(), None)
        if mask is not None:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    def _heard(self, number: int, _frame: FrameType | None) -> None:
        self._in_main(number)


_stop_signals: Final[weakref.WeakSet[StopSignals]] = weakref.WeakSet()


def _before_fork() -> None:
    for stop_signals in _stop_signals:
        stop_signals.before_fork()


def _after_fork(*, in_child: bool) -> None:
    for stop_signals in _stop_signals:
        stop_signals.after_fork(in_child=in_child)


os.register_at_fork(
    before=_before_fork,
    after_in_parent=lambda: _after_fork(in_child=False),
    after_in_child=lambda: _after_fork(in_child=True),
)
