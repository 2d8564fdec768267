"""A pooling proxy in transaction mode, for machines without one: a transaction gets any free backend.

It speaks just enough of the protocol: the backends are logged in by psycopg, the clients are all let in, and
a backend goes back to the pool with the ReadyForQuery that says "idle".
"""

from __future__ import annotations

import os
import queue
import secrets
import select
import socket
import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Self

import psycopg
from psycopg.conninfo import make_conninfo

PLAIN = {"sslmode": "disable", "gssencmode": "disable"}
STARTUP = 196608
TOLD = ("server_version", "client_encoding", "standard_conforming_strings", "integer_datetimes", "DateStyle")


def message(kind: bytes, body: bytes) -> bytes:
    """One message to a client."""
    return kind + struct.pack("!i", len(body) + 4) + body


class Backend:
    """A logged-in connection, from now on only its socket."""

    def __init__(self, dsn: str) -> None:
        self._login = psycopg.connect(make_conninfo(dsn, **PLAIN), autocommit=True)
        self.told = {name: self._login.info.parameter_status(name) or "" for name in TOLD}
        self.socket = socket.socket(fileno=os.dup(self._login.pgconn.socket))
        self.socket.setblocking(True)

    def close(self) -> None:
        self.socket.close()
        self._login.close()


class Answers:
    """Cuts what a backend sends into messages, to see when its transaction is over."""

    def __init__(self) -> None:
        self._rest = b""

    def idle_after(self, data: bytes) -> bool:
        """Whether the last whole message says that no transaction is open."""
        self._rest += data
        idle = False
        while len(self._rest) >= 5:
            (length,) = struct.unpack("!i", self._rest[1:5])
            if len(self._rest) <= length:
                return False
            idle = self._rest[:1] == b"Z" and self._rest[5:6] == b"I"
            self._rest = self._rest[length + 1 :]
        return idle and not self._rest


class TransactionPooler:
    """The proxy; `dsn()` goes through it."""

    def __init__(
        self, dsn: str, *, backends: int = 2, on_asked: Callable[[bytes], None] = lambda _asked: None
    ) -> None:
        """`on_asked` is given all that clients ask, in the threads that pass it on."""
        self._target = dsn
        self._on_asked = on_asked
        self._all = [Backend(dsn) for _ in range(backends)]
        self._free: queue.LifoQueue[Backend] = queue.LifoQueue()
        for backend in self._all:
            self._free.put(backend)
        self._server = socket.create_server(("127.0.0.1", 0))
        self._clients: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def dsn(self) -> str:
        """Through the proxy."""
        port = self._server.getsockname()[1]
        return make_conninfo(self._target, host="127.0.0.1", port=port, **PLAIN)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for one in (self._server, *self._clients):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()
        for backend in self._all:
            backend.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._server.accept()
                client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._clients.append(client)
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        held: list[Backend] = []
        with suppress(OSError, ValueError, struct.error):
            self._let_in(client)
            answers = Answers()
            while self._pass_on(client, held, answers):
                pass
        for backend in held:
            # A client that left in the middle of a transaction.
            backend.socket.sendall(message(b"Q", b"ROLLBACK\0"))
            answers = Answers()
            while not answers.idle_after(backend.socket.recv(65536)):
                pass
            self._free.put(backend)
        client.close()

    def _let_in(self, client: socket.socket) -> None:
        while True:
            length, code = struct.unpack("!ii", client.recv(8, socket.MSG_WAITALL))
            client.recv(length - 8, socket.MSG_WAITALL)
            if code == STARTUP:
                break
            client.sendall(b"N")
        told = [f"{name}\0{value}\0".encode() for name, value in self._all[0].told.items()]
        client.sendall(
            message(b"R", struct.pack("!i", 0))
            + b"".join(message(b"S", one) for one in told)
            + message(b"K", struct.pack("!i", secrets.randbelow(2**30) + 2**29) + secrets.token_bytes(4))
            + message(b"Z", b"I")
        )

    def _pass_on(self, client: socket.socket, held: list[Backend], answers: Answers) -> bool:
        """Wait for the client and hand on what it says, with all that the backend answers to it."""
        data = client.recv(65536)
        if not data or data[:1] == b"X":
            return False
        self._on_asked(data)
        if not held:
            held.append(self._free.get())
        held[0].socket.sendall(data)
        while True:
            readable, _, _ = select.select([client, held[0].socket], [], [])
            if client in readable:
                return self._pass_on(client, held, answers)
            data = held[0].socket.recv(65536)
            if not data:
                return False
            idle = answers.idle_after(data)
            if idle:
                # Before the client hears of it: who hears first could be given another backend than this one.
                self._free.put(held.pop())
            client.sendall(data)
            if idle:
                return True
