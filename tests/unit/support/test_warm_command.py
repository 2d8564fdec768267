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

import psutil
import pytest
from support.processes.environments import environment_without
from support.processes.workers import patiently
from support.suite import warm_command
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


@pytest.mark.timeout(100)
def test_it_ends_though_a_process_that_a_test_forked_lives_on(tmp_path: Path) -> None:
    """What that has a copy of keeps nobody waiting."""
    with warm_qwf(tmp_path):
        if (forked := os.fork()) == 0:
            signal.pause()
    os.kill(forked, signal.SIGKILL)
    os.waitpid(forked, 0)


@pytest.mark.timeout(100)
def test_a_server_that_does_not_end_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not waited for without a limit."""
    monkeypatch.setattr(warm_command, "_ENDS_WITHIN_S", 0.5)
    before = set(psutil.Process().children())
    with warm_qwf(tmp_path):
        (server,) = set(psutil.Process().children()) - before
        server.suspend()
    assert not server.is_running()


def test_a_command_has_no_descriptor_of_the_server(tmp_path: Path) -> None:
    """However many this process had open as that was started."""
    program, python = tmp_path / "program.py", tmp_path / "python"
    program.write_text("import os\nprint(sorted(map(int, os.listdir('/proc/self/fd'))))\n")
    many = [os.open(os.devnull, os.O_RDONLY) for _ in range(300)]
    try:
        with warm_command._served("python", python, Path(sys.executable)):
            said = subprocess.run([python, program], capture_output=True, text=True, check=True).stdout
    finally:
        for each in many:
            os.close(each)
    # The last is that of the listing.
    assert said == "[0, 1, 2, 3]\n"
