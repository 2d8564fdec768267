"""What a process of ours cost: processor time, context switches, memory, calls of the kernel, bytes."""

from __future__ import annotations

import cProfile
import io
import os
import pstats
import re
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from bench.harness.workers import environment
from queue_workflows.db.connections.dsn import as_url, parse_dsn

MOST_FUNCTIONS: Final = 12
_AT_THE_START: Final = re.compile(
    r"importlib|builtins\.(?:compile|exec)|marshal|_imp\.|posix\.stat|pydantic|re/_"
)


@dataclass(frozen=True)
class ClientSide:
    """One process from its start to its end: `waits` are the context switches that it asked for itself."""

    user_s: float
    system_s: float
    waits: int
    preempted: int
    peak_kib: int

    def less(self, base: ClientSide) -> ClientSide:
        """Without what it costs to start and to end."""
        return ClientSide(
            max(self.user_s - base.user_s, 0),
            max(self.system_s - base.system_s, 0),
            max(self.waits - base.waits, 0),
            max(self.preempted - base.preempted, 0),
            self.peak_kib,
        )


@dataclass
class Wire:
    """Bytes between a client and the server."""

    sent: int = 0
    received: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, sent: int, received: int) -> None:
        """Count some."""
        with self._lock:
            self.sent += sent
            self.received += received


def command(*arguments: str) -> list[str]:
    """Our own command line, as this Python runs it."""
    return [sys.executable, "-m", "queue_workflows", *arguments]


def ran(dsn: str, *arguments: str) -> ClientSide:
    """A process of ours that ends by itself."""
    process = subprocess.Popen(command(*arguments), env=environment(dsn), stderr=subprocess.DEVNULL)
    return ended(process)


@contextmanager
def running(dsn: str, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process of ours that is there until `ended` is called for it, or the block is left."""
    process = subprocess.Popen(command(*arguments), env=environment(dsn), stderr=subprocess.DEVNULL)
    try:
        yield process
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)
            process.wait()


def ended(process: subprocess.Popen[bytes]) -> ClientSide:
    """What it cost; it is waited for."""
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode not in (0, -signal.SIGTERM, 128 + signal.SIGTERM):
        raise SystemExit(f"{process.args!r} ended with {process.returncode}")
    return _of(usage)


def in_here(act: Callable[[], object]) -> ClientSide:
    """What this very process spends on something."""
    before = _of(resource.getrusage(resource.RUSAGE_SELF))
    act()
    return _of(resource.getrusage(resource.RUSAGE_SELF)).less(before)


def profile_here(act: Callable[[], object]) -> list[str]:
    """The functions that take most of the time of something done here."""
    profile = cProfile.Profile()
    profile.runcall(act)
    return _functions(profile)


def profile(dsn: str, *arguments: str) -> list[str]:
    """The functions that take most of the time of the main thread of a process that ends by itself."""
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "profile"
        # By runpy, as `-m cProfile` would not be there any more when the process ends by itself.
        script = (
            "import atexit, cProfile, os, runpy, sys\n"
            "profile, leave = cProfile.Profile(), os._exit\n"
            f"def end(code):\n    profile.disable(); profile.dump_stats({str(file)!r}); leave(code)\n"
            "os._exit = end\n"
            "atexit.register(lambda: end(0))\n"
            f"sys.argv = ['qwf', *{list(arguments)!r}]\n"
            "profile.enable()\n"
            "runpy.run_module('queue_workflows', run_name='__main__')\n"
        )
        subprocess.run(
            [sys.executable, "-c", script], env=environment(dsn), stderr=subprocess.DEVNULL, check=False
        )
        return _functions(str(file)) if file.exists() else []


def _functions(what: Any) -> list[str]:
    out = io.StringIO()
    pstats.Stats(what, stream=out).sort_stats("tottime").print_stats(100)
    found = re.findall(r"^ +([\d/]+) +([\d.]+) +[\d.]+ +([\d.]+) +[\d.]+ (.+)$", out.getvalue(), re.MULTILINE)
    # What is done once, as it begins, is no job's.
    lines = [
        f"{_short(name)} | {calls} | {own} | {all_}"
        for calls, own, all_, name in found
        if not _AT_THE_START.search(name)
    ]
    return lines[:MOST_FUNCTIONS]


def _short(name: str) -> str:
    """A function's place without what is only this machine's."""
    return re.sub(r"^.*/(?:site-packages|src|lib/python[\d.]+|scripts)/", "", name).replace("|", "/")


def kernel_calls(dsn: str, *arguments: str) -> int | None:
    """How often a process that ends by itself calls the kernel, with its threads; None without `strace`."""
    if shutil.which("strace") is None:
        return None
    with tempfile.NamedTemporaryFile("r") as file:
        traced = ["strace", "-f", "-c", "-o", file.name, *command(*arguments)]
        subprocess.run(traced, env=environment(dsn), stderr=subprocess.DEVNULL, check=False)
        found = re.search(r"^100\.00 +[\d.]+ +\d+ +(\d+)", file.read(), re.MULTILINE)
    return int(found[1]) if found else None


@contextmanager
def counted(dsn: str) -> Iterator[tuple[str, Wire]]:
    """A DSN that leads to the same database by way of here, where the bytes are counted."""
    params = parse_dsn(dsn)
    port = params.get("port", "5432")
    wire = Wire()
    with tempfile.TemporaryDirectory(prefix="qwf-wire-") as directory:
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(f"{directory}/.s.PGSQL.{port}")
        listener.listen()
        server = f"{params['host']}/.s.PGSQL.{port}"
        threading.Thread(target=_accept, args=(listener, server, wire), daemon=True).start()
        try:
            yield as_url({**params, "host": directory}), wire
        finally:
            listener.close()


def _accept(listener: socket.socket, server: str, wire: Wire) -> None:
    while True:
        try:
            client, _ = listener.accept()
        except OSError:
            return
        there = socket.socket(socket.AF_UNIX)
        there.connect(server)
        for source, target, sends in ((client, there, True), (there, client, False)):
            threading.Thread(target=_relay, args=(source, target, wire, sends), daemon=True).start()


def _relay(source: socket.socket, target: socket.socket, wire: Wire, sends: bool) -> None:
    try:
        while data := source.recv(65536):
            wire.add(len(data) if sends else 0, 0 if sends else len(data))
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)
    except OSError:
        return


def _of(usage: resource.struct_rusage) -> ClientSide:
    return ClientSide(usage.ru_utime, usage.ru_stime, usage.ru_nvcsw, usage.ru_nivcsw, usage.ru_maxrss)
