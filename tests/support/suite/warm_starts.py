"""Processes of `qwf`, and of programs around it, that are forked from one which has imported everything.

A new interpreter takes most of a second of the processor to import what the one before it did, which was half
of what such a test costs.

    test ──arguments, environment, streams──> ready process ──clone──> a process of `qwf`, child of the test

The child has the command line, the environment, the directory and the streams that were asked for, a session
of its own, and nothing else of the ready process; the imports are done, as with the spares of a supervisor.
What /proc shows as its command line and its first environment is the ready process's. So tests of how a
process starts, of what it loads and of what it hands on use the fixture `cold_starts`;
QWF_TEST_COLD_STARTS=1 does so for a whole run.

A program in a file of a test's own is forked likewise; what it imports besides is its own affair.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import importlib
import io
import json
import os
import platform
import runpy
import signal
import site
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

COLD = "QWF_TEST_COLD_STARTS"
MODULE = [sys.executable, "-m", "queue_workflows"]
# What an interpreter or a library looks at once, as it starts.
_READ_AT_START = ("PYTHON", "LD_", "LC_", "LANG", "TZ", "MALLOC_", "GLIBC_", "OPENSSL_")
# Of these, what a forked process does for itself.
_DONE_ANEW = ("PYTHONUNBUFFERED", "PYTHONDONTWRITEBYTECODE")
_CLONE = {"x86_64": 56, "aarch64": 220}.get(platform.machine()) if sys.platform == "linux" else None
# What Popen does itself, whoever forks; and the directory.
_TAKEN = {"bufsize", "cwd", "encoding", "errors", "stderr", "stdin", "stdout"}
_CLONE_PARENT = 0x8000
_LONGEST = 1 << 17
_READY = (
    *("cli.main", "cli.entry_points", "cli.log.logs"),
    *("cli.roles.worker", "cli.roles.orchestrator", "cli.roles.scheduler"),
    *("roles.worker.process", "roles.worker.single", "roles.worker.concurrent.worker"),
    *("roles.orchestrator.process", "roles.scheduler.process", "roles.supervisor.standby"),
    *("cli.database.migrations", "db.migrations.verbs"),
    *("cli.roles.supervisor", "cli.roles.up", "roles.supervisor.process", "cli.hooks.hooks"),
    *("cli.runs.run", "cli.runs.start", "cli.runs.watch", "cli.runs.here"),
    *("cli.jobs.job", "cli.queues.queue", "db.embedded.server", "roles.probes.servers"),
    *("hooks.attempt.runner", "hooks.attempt.at_seal", "hooks.output.store", "host.commands.client"),
)

# What is imported before the first process with this word on its command line; few tests need it.
_READY_FOR = {"web": ("cli.page.web", "web.serving", "web.app")}


class WarmProcess(subprocess.Popen[str]):
    """A process of `qwf` that the ready process makes."""

    def _execute_child(self, args: Sequence[str], *rest: Any) -> None:
        """As Popen's, in the place of its fork and exec."""
        (_, _, _, _, cwd, env, _, _, _, *ends, _, _, _, _, _, _, _) = rest
        p2cread, _, _, c2pwrite, _, errwrite = ends
        streams = [own if end == -1 else end for own, end in enumerate((p2cread, c2pwrite, errwrite))]
        asked = {"arguments": args, "environment": dict(env), "directory": str(cwd or Path.cwd())}
        self.pid = _ready_process().start(asked, streams)
        self._child_created = True
        self._close_pipe_fds(*ends)


def start(command: Sequence[str], env: Mapping[str, str], **options: Any) -> subprocess.Popen[str]:
    """Start a command in a session of its own.

    It is forked, if it is `qwf` or a file of Python, and nothing asks for a new interpreter; an option that
    takes effect between a fork and an exec does.
    """
    is_warm = _runs_python(command) and _can_be_warm(env) and options.keys() <= _TAKEN
    made = WarmProcess if is_warm else subprocess.Popen
    return made(list(command), env=dict(env), text=True, start_new_session=True, **options)


def run(
    command: Sequence[str], env: Mapping[str, str], *, timeout_s: float = 150, **options: Any
) -> subprocess.CompletedProcess[str]:
    """Start a command and wait for its end; one that does not come to it in time is killed."""
    with start(command, env, **options) as process:
        try:
            out, err = process.communicate(timeout=timeout_s)
        finally:
            process.kill()
    return subprocess.CompletedProcess(list(command), process.returncode, out, err)


def _runs_python(command: Sequence[str]) -> bool:
    if list(command[: len(MODULE)]) == MODULE:
        return True
    return command[0] == sys.executable and len(command) > 1 and command[1].endswith(".py")


def _can_be_warm(env: Mapping[str, str]) -> bool:
    """Whether a new interpreter would find the surroundings of the ready process."""
    if _CLONE is None or os.environ.get(COLD):
        return False
    return _looked_at(env) == _looked_at(os.environ)


def _looked_at(env: Mapping[str, str]) -> dict[str, str]:
    found = {
        name: value
        for name, value in env.items()
        if name.startswith(_READ_AT_START) and name not in _DONE_ANEW
    }
    # The tests' own modules, and those that all of them import anyway, are in no process's way.
    paths = [path for path in found.pop("PYTHONPATH", "").split(os.pathsep) if path not in _IN_NO_WAY]
    return {**found, "PYTHONPATH": os.pathsep.join(paths)}


_TESTS = Path(__file__).parents[2]
_IN_NO_WAY = ("", str(_TESTS), str(_TESTS.parent / "src"), *site.getsitepackages())


