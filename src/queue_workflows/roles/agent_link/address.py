"""Where the agent of a supervisor is found, and messages to and from it: JSON in a socket that keeps packets.

A supervisor draws a secret and tells it to what it starts. The address is made of that: a name that the
kernel keeps, in no directory, and that goes with the process that has it. Anybody may see it; so what comes
has to know the secret, and either end speaks to a process of its own account alone. What a job starts is told
neither.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import socket
import struct
from contextlib import suppress
from typing import Any, Final, Self

from queue_workflows.db.connections.descriptors import Descriptors
from queue_workflows.host.kernel import IS_LINUX

_LONGEST: Final = 200_000
_WAITING: Final = 4096
_PEER: Final = struct.Struct("3i")
_LATER: Final = (BlockingIOError, InterruptedError)


class AgentGone(Exception):
    """The other end is gone, or does not read what it is told."""


def new_secret() -> str:
    """What only a supervisor and what it starts know; empty where there is no address, as off Linux."""
    return secrets.token_hex(16) if IS_LINUX else ""


def _address(secret: str) -> str:
    return f"\0qwf-agent-{hashlib.sha256(secret.encode()).hexdigest()[:32]}"


def serving(secret: str) -> socket.socket:
    """The agent's socket, for those that come."""
    own = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    own.bind(_address(secret))
    own.listen(_WAITING)
    own.setblocking(False)
    return own


class Link:
    """One end of a connection; it never waits."""

    def __init__(self, connected: socket.socket) -> None:
        connected.setblocking(False)
        self._socket = connected
        self._number = connected.fileno()
        self._descriptors = Descriptors(self._number)
        self._is_over = False

    @classmethod
    def dial(cls, secret: str) -> Self | None:
        """A connection to the agent, which is told the secret; None where there is none."""
        dialled = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            dialled.setblocking(False)
            dialled.connect(_address(secret))
            if is_of_ours(dialled):
                link = cls(dialled)
                link.say("secret", secret)
                return link
        except (OSError, AgentGone):
            pass
        dialled.close()
        return None

    def fileno(self) -> int:
        """The descriptor to wait on; its number also when it is closed."""
        return self._number

    def say(self, *words: Any) -> None:
        """Send one message."""
        self._check()
        try:
            self._socket.send(json.dumps(words).encode())
        except OSError as exc:
            raise AgentGone(f"it takes no message: {exc.strerror}") from None

    def heard(self) -> list[list[Any]]:
        """What has arrived, each message once."""
        self._check()
        messages: list[list[Any]] = []
        try:
            while not self._is_over:
                packet = self._socket.recv(_LONGEST)
                self._is_over = not packet
                if packet:
                    messages.append(json.loads(packet))
        except _LATER:
            return messages
        except (OSError, ValueError) as exc:
            raise AgentGone(str(exc)) from None
        if not messages:
            raise AgentGone("it has ended")
        return messages

    @property
    def is_over(self) -> bool:
        """Whether the other end has hung up, after all that was heard."""
        return self._is_over

    def close(self) -> None:
        """Hang up."""
        if self._socket.fileno() >= 0 and not self._descriptors.are_ours():
            # Its number is another's by now.
            self._socket.detach()
        with suppress(OSError):
            self._socket.close()

    def _check(self) -> None:
        if not self._descriptors.are_ours():
            raise AgentGone("a job has closed the connection")


def is_of_ours(connected: socket.socket) -> bool:
    """Whether the process at the other end has our account."""
    packed = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
    return bool(_PEER.unpack(packed)[1] == os.geteuid())
