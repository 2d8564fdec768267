"""The thread that connects for a loop, when the process has nothing left to connect with."""

from __future__ import annotations

import errno
import logging

import pytest

from queue_workflows.db.connections.bounded_wire import Wire
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