class _ReadyProcess:
    """This end of the ready process, which ends with us."""

    def __init__(self) -> None:
        self.surroundings = _looked_at(os.environ)
        self._own, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._own.settimeout(150)
        # An answer names nobody: it is of whoever asked last.
        self._turn = threading.Lock()
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, __file__, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                cwd="/",
                start_new_session=True,
            )
        self._own.recv(_LONGEST)

    def start(self, asked: Mapping[str, Any], streams: Sequence[int]) -> int:
        """The pid of a process that is a child of ours, and has a group of its own to be killed by."""
        with self._turn:
            socket.send_fds(self._own, [json.dumps(asked).encode()], streams)
            pid = int(self._own.recv(_LONGEST))
        # One that is gone before that never has one.
        deadline = time.monotonic() + 30
        while os.getpgid(pid) != pid and time.monotonic() < deadline:
            time.sleep(0.001)
        return pid


_ready: dict[int, _ReadyProcess] = {}


def _ready_process() -> _ReadyProcess:
    """This process's own; a new one where what an interpreter looks at has changed since."""
    found = _ready.get(os.getpid())
    if found is None or found.surroundings != _looked_at(os.environ) or found.process.poll() is not None:
        found = _ready[os.getpid()] = _ReadyProcess()
    return found


def import_all() -> None:
    """Have what most commands need."""
    _import(_READY)


def _serve(given: socket.socket) -> None:
    """Import, and fork as often as is asked; in each child this returns once it is what was asked for."""
    import_all()
    given.send(b"ready")
    while True:
        message, streams, _, _ = socket.recv_fds(given, _LONGEST, 3)
        if not message:
            os._exit(0)
        asked = json.loads(message)
        _import_for(asked["arguments"])
        pid = _clone()
        if pid == 0:
            _become(asked, streams)
            return
        for stream in streams:
            os.close(stream)
        given.send(str(pid).encode())


def _import_for(words: Sequence[str]) -> None:
    for word in words:
        if word in _READY_FOR:
            _import(_READY_FOR.pop(word))


def _import(modules: Sequence[str]) -> None:
    # Nothing of what is imported goes away, so there is nothing to look for meanwhile.
    gc.disable()
    for module in modules:
        importlib.import_module(f"queue_workflows.{module}")
    gc.enable()
    # What is there by now is shared with all children, for as long as nobody touches it.
    gc.collect()
    gc.freeze()


def _clone() -> int:
    """A fork whose child is not ours but our parent's, which can wait for it as for any other."""
    python, libc = ctypes.pythonapi, ctypes.PyDLL(None)
    libc.syscall.restype = ctypes.c_long
    nothing = [ctypes.c_long(0)] * 4
    python.PyOS_BeforeFork()
    pid = int(
        libc.syscall(ctypes.c_long(_CLONE or 0), ctypes.c_long(_CLONE_PARENT | signal.SIGCHLD), *nothing)
    )
    if pid == 0:
        python.PyOS_AfterFork_Child()
    else:
        python.PyOS_AfterFork_Parent()
    return pid


def _become(asked: Mapping[str, Any], streams: Sequence[int]) -> None:
    """Have what an exec would have given."""
    os.setsid()
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
    close_from(len(streams))
    os.environ.clear()
    os.environ.update(asked["environment"])
    os.chdir(asked["directory"])
    sys.dont_write_bytecode = bool(os.environ.get("PYTHONDONTWRITEBYTECODE"))
    open_streams()
    words = asked["arguments"]
    sys.orig_argv[:] = words
    paths = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    # The first was this file's directory, where now that of the command line stands.
    sys.path[:] = [asked["directory"], *paths, *(path for path in sys.path[1:] if path not in paths)]


def close_from(first: int) -> None:
    """Close whatever descriptor is open from that number on, however high it is."""
    for name in os.listdir("/proc/self/fd"):
        # That of the listing itself is closed already.
        if int(name) >= first:
            with suppress(OSError):
                os.close(int(name))


def open_streams() -> None:
    """Write as the environment says, not as that of the ready process did."""
    is_unbuffered = bool(os.environ.get("PYTHONUNBUFFERED"))
    for name, number in (("stdout", 1), ("stderr", 2)):
        raw = open(number, "wb", buffering=0 if is_unbuffered else -1, closefd=False)  # noqa: SIM115 - open until the end
        stream = io.TextIOWrapper(
            raw,
            encoding=sys.__stdout__.encoding,
            errors="backslashreplace" if name == "stderr" else sys.__stdout__.errors,
            line_buffering=name == "stderr" or os.isatty(number),
            write_through=is_unbuffered,
        )
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def _run() -> None:
    """Run what the command line names, as the interpreter does."""
    _, first, *rest = sys.orig_argv
    if first == "-m":
        sys.argv[:] = ["-m", *rest[1:]]
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    else:
        sys.argv[:] = [first, *rest]
        sys.path[0] = str(Path(first).resolve().parent)
        runpy.run_path(first, run_name="__main__")


def _status_of(left: SystemExit) -> int:
    """As the interpreter takes it."""
    if left.code is None or isinstance(left.code, int):
        return left.code or 0
    print(left.code, file=sys.stderr)
    return 1


def _leave(status: int) -> NoReturn:
    """End as an interpreter does, with its threads and what is to be done at exit, but take nothing apart.

    That would write to each page that is shared with the ready process, which costs more than all the rest.
    """
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(status & 0xFF)


def run_and_leave(run: Callable[[], object]) -> NoReturn:
    """Do all that this process is there for."""
    try:
        run()
    except SystemExit as left:
        _leave(_status_of(left))
    _leave(0)


if __name__ == "__main__":
    _serve(socket.socket(fileno=int(sys.argv[1])))
    run_and_leave(_run)
