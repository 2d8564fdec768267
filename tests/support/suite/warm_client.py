"""What stands for `qwf` on PATH: it hands itself to the server of `warm_command`, and ends as that says.

Started as `warm_client.py ADDRESS ARGUMENTS`, without site packages, for it is there to be quick.
"""

from __future__ import annotations

import os
import signal
import socket
import sys

_HANDED_ON = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)


def main(address: str, arguments: list[str]) -> int:
    """The exit status of the command; negative, the signal that ended it."""
    variables = [f"{name}={os.environ[name]}" for name in os.environ]
    words = [os.getcwd(), str(len(arguments)), *arguments, *variables]
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
        server.connect(address)
        message = "\0".join(words).encode(errors="surrogateescape")
        socket.send_fds(server, [message], [0, 1, 2])
        pid = int(server.recv(64))
        for number in _HANDED_ON:
            signal.signal(number, lambda number, _frame: os.kill(pid, number))
        return int(server.recv(64))


if __name__ == "__main__":
    status = main(sys.argv[1], sys.argv[2:])
    if status < 0:
        signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    sys.exit(status)
