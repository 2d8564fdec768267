"""A link to a server that is far away: each byte takes its time each way, and round trips are counted.

The kernel's own delay of packets needs a module that few machines have, and root; this needs neither. What it
cannot have is a window that grows or a packet that is lost: it is the speed of light and nothing else.
"""

from __future__ import annotations

import socket
import threading
import time
from contextlib import suppress
from queue import SimpleQueue
from typing import Final, Self

from psycopg.conninfo import conninfo_to_dict, make_conninfo

_SIZE: Final = 1 << 16
# What is due by then is sent at once: a shorter sleep takes longer than that.
_AT_ONCE_S: Final = 0.0002


class Line:
    """One connection through the link; of the two threads each way one takes in, one passes on when due."""

    def __init__(self, client: socket.socket, server: socket.socket, one_way_s: float) -> None:
        self._one_way_s = one_way_s
        self._ends = client, server
        # How often something was asked after an answer had come.
        self.round_trips = 0
        self._is_answered = True
        asked: SimpleQueue[tuple[float, bytes]] = SimpleQueue()
        answers: SimpleQueue[tuple[float, bytes]] = SimpleQueue()
        for work in (
            lambda: self._take_in(client, asked, is_asked=True),
            lambda: self._pass_on(asked, server),
            lambda: self._take_in(server, answers, is_asked=False),
            lambda: self._pass_on(answers, client, is_answer=True),
        ):
            threading.Thread(target=work, daemon=True).start()

    def close(self) -> None:
        """Cut it; its threads end by that."""
        for end in self._ends:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def _take_in(
        self, source: socket.socket, into: SimpleQueue[tuple[float, bytes]], *, is_asked: bool
    ) -> None:
        data = b"?"
        while data:
            try:
                data = source.recv(_SIZE)
            except OSError:
                data = b""
            if is_asked and data and self._is_answered:
                self._is_answered = False
                self.round_trips += 1
            into.put((time.monotonic() + self._one_way_s, data))

    def _pass_on(
        self, out: SimpleQueue[tuple[float, bytes]], to: socket.socket, *, is_answer: bool = False
    ) -> None:
        while True:
            due, data = out.get()
            if not data:
                break
            if (left := due - time.monotonic()) > _AT_ONCE_S:
                time.sleep(left)
            # Noted first: what is asked next may come before this thread has another turn.
            self._is_answered = self._is_answered or is_answer
            with suppress(OSError):
                to.sendall(data)
        with suppress(OSError):
            to.shutdown(socket.SHUT_RDWR)


class Distance:
    """Listens on loopback in front of the server of `dsn`, a `round_trip_s` away from it."""

    def __init__(self, dsn: str, round_trip_s: float = 0.0) -> None:
        self._params = conninfo_to_dict(dsn)
        self._one_way_s = round_trip_s / 2
        self._listening = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.lines: list[Line] = []
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    @property
    def dsn(self) -> str:
        """This database, from far away."""
        port = self._listening.getsockname()[1]
        here = {"host": "127.0.0.1", "port": port, "sslmode": "disable", "gssencmode": "disable"}
        return make_conninfo(**{**self._params, **here})

    @property
    def round_trips(self) -> int:
        """How many there were on all lines."""
        return sum(line.round_trips for line in self.lines)

    @property
    def most_round_trips(self) -> int:
        """How many there were on the line that had the most, which is that of a worker's main thread."""
        return max((line.round_trips for line in self.lines), default=0)

    def close(self) -> None:
        """Take the link down."""
        with suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self._thread.join(10)
        for line in self.lines:
            line.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listening.accept()
                server = self._connect()
                for end in (client, server):
                    if end.family != socket.AF_UNIX:
                        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self.lines.append(Line(client, server, self._one_way_s))

    def _connect(self) -> socket.socket:
        host, port = str(self._params.get("host") or "localhost"), int(self._params.get("port") or 5432)
        if not host.startswith("/"):
            return socket.create_connection((host, port))
        server = socket.socket(socket.AF_UNIX)
        server.connect(f"{host}/.s.PGSQL.{port}")
        return server
