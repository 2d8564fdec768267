"""An exception that a signal handler raises, and that cannot get lost on its way out of the main thread.

Python swallows an exception that a signal handler raises while a garbage collector's callback, a weak
reference's or a `__del__` runs, and every import runs some. So it is insisted on: for as long as the program
goes on, and the exception is on its way no more, it is raised anew. While `finally` blocks run it is on its
way, so that each of them runs once; and when the interpreter ends, the program has been left.

A caller with a thread for it calls `insist` there, and SIGALRM comes only when it has to: a `finally` block
may have timeouts of its own, and may exec a program. Else an interval timer sends it all the time.
"""

from __future__ import annotations

import signal
import sys
import threading
import weakref
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any, Final

INSIST_EVERY_S: Final = 0.05


class Unwinding:
    """Raises what `make` makes, again and again if it has to; for the main thread, which handles signals."""

    def __init__(self, *, by_timer: bool = True) -> None:
        self._by_timer = by_timer
        self._make: Callable[[], BaseException] | None = None
        self._on_its_way: weakref.ref[BaseException] | None = None
        self._outermost: CodeType | None = None
        self._before: Any = None
        self._hook = sys.unraisablehook

    def begin(self, make: Callable[[], BaseException], frame: FrameType | None = None) -> None:
        """Raise what `make` makes, the one given last, and insist from now on. `frame` is where we are."""
        self._outermost = _outermost(frame)
        if self._make is None:
            self._hook, sys.unraisablehook = sys.unraisablehook, self._swallowed
            self._before = signal.signal(signal.SIGALRM, self._insist)
        self._make = make
        if self._by_timer:
            signal.setitimer(signal.ITIMER_REAL, INSIST_EVERY_S, INSIST_EVERY_S)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGALRM])  # what blocked it is being left
        self._raise(make)

    def insist(self) -> None:
        """Raise it anew if it was swallowed; for another thread to call about every INSIST_EVERY_S."""
        main = threading.main_thread().ident
        if main is None or self._make is None or self._is_on_its_way():
            return
        if signal.getsignal(signal.SIGALRM) == self._insist:
            signal.pthread_kill(main, signal.SIGALRM)

    def end(self) -> None:
        """Insist no more: the exception has arrived."""
        if self._make is not None:
            if self._by_timer:
                signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, self._before)
            sys.unraisablehook = self._hook
            self._make = None

    def _insist(self, _number: int, frame: FrameType | None) -> None:
        if self._make is None or self._is_on_its_way() or _outermost(frame) is not self._outermost:
            return
        self._raise(self._make)

    def _is_on_its_way(self) -> bool:
        """Whether the exception is on its way, by its reference: no other thread may be its last holder."""
        return self._on_its_way is not None and self._on_its_way.__callback__ is not None

    def _raise(self, make: Callable[[], BaseException]) -> None:
        exception = make()
        self._on_its_way = weakref.ref(exception, _arrived)
        try:
            raise exception
        finally:
            del exception  # or this frame, which its traceback has, would keep it alive

    def _swallowed(self, unraisable: Any) -> None:
        """Python's report of what it swallowed; ours comes again and needs none."""
        on_its_way = self._on_its_way and self._on_its_way()
        if on_its_way is None or unraisable.exc_value is not on_its_way:
            self._hook(unraisable)


def _arrived(_reference: weakref.ref[BaseException]) -> None:
    """What a living exception's reference has, and a dead one's has not."""


def _outermost(frame: FrameType | None) -> CodeType | None:
    """What all that runs was called from: at the interpreter's end that is no longer the program."""
    while frame is not None and frame.f_back is not None:
        frame = frame.f_back
    return frame and frame.f_code
