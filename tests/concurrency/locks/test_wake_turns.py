"""Whose turn it is to look for what all workers of a host were woken for, by seats in a line."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import pytest

from queue_workflows.host import wake_turns
from queue_workflows.host.wake_turns import WakeTurns

SITS = """
import sys
from queue_workflows.host.wake_turns import WakeTurns
turns = WakeTurns.among(sys.argv[1])
turns.wait_in_line(is_free=sys.argv[2] == "free")
print(turns.ahead(), flush=True)
sys.stdin.read()
turns.close()
"""


# Where nothing more fits into what processes share.
FULL = """
mount -t tmpfs -o size=8k tmpfs /dev/shm && (head -c 8192 /dev/zero > /dev/shm/filled; exec "$0" -c "$1")
"""
IN_FULL = """
from queue_workflows.host.wake_turns import WakeTurns
turns = WakeTurns.among("here")
if turns is not None:
    turns.found_nothing(1.0, is_free=True)
print(turns)
"""


@pytest.fixture
def name() -> str:
    """Of a place where nobody else waits."""
    return f"test {uuid.uuid4()}"


@contextmanager
def sitting(name: str, how: str = "free") -> Iterator[tuple[subprocess.Popen[str], int]]:
    """Another process that waits in line, and how many sat before it."""
    command = [sys.executable, "-c", SITS, name, how]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield process, int(process.stdout.readline())


def of(name: str) -> WakeTurns:
    turns = WakeTurns.among(name)
    assert turns is not None
    return turns


def test_those_without_a_job_sit_in_the_order_of_their_coming(name: str) -> None:
    """And before those that have some; a seat that was left is the next one's."""
    with ExitStack() as stack:
        (busy, _), (first, zero), (_, one) = (
            stack.enter_context(sitting(name, how)) for how in ("busy", "free", "free")
        )
        own = stack.enter_context(closing(of(name)))
        own.wait_in_line(is_free=True)
        assert (zero, one, own.ahead()) == (0, 1, 2)
        own.wait_in_line(is_free=False)
        assert own.ahead() == 3
        own.wait_in_line(is_free=True)
        for process in (busy, first):
            process.communicate("")
        assert own.ahead() == 1


def test_the_seat_of_a_killed_process_is_free(name: str) -> None:
    """Nothing of it is left to wait for."""
    with sitting(name) as (process, _), closing(of(name)) as own:
        own.wait_in_line(is_free=True)
        assert own.ahead() == 1
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert own.ahead() == 0


def test_a_look_counts_for_what_came_before_it_began(name: str) -> None:
    """One beside jobs says nothing to those that would take a suspect; none is of the future."""
    with closing(of(name)) as own:
        began = time.monotonic()
        own.found_nothing(began, is_free=False)
        later = time.monotonic() + 1
        assert own.has_found_nothing_since(began - 1, later, is_free=False)
        assert not own.has_found_nothing_since(began, later, is_free=False)
        assert not own.has_found_nothing_since(began - 1, later, is_free=True)
        own.found_nothing(began, is_free=True)
        assert own.has_found_nothing_since(began - 1, later, is_free=True)
        own.found_nothing(began + 3600, is_free=True)
        assert not own.has_found_nothing_since(began, later, is_free=True)


def test_the_last_to_close_leaves_nothing_behind(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even a file."""
    monkeypatch.setattr(wake_turns, "_MEMORY", tmp_path)
    of(name).close()
    assert os.listdir(tmp_path) == []


def test_what_is_anothers_or_cannot_be_made_is_done_without(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each then looks whenever it is woken."""
    monkeypatch.setattr(wake_turns, "_MEMORY", tmp_path / "missing")
    assert WakeTurns.among(name) is None
    monkeypatch.setattr(wake_turns, "_MEMORY", tmp_path)
    of(name)
    (file,) = tmp_path.iterdir()
    file.unlink()
    file.symlink_to(tmp_path / "elsewhere")
    assert WakeTurns.among(name) is None


def test_what_killed_processes_left_is_removed(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the next that opens a file of its own; not what somebody uses, nor what was just made."""
    monkeypatch.setattr(wake_turns, "_MEMORY", tmp_path)
    names = [f"qwf-{os.geteuid()}-{kind}" for kind in ("old", "new", "used")]
    for each in names:
        (tmp_path / each).write_bytes(b"")
    for each in ("old", "used"):
        os.utime(tmp_path / f"qwf-{os.geteuid()}-{each}", (0, 0))
    holds = (
        "import fcntl, sys; f = open(sys.argv[1], 'r+'); fcntl.lockf(f, fcntl.LOCK_SH, 1, 512);"
        " print(flush=True); input()"
    )
    command = [sys.executable, "-c", holds, str(tmp_path / names[2])]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        with closing(of(name)):
            assert {path.name for path in tmp_path.iterdir()} > set(names[1:])
            assert not (tmp_path / names[0]).exists()
        process.communicate("\n")


def test_a_full_memory_costs_turns_and_no_worker() -> None:
    """A worker there looks for itself: to touch memory that cannot be had would kill it."""
    if subprocess.run(["unshare", "-rm", "true"], capture_output=True).returncode:
        pytest.skip("may not make a mount namespace here")
    command = ["unshare", "-rm", "sh", "-c", FULL, sys.executable, IN_FULL]
    ended = subprocess.run(command, capture_output=True, text=True)
    assert (ended.returncode, ended.stdout) == (0, "None\n")
