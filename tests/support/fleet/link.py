"""A link between two servers of a fleet, which can become a black hole and heal."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from typing import Self


class Link:
    """Forwards loopback connections to a port, each way in a thread of its own.

    In a single thread, as `TcpProxy` has it, a client that reads one connection only once another is open
    would wait for ever, and pg_basebackup is such a one.
    """

    def __init__(self, target_port: int) -> None:
        self._target = ("127.0.0.1", target_port)
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._server.getsockname()[1]
        self._is_dead = threading.Event()
        self._ends: set[socket.socket] = set()
        self._guard = threading.Lock()
        threading.Thread(target=self._accept, daemon=True).start()

    def pause(self) -> None:
        """From now on a black hole that acknowledges: what arrives is taken in and dropped."""
        self._is_dead.set()

    def resume(self) -> None:
        """Forward again; connections that lost bytes meanwhile are cut, for nothing can mend them."""
        self._cut()
        self._is_dead.clear()

    def close(self) -> None:
        """End it and everything through it."""
        with suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        self._cut()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _cut(self) -> None:
        with self._guard:
            for end in self._ends:
                with suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._server.accept()
                threading.Thread(target=self._lead, args=[client], daemon=True).start()

    def _lead(self, client: socket.socket) -> None:
        try:
            upstream = socket.create_connection(self._target)
        except OSError:
            client.close()
            return
        with self._guard:
            self._ends |= {client, upstream}
        back = threading.Thread(target=self._pump, args=[upstream, client], daemon=True)
        back.start()
        self._pump(client, upstream)
        back.join()
        with self._guard:
            self._ends -= {client, upstream}
        client.close()
        upstream.close()

    def _pump(self, source: socket.socket, other: socket.socket) -> None:
        """Until either end is closed, and then both."""
        with suppress(OSError):
            while data := source.recv(65536):
                if not self._is_dead.is_set():
                    other.sendall(data)
        for end in (source, other):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
