"""An exception that a signal handler raises, and that cannot get lost on its way out of the main thread.

Python swallows an exception that a signal handler raises while a garbage collector's callback, a weak
reference's or a `__del__` runs, and every import runs some. A `finally` block that fails puts its own failure
in the place of the exception, and a program that tries again after such a failure goes on. So it is insisted
on: for as long as the program goes on, and the exception is on its way no more, it is raised anew. While
`finally` blocks run it is on its way, so that each of them runs once; and when the interpreter ends, the
program has been left.

On its way is what is alive. What came in its place may keep it alive in a circle, so circles are looked for
now and then; and a role that begins, to which no `finally` block leads, raises it in any case.

A caller with a thread for it calls `insist` there, and SIGALRM comes only when it has to: a `finally` block
may have timeouts of its own, and may exec a program. Else an interval timer sends it all the time.
"""

from __future__ import annotations

import gc
import signal
import sys
import threading
import weakref
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any, Final

INSIST_EVERY_S: Final = 0.05
# After how many rounds on its way circles are looked for, which takes a while; next after twice as many.
_FIRST_COLLECTED: Final = 16


class Unwinding:
    """Raises what `make` makes, again and again if it has to; for the main thread, which handles signals."""

    def __init__(self, *, by_timer: bool = True) -> None:
        self._by_timer = by_timer
        self._make: Callable[[], BaseException] | None = None
        self._on_its_way: weakref.ref[BaseException] | None = None
        self._outermost: CodeType | None = None
        self._before: Any = None
        self._hook = sys.unraisablehook
        self._rounds, self._collects_at = 0, _FIRST_COLLECTED

    def begin(self, make: Callable[[], BaseException], frame: FrameType | None = None) -> None:
        """Raise what `make` makes, the one given last, and insist from now on. `frame` is where we are."""
        self._outermost = _outermost(frame)
        if self._make is None:
            self._hook, sys.unraisablehook = sys.unraisablehook, self._swallowed
            self._before = signal.signal(signal.SIGALRM, self._insist)
            _begun.append(self)
        self._make = make
        if self._by_timer:
            signal.setitimer(signal.ITIMER_REAL, INSIST_EVERY_S, INSIST_EVERY_S)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGALRM])  # what blocked it is being left
        self._raise(make)

    def insist(self) -> None:
        """Raise it anew if it was swallowed; for another thread to call about every INSIST_EVERY_S."""
        main = threading.main_thread().ident
        if main is None or self._make is None:
            return
        self._look_for_circles()
        if not self._is_on_its_way() and signal.getsignal(signal.SIGALRM) == self._insist:
            signal.pthread_kill(main, signal.SIGALRM)

    def end(self) -> None:
        """Insist no more: the exception has arrived."""
        if self._make is not None:
            if self._by_timer:
                signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, self._before)
            sys.unraisablehook = self._hook
            self._make = None
            _begun.remove(self)

    def raise_anew(self) -> None:
        """Raise what is insisted on, whatever keeps the last one alive."""
        if self._make is not None:
            self._raise(self._make)

    def _insist(self, _number: int, frame: FrameType | None) -> None:
        if self._make is None or _outermost(frame) is not self._outermost:
            return
        self._look_for_circles()
        if not self._is_on_its_way():
            self._raise(self._make)

    def _look_for_circles(self) -> None:
        """Let an exception die that nothing but a circle keeps alive: that of a failure in its place."""
        self._rounds += 1
        if self._is_on_its_way() and self._rounds >= self._collects_at:
            self._collects_at = 2 * self._rounds
            gc.collect()

    def _is_on_its_way(self) -> bool:
        """Whether the exception is on its way, by its reference: no other thread may be its last holder."""
        return self._on_its_way is not None

    def _raise(self, make: Callable[[], BaseException]) -> None:
        exception = make()
        self._on_its_way = weakref.ref(exception, self._arrived)
        try:
            raise exception
        finally:
            del exception  # or this frame, which its traceback has, would keep it alive

    def _arrived(self, reference: weakref.ref[BaseException]) -> None:
        """Note that it has died, which a reference does not tell of what the collector has taken."""
        if self._on_its_way is reference:
            self._on_its_way = None

    def _swallowed(self, unraisable: Any) -> None:
        """Python's report of what it swallowed; ours comes again and needs none."""
        on_its_way = self._on_its_way and self._on_its_way()
        if on_its_way is None or unraisable.exc_value is not on_its_way:
            self._hook(unraisable)


_begun: Final[list[Unwinding]] = []


def raise_what_was_asked() -> None:
    """Raise anew what a signal has asked for, if any has; for a role that begins, and takes signals itself.

    What was on its way has not arrived, so something has swallowed it.
    """
    for unwinding in _begun:
        unwinding.raise_anew()


def _outermost(frame: FrameType | None) -> CodeType | None:
    """What all that runs was called from: at the interpreter's end that is no longer the program."""
    while frame is not None and frame.f_back is not None:
        frame = frame.f_back
    return frame and frame.f_code
