"""A directory for PATH whose `qwf` is forked from a process which has imported everything.

A page of the documentation has up to twenty commands, and each would import for most of a second of the
processor what the one before it did.

    shell ──> qwf, a small client ──arguments, environment, streams──> server ──fork──> keeper ──fork──> `qwf`

The client hands signals on and ends as the command does; if it is killed, the keeper kills the command. What
somebody has marked as a child of its own is a new interpreter, for it compares its parent with that.
"""

from __future__ import annotations

import os
import select
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from support.suite.warm_starts import import_all

from queue_workflows.host.processes.tree_by_mark import MARK

_LONGEST = 1 << 17
_TESTS = str(Path(__file__).parents[2])
_REAL = Path(sys.executable).with_name("qwf")
_SCRIPT = f"""#!/bin/sh
if [ -n "${MARK}$PYTHONPATH" ]; then exec {{real}} "$@"; fi
exec {{python}} -I -S {{client}} {{address}} "$@"
"""
_SERVER = """
import sys
sys.path.insert(0, sys.argv[1])
from support.suite.warm_command import serve
serve(int(sys.argv[2]), int(sys.argv[3]))
"""


@contextmanager
def warm_qwf(directory: Path) -> Iterator[Path]:
    """The directory with that command in it, for as long as the block goes on."""
    address, script = directory / "socket", directory / "qwf"
    client = Path(__file__).with_name("warm_client.py")
    words = {"real": _REAL, "python": sys.executable, "client": client, "address": address}
    script.write_text(_SCRIPT.format(**{name: shlex.quote(str(word)) for name, word in words.items()}))
    script.chmod(0o755)
    # The server ends with this process, which has the only other end.
    alive, our_end = os.pipe()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
        listening.bind(str(address))
        listening.listen()
        handed = (listening.fileno(), alive)
        command = [sys.executable, "-c", _SERVER, _TESTS, *map(str, handed)]
        server = subprocess.Popen(command, pass_fds=handed, stdin=subprocess.DEVNULL, start_new_session=True)
    os.close(alive)
    try:
        yield directory
    finally:
        os.close(our_end)
        server.wait()


def serve(listening: int, alive: int) -> None:
    """Fork as often as is asked; in each command this ends as that does."""
    import_all()
    # Nobody waits for a keeper.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with socket.socket(fileno=listening) as there:
        while alive not in select.select([there, alive], [], [])[0]:
            client, _ = there.accept()
            if os.fork() == 0:
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                there.close()
                _keep(client)
                break
            client.close()
        else:
            return
    from queue_workflows.cli.entry_points import main

    main()


def _keep(client: socket.socket) -> None:
    """Start the command, and tell the client how it ended; this comes back in the command alone."""
    message, streams, _, _ = socket.recv_fds(client, _LONGEST, 3)
    if (pid := os.fork()) == 0:
        client.detach()
        _become(message, streams)
        return
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


def _become(message: bytes, streams: list[int]) -> None:
    """Have what an exec would have given."""
    directory, count, *rest = message.decode(errors="surrogateescape").split("\0")
    arguments, variables = rest[: int(count)], rest[int(count) :]
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
    os.closerange(len(streams), 256)
    os.environ.clear()
    os.environ.update(each.split("=", 1) for each in variables)
    os.chdir(directory)
    sys.argv[:] = [str(_REAL), *arguments]
    sys.orig_argv[:] = [sys.executable, *sys.argv]
    sys.path[:] = [str(_REAL.parent), *(path for path in sys.path if path not in ("", _TESTS))]
