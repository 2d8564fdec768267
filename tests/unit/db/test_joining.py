"""The thread that connects for a loop, when the process has nothing left to connect with."""

from __future__ import annotations

import errno
import gc
import logging
import sys
from typing import Any

import pytest

from queue_workflows.db.connections.bounded_wire import Wire
from queue_workflows.db.listen import join_thread
from queue_workflows.db.listen.join_thread import ARRIVED, Attempt, Wakeup


@pytest.mark.parametrize("failure", [OSError(errno.EMFILE, "Too many open files"), MemoryError()])
def test_a_process_at_fault_is_told_of(failure: Exception, caplog: pytest.LogCaptureFixture) -> None:
    """To what ends the process, from the thread that failed, and without a traceback."""

    def join() -> Wire:
        raise failure

    told: list[Exception] = []
    bell = Wakeup()
    attempt = Attempt(join, bell, told.append)
    with caplog.at_level(logging.DEBUG):
        attempt.start()
        attempt.join(150)
    assert told == [failure]
    assert attempt.done
    assert attempt.trouble
    assert bell.answer() == ARRIVED
    assert not caplog.records


def test_a_bell_that_a_signal_ends_in_its_making_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A traceback of what was made in part would be the last line of a process that stops as asked."""

    def stopped(_descriptor: int) -> Any:
        raise SystemExit

    said: list[Any] = []
    monkeypatch.setattr(join_thread, "Descriptors", stopped)
    monkeypatch.setattr(sys, "unraisablehook", said.append)
    with pytest.raises(SystemExit):
        Wakeup()
    gc.collect()
    assert not said
