"""Small Python programs run as real processes, for tests of how processes live and die."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

import queue_workflows

SOURCE = Path(queue_workflows.__file__).parent.parent
UNSHARE = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")

_WITHOUT_ACCOUNTS = "for each in passwd nsswitch.conf; do mount --bind /dev/null /etc/$each; done"
# Runs a command by an account that no file of accounts knows, as some clusters give each namespace its own.
UNKNOWN_ACCOUNT = (
    *("unshare", "--mount", *(() if os.geteuid() == 0 else ("--user", "--map-root-user"))),
    *("sh", "-ec", f'{_WITHOUT_ACCOUNTS}; unset HOME; exec "$@"', "sh"),
)

# Runs a command without the rights by which root reads any process: to trace, to administer, to measure.
WITHOUT_TRACING = (
    sys.executable,
    "-c",
    (
        "import ctypes, os, sys\n"
        "for right in (19, 21, 38): ctypes.CDLL(None).prctl(24, right, 0, 0, 0)\n"
        "os.execv(sys.argv[1], sys.argv[1:])"
    ),
)

# Runs a command without the rights by which root opens what no mode allows.
WITHOUT_OVERRIDE = (*WITHOUT_TRACING[:2], WITHOUT_TRACING[2].replace("(19, 21, 38)", "(1, 2)"))

# What the programs begin with. `stuck` is C code that never lets go of the GIL.
PREAMBLE = """
import ctypes, os, signal, subprocess, sys, threading, time
from queue_workflows.host.processes.lease_timer import DeadMan, boottime

def say(*words):
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())

def stuck(seconds):
    ctypes.PyDLL(None).sleep(int(seconds))
"""


def _may(prefix: tuple[str, ...]) -> bool:
    if shutil.which(prefix[0]) is None:
        return False
    return subprocess.run([*prefix, "true"], capture_output=True).returncode == 0


linux_only = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs the Linux kernel")
pid_namespace = pytest.mark.skipif(not _may(UNSHARE), reason="may not make a PID namespace here")
mount_namespace = pytest.mark.skipif(not _may(UNKNOWN_ACCOUNT), reason="may not make a mount namespace here")


def program(text: str) -> list[str]:
    """The command that runs the text, with the preamble before it."""
    return [sys.executable, "-c", PREAMBLE + text]


def gone(pid: int) -> bool:
    """Whether nothing runs any more under this pid."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(SOURCE), "PYTHONDONTWRITEBYTECODE": "1", **(extra or {})}


class Running:
    """A program under way, its output read line by line; nothing of its session outlives the `with`."""

    def __init__(self, command: list[str], *, env: Mapping[str, str] | None = None, **options: Any) -> None:
        self.process = subprocess.Popen(
            command,
            text=True,
            env=environment(env),
            start_new_session=True,
            **{"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, **options},
        )

    @property
    def pid(self) -> int:
        return self.process.pid

    def line(self) -> str:
        """What it says next; empty at its end."""
        assert self.process.stdout
        return self.process.stdout.readline().rstrip("\n")

    def tell(self, words: str) -> None:
        assert self.process.stdin
        self.process.stdin.write(words + "\n")
        self.process.stdin.flush()

    def close_stdin(self) -> None:
        assert self.process.stdin
        self.process.stdin.close()

    def status(self, timeout_s: float = 150) -> int:
        return self.process.wait(timeout_s)

    def __enter__(self) -> Running:
        return self

    def __exit__(self, *_: object) -> None:
        for process in psutil.process_iter():
            with suppress(OSError, psutil.Error):
                if os.getsid(process.pid) == self.pid:
                    process.kill()
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        for stream in (self.process.stdin, self.process.stdout):
            with suppress(BrokenPipeError):
                if stream:
                    stream.close()
        self.process.wait(150)


def run(text: str, *, env: Mapping[str, str] | None = None, timeout_s: float = 150) -> tuple[int, list[str]]:
    """Run a program to its end: its status, as Popen gives it, and what it said."""
    with Running(program(text), env=env) as running:
        assert running.process.stdout
        said = running.process.stdout.read().splitlines()
        return running.status(timeout_s), said
