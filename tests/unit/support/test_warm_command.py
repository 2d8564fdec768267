"""The quick `qwf` of the documentation's pages ends, and is ended, as the real one."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import termios
from array import array
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.processes.environments import environment_without
from support.processes.workers import patiently
from support.suite.warm_command import warm_qwf

# It waits for its standard input.
WAITS = ("run", "check", "-")


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The command."""
    with warm_qwf(tmp_path_factory.mktemp("commands")) as command:
        yield command


def environment() -> dict[str, str]:
    """One in which nothing is a reason to start a new interpreter."""
    kept = environment_without("PYTHONPATH")
    return kept | {"QWF_DB_URL": "postgresql://here/film"}


def said(command: Path, *arguments: str, given: str = "") -> tuple[int, str, str]:
    """How it ends and what it says."""
    command_line = [command, *arguments]
    done = subprocess.run(command_line, env=environment(), input=given, capture_output=True, text=True)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize(
    ("arguments", "given"),
    [
        (WAITS, "{"),
        (WAITS, "name: w\nnodes: [{id: a, module: m}]\n"),
        (("db", "url"), ""),
        (("nonsense",), ""),
    ],
    ids=["broken", "sound", "environment", "usage"],
)
def test_it_says_what_the_real_one_says(quick: Path, arguments: tuple[str, ...], given: str) -> None:
    """With the same status; its input, its arguments and its environment are its own."""
    real = Path(sys.executable).with_name("qwf")
    quickly, really = (said(one, *arguments, given=given) for one in (quick, real))
    assert quickly == really
    assert arguments != ("db", "url") or "here/film" in quickly[1]


def waiting(quick: Path) -> subprocess.Popen[bytes]:
    """One that has read a part of its input and waits for more."""
    process = subprocess.Popen([quick, *WAITS], env=environment(), stdin=subprocess.PIPE)
    assert process.stdin is not None
    process.stdin.write(b"name: w\n")
    process.stdin.flush()
    patiently(lambda: unread(process) == 0)
    return process


def unread(process: subprocess.Popen[bytes]) -> int:
    """How much of its input it has not read yet."""
    assert process.stdin is not None
    found = array("i", [0])
    fcntl.ioctl(process.stdin.fileno(), termios.FIONREAD, found)
    return found[0]


def is_read(process: subprocess.Popen[bytes]) -> bool:
    """Whether somebody is there to read its input."""
    assert process.stdin is not None
    try:
        os.write(process.stdin.fileno(), b"#\n")
    except BrokenPipeError:
        return False
    return True


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_signal_ends_it(quick: Path, number: signal.Signals) -> None:
    """One that it may hear is handed on; if the client is killed, the command is too."""
    with waiting(quick) as process:
        process.send_signal(number)
        assert process.wait(60) in (-number, 128 + number)
        patiently(lambda: not is_read(process))
