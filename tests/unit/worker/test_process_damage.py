"""What a worker says when its own process is at fault, before it ends."""

from __future__ import annotations

import errno
import logging
import math
from types import SimpleNamespace
from typing import Any

import pytest

from queue_workflows.db.connections.exhaustion import is_exhausted
from queue_workflows.engine.execution.guards import Budget, HeldJob
from queue_workflows.host.processes import last_word
from queue_workflows.host.processes.last_word import PIPE, Announcer, LastWord
from queue_workflows.host.processes.lease_timer import DeadMan
from queue_workflows.roles.worker.guardian import process_damage as damage_module
from queue_workflows.roles.worker.guardian.held_jobs import HeldJobs
from queue_workflows.roles.worker.guardian.process_damage import ProcessDamage
from queue_workflows.roles.worker.guardian.stop_signals import StopSignals


class _Left(BaseException):
    """In the place of the end of this process."""


def _held(number: int, started: float) -> HeldJob:
    job: Any = SimpleNamespace(id=number, attempt=1)
    return HeldJob(job, SimpleNamespace(), Budget(10.0, 3.0), started, 30.0)  # type: ignore[arg-type]


def test_what_had_begun_is_told_although_its_thread_is_at_another_job(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A job that has ended unwritten is suspected; one that was claimed ahead is not."""

    def leave(status: int) -> None:
        raise _Left(status)

    word = LastWord()
    monkeypatch.setattr(last_word, "own", Announcer({PIPE: str(word.fd)}))
    monkeypatch.setattr(damage_module, "leave", leave)
    holdings = HeldJobs(DeadMan(enabled=False), 30.0)
    holdings.exchange([_held(5, 0.0), _held(6, 0.0), _held(7, math.inf)], [])
    # The thread that had run 5 is at 6.
    last_word.own.begins(0, 5)
    last_word.own.begins(0, 6)
    with caplog.at_level(logging.CRITICAL), pytest.raises(_Left):
        ProcessDamage(StopSignals(lambda _: None), holdings).leave_if_at_fault(
            OSError(errno.EMFILE, "too many")
        )
    assert word.begun() == {5, 6}
    (record,) = caplog.records
    assert record.exc_info is None
    assert record.getMessage().endswith("it holds the jobs 5, 6, 7")


@pytest.mark.parametrize(
    "failure",
    [
        OSError(errno.EMFILE, "x"),
        OSError(errno.ENOMEM, "x"),
        MemoryError(),
        RuntimeError("can't start new thread"),
    ],
)
def test_what_a_process_is_out_of(failure: Exception) -> None:
    """Descriptors, memory, threads; also as the cause of another failure."""
    outer = ValueError("y")
    outer.__cause__ = failure
    assert (is_exhausted(failure), is_exhausted(outer)) == (True, True)
    assert not is_exhausted(RuntimeError("another"))
