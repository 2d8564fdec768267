"""One thread's connection to the database: opened when it is needed, let go of when it failed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

import psycopg

C = TypeVar("C", bound=psycopg.Connection[Any])


class Line(Generic[C]):
    """What `connect` gives, for as long as it lasts; of the thread that asks over it."""

    def __init__(self, connect: Callable[[], C]) -> None:
        self._connect = connect
        self._connection: C | None = None

    @property
    def is_up(self) -> bool:
        """Whether there is a connection, as far as anybody knows."""
        return self._connection is not None

    def connected(self) -> C:
        """The connection, a fresh one if there is none."""
        if self._connection is None:
            self._connection = self._connect()
        return self._connection

    def let_go(self) -> bool:
        """Close the connection; whether there was one."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
        return connection is not None
