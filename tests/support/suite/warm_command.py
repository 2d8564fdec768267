"""A `qwf`, or a Python, that is forked from a process which has imported what it needs.

A page of the documentation has up to twenty commands, and a test of a framework up to ten of its `manage.py`;
each would import for a second of the processor what the one before it did. That Python has imported the
frameworks and the libraries of others, and nothing of ours.

    shell ──> a small client ──arguments, environment, streams──> server ──fork──> keeper ──fork──> command

The client hands signals on and ends as the command does; if it is killed, the keeper kills the command. What
somebody has marked as a child of its own is a new interpreter, for it compares its parent with that.
"""

from __future__ import annotations

import atexit
import functools
import gc
import os
import runpy
import select
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from support.suite.warm_starts import close_from, import_all, open_streams, run_and_leave

from queue_workflows.host.processes.tree_by_mark import MARK

_LONGEST = 1 << 17
_ENDS_WITHIN_S = 30
_TESTS = str(Path(__file__).parents[2])
_REAL = Path(sys.executable).with_name("qwf")
_SCRIPT = f"""#!/bin/sh
if [ -n "${MARK}{{unless}}" ]; then exec {{real}} "$@"; fi
exec {{python}} -I -S {{client}} {{address}} "$@"
"""
_SERVER = """
import sys
sys.path.insert(0, sys.argv[1])
from support.suite.warm_command import serve
serve(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
"""
# What is not installed is not needed either.
_LIBRARIES = (
    *("alembic.command", "alembic.config", "asyncpg", "click", "psutil", "psycopg", "pydantic_settings"),
    *("sqlalchemy.orm", "sqlalchemy.ext.asyncio", "sqlalchemy.dialects.postgresql.asyncpg"),
    *("sqlalchemy.dialects.postgresql.psycopg", "fastapi", "flask", "starlette.applications", "jinja2"),
    *("django.core.management", "django.db.models", "django.db.migrations.executor"),
    *("django.db.backends.postgresql.base", "django.test", "django.urls", "django.contrib.auth"),
)


@contextmanager
def warm_qwf(directory: Path) -> Iterator[Path]:
    """`qwf` in that directory, while the block goes on; with a PYTHONPATH it is a new interpreter."""
    with _served("qwf", directory / "qwf", _REAL, unless="$PYTHONPATH"):
        yield directory / "qwf"


@functools.cache
def warm_python() -> Path:
    """A Python for `-m` and for scripts, for as long as this process lives."""
    alive = ExitStack()
    atexit.register(alive.close)
    directory = Path(alive.enter_context(tempfile.TemporaryDirectory(prefix="qwf-warm-")))
    alive.enter_context(_served("python", directory / "python", Path(sys.executable)))
    return directory / "python"


@contextmanager
def _served(kind: str, script: Path, real: Path, *, unless: str = "") -> Iterator[None]:
    address = script.with_name("socket")
    client = Path(__file__).with_name("warm_client.py")
    words = {"real": real, "python": sys.executable, "client": client, "address": address}
    quoted = {name: shlex.quote(str(word)) for name, word in words.items()}
    script.write_text(_SCRIPT.format(unless=unless, **quoted))
    script.chmod(0o755)
    # The server ends with this process, which has the only other end.
    alive, our_end = os.pipe()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
        listening.bind(str(address))
        listening.listen()
        handed = (listening.fileno(), alive)
        command = [sys.executable, "-c", _SERVER, _TESTS, kind, *map(str, handed)]
        server = subprocess.Popen(command, pass_fds=handed, stdin=subprocess.DEVNULL, start_new_session=True)
    os.close(alive)
    try:
        yield
    finally:
        # Told, for a process that a test forked may have a copy of our end for as long as it lives.
        with suppress(OSError):
            os.write(our_end, b"over")
        os.close(our_end)
        try:
            server.wait(_ENDS_WITHIN_S)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()


def serve(kind: str, listening: int, alive: int) -> None:
    """Fork as often as is asked; in each command this ends as that does."""
    if kind == "qwf":
        import_all()
    else:
        _import_libraries()
    # Nobody waits for a keeper.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with socket.socket(fileno=listening) as there:
        while alive not in select.select([there, alive], [], [])[0]:
            client, _ = there.accept()
            if os.fork() == 0:
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                there.close()
                arguments = _keep(client)
                break
            client.close()
        else:
            return
    open_streams()
    run = _run_qwf if kind == "qwf" else _run_python
    run_and_leave(lambda: run(arguments))


def _import_libraries() -> None:
    for name in _LIBRARIES:
        with suppress(ImportError):
            __import__(name)
    gc.collect()
    gc.freeze()


def _run_qwf(arguments: list[str]) -> None:
    sys.argv[:] = [str(_REAL), *arguments]
    sys.path.insert(0, str(_REAL.parent))
    from queue_workflows.cli.entry_points import main

    main()


def _run_python(arguments: list[str]) -> None:
    """As the interpreter does with `-m MODULE`, `-c` and a script; of its variables it heeds two."""
    sys.dont_write_bytecode = "PYTHONDONTWRITEBYTECODE" in os.environ
    for name in [name for name in sys.modules if name.split(".")[0] in ("queue_workflows", "support")]:
        del sys.modules[name]
    sys.path[:0] = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    if arguments[0] == "-c":
        sys.argv[:] = ["-c", *arguments[2:]]
        sys.path.insert(0, "")
        exec(compile(arguments[1], "<string>", "exec"), vars(sys.modules["__main__"]))
    elif arguments[0] == "-m":
        sys.argv[:] = arguments[1:]
        sys.path.insert(0, str(Path.cwd()))
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv[:] = arguments
        sys.path.insert(0, str(Path(arguments[0]).absolute().parent))
        runpy.run_path(arguments[0], run_name="__main__")


def _keep(client: socket.socket) -> list[str]:
    """Start the command, and tell the client how it ended; this comes back in the command alone.

    Its arguments.
    """
    message, streams, _, _ = socket.recv_fds(client, _LONGEST, 3)
    if (pid := os.fork()) == 0:
        client.detach()
        return _become(message, streams)
    for stream in streams:
        os.close(stream)
    client.send(str(pid).encode())
    over = os.pidfd_open(pid)
    if over not in select.select([over, client], [], [])[0]:
        os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    try:
        client.send(str(os.waitstatus_to_exitcode(status)).encode())
    finally:
        os._exit(0)


def _become(message: bytes, streams: list[int]) -> list[str]:
    """Have what an exec would have given; its arguments."""
    directory, count, *rest = message.decode(errors="surrogateescape").split("\0")
    arguments, variables = rest[: int(count)], rest[int(count) :]
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
    close_from(len(streams))
    os.environ.clear()
    os.environ.update(each.split("=", 1) for each in variables)
    os.chdir(directory)
    sys.orig_argv[:] = [sys.executable, *arguments]
    # Of the server's own.
    sys.path[:] = [path for path in sys.path if path not in ("", _TESTS)]
    return arguments
