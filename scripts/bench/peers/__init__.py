"""Other queues on Postgres, used as their own documentation says, each at its best settings.

They live in an environment of their own (`PLACE`), so that what they need never meets what the engine needs.
This module is our side of it; `kinds` and what is beside it run there, without any of our packages. One is
written for Node: its packages lie in that place too, and `graphile.cjs` is its side.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import venv
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, Final

SCRIPTS: Final = Path(__file__).resolve().parents[2]
PLACE: Final = Path(os.environ.get("BENCH_PEERS") or SCRIPTS.parent / ".venv-peers")
# Those whose idle workers are woken; the others look for work now and then.
WOKEN: Final = ("pgqueuer", "procrastinate", "chancy")
WANTED: Final = SCRIPTS / "bench" / "peers.txt"
GRAPHILE: Final = "0.17.3"
# What `ingest.py` and `queue.py` measure; `beside.py` measures all.
_EARLIER: Final = ("pgqueuer", "procrastinate", "chancy", "dbos")
_PATIENCE_S: Final = 300.0
_RUN: Final = "import sys; from bench.peers.serving import main; main(*sys.argv[1:])"


def install(python: str | None = None) -> None:
    """Make that environment, or bring it to what is wanted; needs package registries.

    It is made by the Python that is named, as one of the peers wants 3.12; else by ours.
    """
    if not _python().is_file():
        if python:
            subprocess.run([python, "-m", "venv", str(PLACE)], check=True)
        else:
            venv.create(PLACE, with_pip=True)
    subprocess.run([str(_python()), "-m", "pip", "install", "--quiet", "-r", str(WANTED)], check=True)
    if (npm := shutil.which("npm")) and shutil.which("node"):
        _node().mkdir(exist_ok=True)
        (_node() / "package.json").write_text("{}")
        quiet = ("--silent", "--no-audit", "--no-fund", "--ignore-scripts")
        wanted = f"graphile-worker@{GRAPHILE}"
        subprocess.run([npm, "install", *quiet, "--prefix", str(_node()), wanted], check=True)


def installed() -> dict[str, str]:
    """The peers of that environment with their versions; none where it was never made."""
    return {name: number for name, number in _all_installed().items() if name in _EARLIER}


def contenders() -> tuple[dict[str, str], dict[str, str]]:
    """All that can be measured with their versions, and why others cannot."""
    found = _all_installed()
    missing = {}
    how = f"{sys.executable} scripts/bench/beside.py --install"
    for name in (*_EARLIER, "oban", "absurd"):
        if name not in found:
            missing[name] = f"not installed: {how}"
    if found and "oban" in missing:
        missing["oban"] = f"needs an environment of Python 3.12: {how} --python python3.12"
    package = _node() / "node_modules" / "graphile-worker" / "package.json"
    if shutil.which("node") is None:
        missing["graphile"] = "there is no node"
    elif package.is_file():
        found["graphile"] = json.loads(package.read_text())["version"]
    else:
        missing["graphile"] = f"not installed: {how}"
    return found, missing


def _all_installed() -> dict[str, str]:
    if not _python().is_file():
        return {}
    return dict(json.loads(_asked("versions")))


def settings(peer: str) -> str:
    """In words, what the peer works with."""
    return _asked("settings", peer)


def facts(peer: str) -> dict[str, Any]:
    """What the bench has to know of a peer: its queries, its tables and its settings."""
    return dict(json.loads(_asked("facts", peer)))


def command(what: str, *arguments: str) -> list[str]:
    """What runs `main` there; imported, because a peer warns of tasks that belong to `__main__`."""
    if arguments and arguments[0] == "graphile" and what not in ("facts", "settings"):
        return ["node", str(SCRIPTS / "bench" / "peers" / "graphile.cjs"), what, *arguments[1:]]
    return [str(_python()), "-c", _RUN, what, *arguments]


def environment() -> dict[str, str]:
    """What such a process is given."""
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PG", "QWF_"))
    }
    return kept | {"PYTHONPATH": str(SCRIPTS), "PEERS_NODE": str(_node())}


def prepare(peer: str, dsn: str) -> None:
    """Make the peer's tables."""
    _asked("prepare", peer, dsn)


def keep_a_row(peer: str, dsn: str) -> None:
    """Keep a row as the peer writes it, which is copied to fill its queue."""
    _asked("template", peer, dsn)


def fill(peer: str, dsn: str, jobs: int) -> None:
    """Empty its tables, and put so many no-ops on its queue."""
    _asked("fill", peer, dsn, str(jobs))


def drain(peer: str, dsn: str, jobs: int, longest_s: float) -> float:
    """Jobs a second of one of its workers until so many have ended for good, or so long."""
    return float(_asked("drain", peer, dsn, str(jobs), str(longest_s)))


@contextmanager
def telling(peer: str, dsn: str) -> Iterator[IO[str]]:
    """A worker that prints the moment at which each body begins."""
    with working(peer, dsn, "moments") as process:
        assert process.stdout is not None
        yield process.stdout


@contextmanager
def working(peer: str, dsn: str, what: str = "bursts") -> Iterator[subprocess.Popen[str]]:
    """A worker that prints when the first body of each burst of work begins."""
    with subprocess.Popen(
        command(what, peer, dsn),
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            yield process
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


def _node() -> Path:
    """Where the packages for Node lie."""
    return PLACE / "node"


def _python() -> Path:
    return PLACE / "bin" / "python"
