"""Servers that are deployed on this machine: started, found and ended. They might be containers or devices.

A server outlives whoever started it, as a container does: it has a session of its own, nobody's mark, and no
parent. Which ones there are is asked of the machine each time; nothing is written down that could be lost.
"""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

SERVER = str(Path(__file__).with_name("server.py"))
PLACE = Path(os.environ.get("DEPLOY_DIR", "deployed")).absolute()


def deploy(name: str, page: str) -> str:
    """Start a server of this name; its URL."""
    directory = PLACE / name
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "index.html").write_text(page)
    (directory / ".url").unlink(missing_ok=True)
    command = [sys.executable, SERVER, name, str(directory)]
    outside = {key: value for key, value in os.environ.items() if not key.startswith("_QWF")}
    subprocess.run(
        ["sh", "-c", 'setsid "$@" </dev/null >/dev/null 2>&1 &', "sh", *command], check=True, env=outside
    )
    while not (directory / ".url").exists():
        time.sleep(0.05)
    return (directory / ".url").read_text()


def _running() -> Iterator[tuple[str, psutil.Process]]:
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or []
        if words[1:2] == [SERVER] and Path(words[-1]).parent == PLACE:
            yield words[2], process


def discover() -> list[str]:
    """The names of all that run here."""
    return [name for name, _ in _running()]


def teardown(name: str) -> None:
    """End the server of this name; one that is gone is no mistake."""
    for found, process in _running():
        if found == name:
            process.kill()


def is_gone(name: str) -> bool:
    """Whether none of this name runs."""
    return name not in discover()
