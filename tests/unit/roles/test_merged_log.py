"""One log of several children: whole lines, with the name of who said it."""

from __future__ import annotations

import json
import os
import subprocess
import threading

import pytest
from support.processes.workers import until

from queue_workflows.cli.roles.up import Prefixed
from queue_workflows.drawing.terminal import stdout_terminal
from queue_workflows.roles.merged_log import LONGEST_LINE, MergedLog


class Page:
    """What was written, in order."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, str]] = []

    def write(self, name: str, line: str) -> None:
        self.lines.append((name, line))

    def of(self, name: str) -> list[str]:
        return [line for who, line in self.lines if who == name]


def unread() -> None:
    raise AssertionError("somebody reads")


def shell(log: MergedLog, name: str, script: str) -> subprocess.Popen[bytes]:
    with log.outlet(name) as stream:
        return subprocess.Popen(["sh", "-c", script], stdout=stream, stderr=stream)


def test_whole_lines_of_all_to_the_last():
    """Both streams, and what has no end of line."""
    page = Page()
    with MergedLog(page.write, unread) as log:
        children = [
            shell(log, "a", "echo one; echo two >&2; printf half; printf ' of it'"),
            shell(log, "b", "printf 'x\\r\\n\\n\\377\\n'"),
        ]
        assert [child.wait() for child in children] == [0, 0]
    until(lambda: len(page.lines) == 6)
    assert page.of("a") == ["one", "two", "half of it"]
    assert page.of("b") == ["x", "", "\N{REPLACEMENT CHARACTER}"]


def test_a_line_without_end_is_broken():
    """Rather than kept until memory is full."""
    page = Page()
    with MergedLog(page.write, unread) as log:
        child = shell(log, "a", f"head -c {3 * LONGEST_LINE} /dev/zero | tr '\\0' x")
        assert child.wait() == 0
    until(lambda: sum(map(len, page.of("a"))) == 3 * LONGEST_LINE)
    assert "".join(page.of("a")) == "x" * 3 * LONGEST_LINE
    assert max(map(len, page.of("a"))) <= 2 * LONGEST_LINE


def test_when_nobody_reads_the_children_are_not_held_up():
    """It is told once, and what they say is let go."""
    told = threading.Semaphore(0)

    def write(_name: str, _line: str) -> None:
        raise BrokenPipeError

    with MergedLog(write, told.release) as log:
        child = shell(log, "a", "yes | head -c 1000000")
        assert child.wait(150) == 0
        assert told.acquire(timeout=60)
    assert not told.acquire(blocking=False)


def test_who_comes_later_is_named_as_well(capsys: pytest.CaptureFixture[str]) -> None:
    """As a janitor, of which nobody knows when the others start; what all say goes on."""
    with MergedLog(Prefixed(["fetch/1", "up"], stdout_terminal()).write, unread) as log:
        assert shell(log, "janitor/1", "echo swept").wait() == 0
        assert shell(log, "up", "echo done").wait() == 0
    assert sorted(capsys.readouterr().out.splitlines()) == ["janitor/1 | swept", "up      | done"]


@pytest.mark.parametrize("printed", ["[" * 60_000, '{"a": NaN}', "1" * 5_000, "[1]", "no object"])
def test_in_json_what_a_child_prints_is_a_message_whatever_it_is(
    printed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A line that no reader of JSON takes does not end the log, which all children wait for."""
    with MergedLog(Prefixed(["up"], stdout_terminal(), is_json=True).write, unread) as log:
        assert shell(log, "up", f"echo '{printed}'; echo '{{\"level\": \"INFO\"}}'").wait() == 0
    told = [json.loads(line, parse_constant=pytest.fail) for line in capsys.readouterr().out.splitlines()]
    assert told == [{"role": "up", "message": printed}, {"role": "up", "level": "INFO"}]


def test_a_child_that_cannot_be_started_leaves_no_descriptor():
    """Nor one that was started and has ended."""
    page = Page()

    def fails(log: MergedLog) -> None:
        try:
            with log.outlet("a"):
                raise OSError
        except OSError:
            pass

    with MergedLog(page.write, unread) as log:
        before = open_files()
        fails(log)
        shell(log, "b", "echo there").wait()
        until(lambda: page.of("b") == ["there"])
        until(lambda: open_files() == before)


def test_a_leftover_that_holds_its_pipe_does_not_hold_us():
    """Closing does not wait for it."""
    page = Page()
    reader, writer = os.pipe()
    try:
        with MergedLog(page.write, unread) as log:
            with log.outlet("a") as stream:
                child = subprocess.Popen(["cat"], stdin=reader, stdout=stream)
            os.close(reader)
    finally:
        os.close(writer)
    assert child.wait(150) == 0


def open_files() -> int:
    """How many descriptors this process has."""
    return len(os.listdir("/dev/fd"))
