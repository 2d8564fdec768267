"""What the loop of every role shares: ticks that say when the next is due, and the signals that end it.

tick ──> delay ──> wait (until then, or until something rings) ──> tick … ──> None: over
                     ^
first signal: stop gracefully ──ring──┘    second signal: stop at once
"""

from __future__ import annotations

import selectors
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from enum import IntEnum
from types import FrameType
from typing import Self

from queue_workflows.db.listen.join_thread import INTERRUPT, Wakeup
from queue_workflows.errors import ExitCode
from queue_workflows.host.processes.harden import ENDING, exit_code_of, hearable
from queue_workflows.host.processes.unwind import raise_what_was_asked


def run(tick: Callable[[], float | None], wait: Callable[[float], object]) -> None:
    """Tick, wait for as long as the tick said, and again, until it says None."""
    while (delay := tick()) is not None:
        wait(max(0.0, delay))


class Urgency(IntEnum):
    """How soon a process shall end."""

    NONE = 0
    GRACEFUL = 1
    AT_ONCE = 2


class Halt:
    """Whether this process was asked to end, how urgently, and by which signal; each asking rings."""

    def __init__(self, ring: Callable[[], None]) -> None:
        self._ring = ring
        self.urgency = Urgency.NONE
        self.by: signal.Signals | None = None

    def ask(self, by: signal.Signals | None = None) -> None:
        """Ask once more; from any thread, and from a signal handler."""
        self.urgency = Urgency(min(self.urgency + 1, Urgency.AT_ONCE))
        self.by = by or self.by
        self._ring()

    @property
    def exit_code(self) -> ExitCode:
        """A graceful end is as good as any; one that could not wait says which signal it was."""
        if self.urgency < Urgency.AT_ONCE or self.by is None:
            return ExitCode.DONE
        return exit_code_of(self.by)

    @contextmanager
    def on_signals(self, numbers: Sequence[signal.Signals] = ENDING) -> Iterator[None]:
        """Take these signals as asking; in the main thread only. One that came before ends the role here."""

        def asked(number: int, _frame: FrameType | None) -> None:
            self.ask(signal.Signals(number))

        raise_what_was_asked()
        before = {number: signal.signal(number, asked) for number in hearable(numbers)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


class Waiter:
    """A wait that ends when somebody rings, or when one of the descriptors that it watches is readable."""

    def __init__(self) -> None:
        self._bell = Wakeup()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._bell.fileno(), selectors.EVENT_READ, None)

    def ring(self) -> None:
        """End the present or the next wait; from any thread, and from a signal handler."""
        self._bell.ring(INTERRUPT)

    def watch(self, fileno: int, call: Callable[[], None]) -> None:
        """From now on a wait ends, and calls this, when the descriptor is readable."""
        self._selector.register(fileno, selectors.EVENT_READ, call)

    def forget(self, fileno: int) -> None:
        """Watch a descriptor no more; to be called before it is closed."""
        self._selector.unregister(fileno)

    def wait(self, seconds: float) -> None:
        """Wait for so long at most, then make the calls that are due."""
        due = [key.data for key, _ in self._selector.select(seconds)]
        self._bell.answer()
        for call in due:
            if call is not None:
                call()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._selector.close()
