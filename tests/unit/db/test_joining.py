"""The thread that connects for a loop, when the process has nothing left to connect with."""

from __future__ import annotations

import errno
import gc
import logging
import sys
from typing import Any

import pytest
from support.processes.workers import until

from queue_workflows.db.connections.bounded_wire import Wire
from queue_workflows.db.listen import join_thread
from queue_workflows.db.listen.join_thread import ARRIVED, Attempt, Wakeup
from queue_workflows.db.listen.listener import Listener


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
        until(lambda: bell.answer() == ARRIVED)
    assert told == [failure]
    assert attempt.done
    assert attempt.trouble
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


def test_a_thread_that_is_lost_as_it_starts_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without memory, or by an exception that was meant for what starts it; nothing waits for it."""
    started: list[str] = []
    clock = iter(range(0, 1000, 2))
    monkeypatch.setattr(join_thread, "start_thread", lambda _work, name: started.append(name))
    with Listener(
        lambda: pytest.fail("nobody connects"), ["jobs"], now=lambda: float(next(clock))
    ) as listener:
        for _ in range(6):
            assert listener.wait(0) is None
        assert listener.state == "joining"
    assert len(started) > 1
