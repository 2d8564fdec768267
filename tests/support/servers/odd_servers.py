"""TCP servers that are no Postgres: what a wrong host or port leads to."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


def speaks_http(client: socket.socket) -> None:
    """A web server where a database was expected."""
    client.recv(1024)
    client.sendall(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")
    client.close()


def hangs_up(client: socket.socket) -> None:
    """A load balancer without a server behind it."""
    client.close()


def says_nothing(_client: socket.socket) -> None:
    """A server that accepts and never answers."""


@contextmanager
def serving(behave: Callable[[socket.socket], None]) -> Iterator[int]:
    """The port of a loopback server that behaves so towards each client."""
    clients: list[socket.socket] = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def accept() -> None:
            while True:
                try:
                    client, _ = server.accept()
                except OSError:
                    return
                clients.append(client)
                behave(client)

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        try:
            yield server.getsockname()[1]
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join()
            for client in clients:
                client.close()
