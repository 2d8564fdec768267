"""Other queues on Postgres, used as their own documentation says, each at its best settings.

They live in an environment of their own (`PLACE`), so that what they need never meets what the engine needs.
This module is our side of it; `kinds` and what is beside it run there, without any of our packages.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
import venv
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Final

SCRIPTS: Final = Path(__file__).resolve().parents[2]
PLACE: Final = SCRIPTS.parent / ".venv-peers"
# Those whose idle workers are woken; the others look for work now and then.
WOKEN: Final = ("pgqueuer", "procrastinate", "chancy")
WANTED: Final = SCRIPTS / "bench" / "peers.txt"
_PATIENCE_S: Final = 300.0
_RUN: Final = "import sys; from bench.peers.serving import main; main(*sys.argv[1:])"


def install() -> None:
    """Make that environment, or bring it to what is wanted; needs a package registry."""
    if not _python().is_file():
        venv.create(PLACE, with_pip=True)
    subprocess.run([str(_python()), "-m", "pip", "install", "--quiet", "-r", str(WANTED)], check=True)


def installed() -> dict[str, str]:
    """The peers of that environment with their versions; none where it was never made."""
    if not _python().is_file():
        return {}
    return dict(json.loads(_asked("versions")))


def settings(peer: str) -> str:
    """In words, what the peer works with."""
    return _asked("settings", peer)


def command(*arguments: str) -> list[str]:
    """What runs `main` there; imported, because a peer warns of tasks that belong to `__main__`."""
    return [str(_python()), "-c", _RUN, *arguments]


def environment() -> dict[str, str]:
    """What such a process is given."""
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PG", "QWF_"))
    }
    return kept | {"PYTHONPATH": str(SCRIPTS)}


def prepare(peer: str, dsn: str) -> None:
    """Make the peer's tables."""
    _asked("prepare", peer, dsn)


def fill(peer: str, dsn: str, jobs: int) -> None:
    """Empty its tables, and put so many no-ops on its queue."""
    _asked("fill", peer, dsn, str(jobs))


def drain(peer: str, dsn: str, jobs: int, longest_s: float) -> float:
    """Jobs a second of one of its workers until so many have ended for good, or so long."""
    return float(_asked("drain", peer, dsn, str(jobs), str(longest_s)))


@contextmanager
def telling(peer: str, dsn: str) -> Iterator[IO[str]]:
    """A worker that prints the moment at which each body begins."""
    with subprocess.Popen(
        command("moments", peer, dsn),
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            assert process.stdout is not None
            yield process.stdout
        finally:
            os.killpg(process.pid, signal.SIGKILL)


@contextmanager
def waiting(peer: str, dsn: str, at_once: int, seconds: float) -> Iterator[int]:
    """A worker with so many jobs at once, which sleep for so long; its process id."""
    with subprocess.Popen(
        command("wait", peer, dsn, str(at_once), str(seconds)),
        env=environment(),
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as process:
        try:
            yield process.pid
        finally:
            os.killpg(process.pid, signal.SIGKILL)


def _asked(*arguments: str) -> str:
    """The last line that it says; then it is killed with all that it started, for some leave processes."""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as wrong:
        process = subprocess.Popen(
            command(*arguments), env=environment(), stdout=out, stderr=wrong, start_new_session=True
        )
        try:
            process.wait(_PATIENCE_S)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        out.seek(0)
        wrong.seek(0)
        if process.returncode:
            raise SystemExit(f"{' '.join(arguments[:2])} failed: {wrong.read()[-2000:]}")
        return (out.read().splitlines() or [""])[-1]


def _python() -> Path:
    return PLACE / "bin" / "python"
