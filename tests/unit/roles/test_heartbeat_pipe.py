"""The pipe by which an orchestrator tells its supervisor that it gets on."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import suppress

import pytest
from support.processes.workers import until

from queue_workflows.roles import heartbeat_pipe
from queue_workflows.roles.heartbeat_pipe import PIPE, HeartbeatPipe, told


@pytest.fixture
def line() -> Iterator[HeartbeatPipe]:
    line = HeartbeatPipe(0, stale_s=30, first_s=300)
    yield line
    line.close()


def test_silence_is_judged_by_when_it_was_last_heard(line: HeartbeatPipe) -> None:
    """However much it said before, and at once again when it says something."""
    os.write(line.fd, b"...")
    assert [line.judge(at) for at in (10, 20, 30, 40)] == [None] * 4
    os.write(line.fd, b".")
    assert [line.judge(at) for at in (41, 51, 61, 71)] == [None] * 4
    assert line.judge(72) == "no sign of life for 31 s"
    line.handed_over()


def test_its_first_word_may_take_longer(line: HeartbeatPipe) -> None:
    """It has to import the host app first; one that ends meanwhile is nothing that silence says."""
    line.handed_over()
    assert {line.judge(at) for at in range(10, 301, 10)} == {None}
    assert line.judge(301) == "no sign of life within 300 s"


def test_who_did_not_look_himself_has_heard_nothing(line: HeartbeatPipe) -> None:
    """A machine or a supervisor that stood still for an hour judges nobody by it."""
    os.write(line.fd, b".")
    assert [line.judge(at) for at in (10, 3610, 3620, 3630)] == [None] * 4
    assert line.judge(3641) == "no sign of life for 31 s"
    line.handed_over()


def test_it_is_told_while_all_is_well(monkeypatch: pytest.MonkeyPatch) -> None:
    """And no more when it is not, or nothing watches any more; what fails beside it keeps nothing from it."""
    monkeypatch.setattr(heartbeat_pipe, "EVERY_S", 0.01)
    pipe, end = os.pipe()
    environ = {PIPE: str(end)}
    is_fine, asked = threading.Event(), threading.Event()
    is_fine.set()

    def see_to() -> None:
        raise ValueError("odd")

    def fine() -> bool:
        asked.set()
        return is_fine.is_set()

    def asked_twice() -> None:
        """What was begun before is through then."""
        for _ in range(2):
            asked.clear()
            assert asked.wait(150)

    with told(fine, see_to, environ):
        assert environ == {}
        assert not os.get_inheritable(end)
        assert os.read(pipe, 1) == b"."
        is_fine.clear()
        asked_twice()
        os.set_blocking(pipe, False)
        with suppress(BlockingIOError):
            os.read(pipe, 1_000)
        asked_twice()
        with pytest.raises(BlockingIOError):
            os.read(pipe, 1)
    os.close(pipe)
    os.close(end)


def test_without_a_supervisor_it_only_looks_after_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeat_pipe, "EVERY_S", 0.01)
    seen: list[None] = []
    with told(lambda: True, lambda: seen.append(None), {}):
        until(lambda: len(seen) > 1)
