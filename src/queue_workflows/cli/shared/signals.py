"""SIGTERM and Ctrl-C as exceptions, for commands without signal handling of their own."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any, Final, Self

from queue_workflows.cli.shared.error_exit import Interrupted, Stopped, Terminated
from queue_workflows.host.processes.unwind import Unwinding

_STOPS: Final = (signal.SIGTERM, signal.SIGINT)


class Stops:
    """Within it the first SIGTERM or SIGINT that is let through unwinds the command; then `asked` says which.

    Only in the main thread, where signals are handled; the roles install their own handling over this.
    """

    def __init__(self) -> None:
        self.asked: type[Stopped] | None = None
        self._unwinding = Unwinding()
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            # One that comes before the block has begun would not find its way out of it.
            signal.pthread_sigmask(signal.SIG_BLOCK, _STOPS)
            self._take(signal.SIGTERM, self._terminate)
            # A process that started us deaf to Ctrl-C (`nohup`, a shell's `&`) wants us to stay so.
            if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
                self._take(signal.SIGINT, self._interrupt)
        return self

    def __exit__(self, *_: object) -> None:
        self._unwinding.end()
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def let_through(self) -> None:
        """Unwind from now on, also for what came before: a worker that executes itself anew holds it back."""
        if threading.current_thread() is threading.main_thread():
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOPS)

    def instead_of(self, error: BaseException) -> BaseException:
        """A stop that was caught on its way and replaced by another error is still that stop."""
        return error if self.asked is None or isinstance(error, Stopped) else self.asked()

    def _take(self, number: signal.Signals, handler: Any) -> None:
        self._before.setdefault(number, signal.signal(number, handler))

    def _terminate(self, _number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # a second one need not be so polite
        self._stop(Terminated, frame)

    def _interrupt(self, _number: int, frame: FrameType | None) -> None:
        self._stop(Interrupted, frame)

    def _stop(self, kind: type[Stopped], frame: FrameType | None) -> None:
        self.asked = kind
        self._unwinding.begin(kind, frame)
