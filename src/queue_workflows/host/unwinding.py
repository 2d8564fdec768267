"""An exception that a signal handler raises, and that cannot get lost on its way out of the main thread.

Python swallows an exception that a signal handler raises while a garbage collector's callback, a weak
reference's or a `__del__` runs, and every import runs some. So it is insisted on: for as long as the program
goes on, and the exception is on its way no more, it is raised anew. While `finally` blocks run it is on its
way, so that each of them runs once; and when the interpreter ends, the program has been left.
"""

from __future__ import annotations

import signal
import sys
import weakref
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any, Final

_INSIST_EVERY_S: Final = 0.05


class Unwinding:
    """Raises what `make` makes, again and again if it has to; for the main thread, which handles signals."""

    def __init__(self) -> None:
        self._make: Callable[[], BaseException] | None = None
        self._on_its_way: weakref.ref[BaseException] | None = None
        self._outermost: CodeType | None = None
        self._before: Any = None
        self._hook = sys.unraisablehook

    def begin(self, make: Callable[[], BaseException], frame: FrameType | None = None) -> None:
        """Raise it, and insist from now on; begun again, with what is given last. `frame` is where we are."""
        self._outermost = _outermost(frame)
        if self._make is None:
            self._hook, sys.unraisablehook = sys.unraisablehook, self._swallowed
            self._before = signal.signal(signal.SIGALRM, self._insist)
        self._make = make
        signal.setitimer(signal.ITIMER_REAL, _INSIST_EVERY_S, _INSIST_EVERY_S)
        self._raise(make)

    def end(self) -> None:
        """It has arrived."""
        if self._make is not None:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, self._before)
            sys.unraisablehook = self._hook
            self._make = None

    def _insist(self, _number: int, frame: FrameType | None) -> None:
        is_on_its_way = self._on_its_way is not None and self._on_its_way() is not None
        if self._make is not None and not is_on_its_way and _outermost(frame) is self._outermost:
            self._raise(self._make)

    def _raise(self, make: Callable[[], BaseException]) -> None:
        exception = make()
        self._on_its_way = weakref.ref(exception)
        try:
            raise exception
        finally:
            del exception  # or this frame, which its traceback has, would keep it alive

    def _swallowed(self, unraisable: Any) -> None:
        """Python's report of what it swallowed; ours comes again and needs none."""
        on_its_way = self._on_its_way and self._on_its_way()
        if on_its_way is None or unraisable.exc_value is not on_its_way:
            self._hook(unraisable)


def _outermost(frame: FrameType | None) -> CodeType | None:
    """What all that runs was called from: at the interpreter's end that is no longer the program."""
    while frame is not None and frame.f_back is not None:
        frame = frame.f_back
    return frame and frame.f_code
