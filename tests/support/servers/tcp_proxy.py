"""A TCP proxy of the tests' own that can swallow everything, still acknowledging, or cut every line."""

from __future__ import annotations

import selectors
import socket
import threading
from typing import Self


class TcpProxy:
    """Forwards loopback connections to a port; paused it takes bytes in and passes none on."""

    def __init__(self, target_port: int) -> None:
        self._target = ("127.0.0.1", target_port)
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._server.getsockname()[1]
        self._other: dict[socket.socket, socket.socket] = {}
        self._paused = threading.Event()
        self._lock = threading.Lock()
        self._ended = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._server, selectors.EVENT_READ)
        self._thread.start()

    def lead_to(self, port: int) -> None:
        """From now on to another port; what goes to the one before is cut."""
        self._target = ("127.0.0.1", port)
        self.cut()

    def pause(self) -> None:
        """From now on a black hole that acknowledges: what arrives is taken in and dropped."""
        self._paused.set()

    def resume(self) -> None:
        """Forward again; connections that lost bytes meanwhile are cut, for nothing can mend them."""
        self.cut()
        self._paused.clear()

    def cut(self) -> None:
        """Close every connection, as a restarted proxy does."""
        with self._lock:
            for one in list(self._other):
                self._drop(one)

    def close(self) -> None:
        """End the proxy and everything through it."""
        self._ended = True
        with socket.create_connection(("127.0.0.1", self.port)):
            self._thread.join()
        self.cut()
        self._server.close()
        self._selector.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(self) -> None:
        while not self._ended:
            for key, _ in self._selector.select(0.1):
                if key.fileobj is self._server:
                    self._accept()
                else:
                    self._forward(key.fileobj)

    def _accept(self) -> None:
        client, _ = self._server.accept()
        if self._ended:
            client.close()
            return
        upstream = socket.create_connection(self._target)
        with self._lock:
            for one, other in ((client, upstream), (upstream, client)):
                # What comes in several pieces goes on in several, and none may wait for the one before.
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._other[one] = other
                self._selector.register(one, selectors.EVENT_READ)

    def _forward(self, source: socket.socket) -> None:
        with self._lock:
            if source not in self._other:
                return
            try:
                data = source.recv(65536)
                if data and not self._paused.is_set():
                    self._other[source].sendall(data)
            except OSError:
                data = b""
            if not data:
                self._drop(source)

    def _drop(self, one: socket.socket) -> None:
        other = self._other.pop(one, None)
        if other is None:
            return
        self._other.pop(other, None)
        for end in (one, other):
            self._selector.unregister(end)
            end.close()
