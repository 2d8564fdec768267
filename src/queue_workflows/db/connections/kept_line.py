"""One thread's connection to the database: opened when it is needed, let go of when it failed."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Generic, TypeVar

import psycopg

from queue_workflows import clock as time
from queue_workflows.db.connections.asking_connection import AskingConnection

C = TypeVar("C", bound=psycopg.Connection[Any])


class Line(Generic[C]):
    """What `connect` gives, for as long as it lasts; all but `cut_if_stuck` is for the thread that asks.

    A question is waited for as long as the network lets it, and one that acknowledges and passes nothing on
    lets it for ever. So what may not wait so long is asked under `asking`, and another thread cuts the line.
    """

    def __init__(self, connect: Callable[[], C], *, now: Callable[[], float] = time.monotonic) -> None:
        self._connect = connect
        self._now = now
        self._guard = threading.Lock()
        self._connection: C | None = None
        self._plug: socket.socket | None = None
        self._asked_at: float | None = None

    @property
    def is_up(self) -> bool:
        """Whether there is a connection, as far as anybody knows."""
        return self._connection is not None

    def connected(self) -> C:
        """The connection, a fresh one if there is none."""
        if self._connection is None:
            connection = self._connect()
            # A descriptor of our own: the driver's may be closed at any moment, and its number be another's.
            plug = socket.socket(fileno=os.dup(connection.pgconn.socket))
            with self._guard:
                self._connection, self._plug = connection, plug
        return self._connection

    @contextmanager
    def asking(self) -> Iterator[C]:
        """The connection for questions that another thread may cut short."""
        connection = self.connected()
        with self._guard:
            self._asked_at = self._now()
        try:
            yield connection
        finally:
            with self._guard:
                self._asked_at = None

    def cut_if_stuck(self, after_s: float) -> None:
        """From any thread: let fail what has been asked for so long, by the socket."""
        with self._guard:
            self._cut_if(self._asked_at, after_s)

    def cut_if_unanswered(self, after_s: float) -> None:
        """From any thread: let fail what the server was asked last, if it has not answered for so long."""
        with self._guard:
            if isinstance(self._connection, AskingConnection):
                self._cut_if(self._connection.waiting_since, after_s)

    def _cut_if(self, since: float | None, after_s: float) -> None:
        if since is not None and self._plug is not None and self._now() - since > after_s:
            with suppress(OSError):
                self._plug.shutdown(socket.SHUT_RDWR)

    def let_go(self) -> bool:
        """Close the connection; whether there was one."""
        with self._guard:
            connection, self._connection = self._connection, None
            plug, self._plug = self._plug, None
        if connection is not None:
            connection.close()
        if plug is not None:
            plug.close()
        return connection is not None
