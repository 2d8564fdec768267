"""Starts roles by fork from a process that has imported everything, and tells when they end.

    runner ──{"start": …}──> launcher (one thread, no connection) ──fork──> the real command line of `qwf`
           <──{"ended": pid, "status": …}──

What is forked runs the shipped entry point with an environment, a session and a log of its own. Whatever its
jobs leave behind becomes a child of the launcher, so nothing can hide: at the end of a history it has none.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import importlib
import json
import os
import pkgutil
import selectors
import signal
import socket
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NoReturn

SCRIPTS: Final = Path(__file__).resolve().parents[1]
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_LEFT_OUT: Final = (
    "queue_workflows.__main__",
    "queue_workflows.demo",
    "queue_workflows.django",
    "queue_workflows.flask",
    "queue_workflows.testing",
)


class Launcher:
    """The runner's end of it: `start` gives a pid, `ended` what has ended by now."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        paths = [str(SCRIPTS), os.environ.get("PYTHONPATH", "")]
        around = {
            name: value for name, value in os.environ.items() if not name.startswith(("QWF_", "AI_LEADS_"))
        }
        self._process = subprocess.Popen(
            [sys.executable, "-m", "chaos.launcher", str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            env={**around, "PYTHONPATH": os.pathsep.join(filter(None, paths)), "CHAOS_LEDGER": os.devnull},
            stdin=subprocess.DEVNULL,
            # A terminal's Ctrl-C reaches the runner alone, which then closes the line.
            start_new_session=True,
        )
        theirs.close()
        self._socket = ours
        self._lines = ours.makefile("r", encoding="utf-8")
        self._lock = threading.Lock()
        self._answers: list[dict[str, Any]] = []
        self._news = threading.Condition()
        self._statuses: dict[int, int] = {}
        self._over = False
        threading.Thread(target=self._read, daemon=True).start()

    @property
    def pid(self) -> int:
        """Of the process whose children all roles are."""
        return self._process.pid

    def start(
        self, arguments: list[str], *, environ: dict[str, str], log: Path, cwd: Path, prefix: list[str]
    ) -> int:
        """Start a role; with a prefix, a command, that is executed as a service manager does."""
        asked = {
            "arguments": arguments,
            "environ": environ,
            "log": str(log),
            "cwd": str(cwd),
            "prefix": prefix,
        }
        with self._lock:
            self._socket.sendall(json.dumps(asked).encode() + b"\n")
            with self._news:
                if not self._news.wait_for(lambda: self._answers or self._over, timeout=120) or self._over:
                    raise RuntimeError("the launcher does not answer")
                return int(self._answers.pop()["started"])

    def status(self, pid: int) -> int | None:
        """The wait status of what has ended."""
        return self._statuses.get(pid)

    def _read(self) -> None:
        for line in self._lines:
            said = json.loads(line)
            with self._news:
                if "ended" in said:
                    self._statuses[said["ended"]] = said["status"]
                else:
                    # Its number may have been that of another one.
                    self._statuses.pop(said["started"], None)
                    self._answers.append(said)
                self._news.notify_all()
        with self._news:
            self._over = True
            self._news.notify_all()

    def close(self) -> None:
        """It ends when its line does, and kills what is left."""
        self._socket.shutdown(socket.SHUT_RDWR)
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._lines.close()
        self._socket.close()


def children_of(pid: int) -> list[int]:
    """The children of a process, of whichever of its threads."""
    found: list[int] = []
    with suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            found += [int(one) for one in (task / "children").read_text().split()]
    return found


def _import_all() -> None:
    import queue_workflows

    for found in pkgutil.walk_packages(queue_workflows.__path__, "queue_workflows."):
        if not found.name.startswith(_LEFT_OUT):
            importlib.import_module(found.name)
    for name in ("chaos.wiring", "sqlalchemy.dialects.postgresql.psycopg", "psycopg_binary", "zoneinfo"):
        importlib.import_module(name)


def _serve(line: socket.socket) -> dict[str, Any] | None:
    """In the launcher: until the line ends. In a child: the role that it is to be."""
    readable, writable = os.pipe()
    os.set_blocking(writable, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(writable, warn_on_full_buffer=False)
    buffer = b""
    with selectors.DefaultSelector() as selector:
        selector.register(line, selectors.EVENT_READ)
        selector.register(readable, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fd == readable:
                    os.read(readable, 4096)
                    _reap(line)
                    continue
                data = line.recv(1 << 20)
                if not data:
                    return None
                buffer += data
                while b"\n" in buffer:
                    text, buffer = buffer.split(b"\n", 1)
                    asked = json.loads(text)
                    pid = os.fork()
                    if pid == 0:
                        signal.set_wakeup_fd(-1)
                        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                        return dict(asked)
                    line.sendall(json.dumps({"started": pid}).encode() + b"\n")


def _reap(line: socket.socket) -> None:
    try:
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                return
            line.sendall(json.dumps({"ended": pid, "status": status}).encode() + b"\n")
    except (ChildProcessError, BrokenPipeError):
        return


def _become(asked: dict[str, Any]) -> None:
    """Be as near to a process that a service manager has started as one can be without exec."""
    os.setsid()
    log = os.open(asked["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    null = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((null, 0), (log, 1), (log, 2)):
        os.dup2(source, target)
    os.closerange(3, 256)
    os.chdir(asked["cwd"])
    arguments = [sys.executable, "-m", "queue_workflows", *asked["arguments"]]
    if asked["prefix"]:
        os.execvpe(asked["prefix"][0], [*asked["prefix"], *asked["arguments"]], asked["environ"])
    os.environ.clear()
    os.environ.update(asked["environ"])
    sys.argv, sys.orig_argv = [arguments[2], *asked["arguments"]], arguments
    importlib.import_module("chaos.ledger").settle()
    importlib.import_module("chaos.wiring").declare()


def _end_all() -> None:
    """Kill whatever is left, also what becomes ours when its parent dies."""
    for _ in range(100):
        left = children_of(os.getpid())
        if not left:
            return
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


def _leave(status: int) -> NoReturn:
    """End as an interpreter does, with its threads and what is to be done at exit, but take nothing apart.

    That would write to each page that is shared with the launcher, and take longer than most roles live.
    """
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(status)


def _status_of(left: SystemExit) -> int:
    """As the interpreter takes it."""
    if left.code is None or isinstance(left.code, int):
        return left.code or 0
    print(left.code, file=sys.stderr)
    return 1


def main() -> None:
    """The launcher, and in each child of it the role."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    line = socket.socket(fileno=int(sys.argv[1]))
    _import_all()
    gc.collect()
    gc.freeze()
    asked = _serve(line)
    if asked is None:
        _end_all()
        return
    line.detach()
    _become(asked)
    from queue_workflows.cli.entry_points import main as qwf

    try:
        qwf()
    except SystemExit as left:
        _leave(_status_of(left))


if __name__ == "__main__":
    main()
