"""SIGTERM and Ctrl-C as exceptions that cannot get lost, for commands without signal handling of their own.

Python swallows an exception that a signal handler raises while a garbage collector's callback, a weak
reference's or a `__del__` runs, and every import runs some. So a stop is insisted on: for as long as the
command goes on, and the exception is on its way no more, it is raised anew.
"""

from __future__ import annotations

import signal
import sys
import threading
import weakref
from types import FrameType, TracebackType
from typing import Any, Final, Self

from queue_workflows.cli.ending import Interrupted, Stopped, Terminated

_INSIST_EVERY_S: Final = 0.05


class Stops:
    """Within it, the first SIGTERM or SIGINT unwinds the command; afterwards `asked` says which it was.

    Only in the main thread, where signals are handled; the roles install their own handling over this.
    """

    def __init__(self) -> None:
        self.asked: type[Stopped] | None = None
        self._on_its_way: weakref.ref[Stopped] | None = None
        self._before: dict[signal.Signals, Any] = {}
        self._hook = sys.unraisablehook

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._hook, sys.unraisablehook = sys.unraisablehook, self._swallowed
            self._take(signal.SIGTERM, self._terminate)
            # Whoever started us deaf to Ctrl-C (`nohup`, a shell's `&`) wants us to stay so.
            if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
                self._take(signal.SIGINT, self._interrupt)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if not self._before:
            return
        if signal.SIGALRM in self._before:
            signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in self._before.items():
            signal.signal(number, handler)
        sys.unraisablehook = self._hook

    def instead_of(self, error: BaseException) -> BaseException:
        """A stop that was caught on its way and replaced by another error is still that stop."""
        return error if self.asked is None or isinstance(error, Stopped) else self.asked()

    def _take(self, number: signal.Signals, handler: Any) -> None:
        self._before.setdefault(number, signal.signal(number, handler))

    def _terminate(self, _number: int, _frame: FrameType | None) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # a second one need not be so polite
        self._stop(Terminated)

    def _interrupt(self, _number: int, _frame: FrameType | None) -> None:
        self._stop(Interrupted)

    def _stop(self, kind: type[Stopped]) -> None:
        self.asked = kind
        self._take(signal.SIGALRM, self._insist)
        signal.setitimer(signal.ITIMER_REAL, _INSIST_EVERY_S, _INSIST_EVERY_S)
        self._raise(kind)

    def _insist(self, _number: int, _frame: FrameType | None) -> None:
        if self.asked and (self._on_its_way is None or self._on_its_way() is None):
            self._raise(self.asked)

    def _raise(self, kind: type[Stopped]) -> None:
        stop = kind()
        self._on_its_way = weakref.ref(stop)
        raise stop

    def _swallowed(self, unraisable: Any) -> None:
        """Python's report of what it swallowed; a stop of ours comes again and needs none."""
        if not isinstance(unraisable.exc_value, Stopped):
            self._hook(unraisable)
