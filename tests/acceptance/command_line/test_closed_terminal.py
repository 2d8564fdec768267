"""A terminal that is closed, with an embedded server of its commands: nothing is lost or left behind."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import subprocess
import sys
import termios
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.processes.embedded_users import alive, processes_below, unset_environment, until
from support.suite import warm_starts

PATIENCE_S = 150
QWF = f"{sys.executable} -m queue_workflows"
WAITING = "name: waiting\nnodes: [{id: a, type: wait, seconds: 3600}]\n"
pytestmark = pytest.mark.slow


class Window:
    """A terminal with a shell in it, as a window on a screen has; closing it hangs up on all in there."""

    def __init__(self, script: str, place: Path, environment: dict[str, str]) -> None:
        self._master, slave = pty.openpty()
        self.shell = subprocess.Popen(
            ["/bin/sh", "-c", script],
            cwd=place,
            env=environment,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # noqa: PLW1509 - one thread
        )
        os.close(slave)

    def until(self, words: str) -> None:
        """Read until this is on the screen."""
        shown = ""
        while words not in shown:
            assert select.select([self._master], [], [], PATIENCE_S)[0], shown
            more = os.read(self._master, 65_536).decode("utf-8", "replace")
            assert more, shown
            shown += more

    def close(self) -> None:
        """Hang up, and wait for the shell's end."""
        os.close(self._master)
        self.shell.wait(PATIENCE_S)


@contextmanager
def window(script: str, place: Path, *, linger_s: str) -> Iterator[Window]:
    opened = Window(script, place, environment(place, linger_s=linger_s))
    try:
        yield opened
    finally:
        opened.shell.kill()


def environment(place: Path, *, linger_s: str) -> dict[str, str]:
    return {**unset_environment(place), "QWF_EMBEDDED_LINGER_S": linger_s, "QWF_GRACE_S": "1"}


def qwf(place: Path, *arguments: str) -> str:
    """What a command says in another window."""
    done = warm_starts.run(
        [*warm_starts.MODULE, *arguments],
        environment(place, linger_s="600"),
        cwd=place,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        timeout_s=PATIENCE_S,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def server_pid(place: Path) -> int:
    return int((place / ".qwf/postgres/data/postmaster.pid").read_text(encoding="ascii").split()[0])


def test_a_server_that_lingers_goes_on_for_its_time(directory: Path) -> None:
    """The next command finds it up with all that is in it, and it ends as any other does."""
    (directory / "waiting.yaml").write_text(WAITING, encoding="utf-8")
    with window(f"{QWF} db upgrade && echo lingers; sleep 600", directory, linger_s="600") as terminal:
        terminal.until("lingers")
        pid = server_pid(directory)
        qwf(directory, "run", "start", "waiting.yaml")
        terminal.close()
    assert qwf(directory, "run", "list").count(" waiting ") == 1
    assert server_pid(directory) == pid
    qwf(directory, "db", "stop")
    until(lambda: not alive(pid) and processes_below(directory) == [], "all is gone")


def test_a_server_that_lingers_ends_in_its_time(directory: Path) -> None:
    """Nobody stops it but its keeper, which the closed terminal does not reach."""
    with window(f"{QWF} db upgrade && echo lingers; sleep 600", directory, linger_s="1") as terminal:
        terminal.until("lingers")
        terminal.close()
    until(lambda: processes_below(directory) == [], "all is gone")
    assert qwf(directory, "db", "current").count("up to date") == 1
    qwf(directory, "db", "stop")


@pytest.mark.parametrize("command", ["hooks run Page --dir plugins --here", "up --no-web"])
def test_what_works_in_the_terminal_ends_with_it(directory: Path, command: str) -> None:
    """The command, its roles, their jobs, and the server that they were the last to use; the run is there."""
    (directory / "waiting.yaml").write_text(WAITING, encoding="utf-8")
    hook = directory / "plugins" / "a" / "on_Page__10_a.sh"
    hook.parent.mkdir(parents=True)
    hook.write_text(f"#!/bin/sh\ntouch {directory}/begun\nexec sleep 600\n", encoding="utf-8")
    hook.chmod(0o755)
    # The server that these have is over before the terminal is there.
    qwf(directory, "db", "upgrade")
    qwf(directory, "run", "start", "waiting.yaml")
    qwf(directory, "db", "stop")
    with window(f"exec {QWF} {command}", directory, linger_s="0") as terminal:
        if "--here" in command:
            until((directory / "begun").exists, "the hook runs")
        else:
            terminal.until("started, pid")
        terminal.close()
    until(lambda: processes_below(directory) == [], "all is gone")
    assert " waiting " in qwf(directory, "run", "list")
    qwf(directory, "db", "stop")


def test_a_terminal_that_is_closed_while_the_server_is_made(directory: Path) -> None:
    """Nothing goes on, and the next command makes it as if nothing had been."""
    with window(f"exec {QWF} db upgrade", directory, linger_s="600") as terminal:
        until(lambda: list(directory.glob(".qwf/postgres/*")), "it is being made")
        terminal.close()
    assert qwf(directory, "db", "upgrade") is not None
    assert "up to date" in qwf(directory, "db", "current")
    qwf(directory, "db", "stop")
    until(lambda: processes_below(directory) == [], "all is gone")
