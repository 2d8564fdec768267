"""Commands for a spawner, with their files below one directory, and what is left of their processes."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import psutil

from queue_workflows.host.commands.command import Command

# Leaves a daemon as daemons are made: forked twice, in a session of its own, environment and all cast off.
DAEMON = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.execve(sys.executable, [sys.executable, "-c", "import signal, time, sys;"
            "signal.signal(signal.SIGTERM, signal.SIG_IGN); open(sys.argv[1] + '.up', 'w').close();"
            "time.sleep(1000)", sys.argv[1]], {})
    os._exit(0)
while not os.path.exists(sys.argv[1] + ".up"): time.sleep(0.01)
"""


def command(directory: Path, *argv: str, **options: Any) -> Command:
    """A command that works in `directory/work` and prints to `directory/out` and `err`."""
    work = directory / "work"
    work.mkdir(exist_ok=True)
    options.setdefault("env", {"PATH": os.environ["PATH"]})
    return Command(
        argv=argv, cwd=work, stdout_path=directory / "out", stderr_path=directory / "err", **options
    )


def shell(directory: Path, script: str, **options: Any) -> Command:
    """A command that is a shell script."""
    return command(directory, "/bin/sh", "-c", script, **options)


def python(directory: Path, text: str, *arguments: str, **options: Any) -> Command:
    """A command that is a Python program."""
    return command(directory, sys.executable, "-S", "-c", text, *arguments, **options)


def bearing(word: str) -> list[int]:
    """The living processes that have a word, such as a test's own directory, on their command line."""
    found = []
    for process in psutil.process_iter(["cmdline", "status"]):
        if process.info["status"] != psutil.STATUS_ZOMBIE and word in " ".join(process.info["cmdline"] or ()):
            found.append(process.pid)
    return [pid for pid in found if pid != os.getpid()]
