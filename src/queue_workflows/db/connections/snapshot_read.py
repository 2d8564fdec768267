"""Connections for looking at the same thing again and again: opened anew when lost, and at one moment."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Self

import psycopg

from queue_workflows.db.connections.engine import Database


class KeptConnection:
    """One autocommit connection, opened again when it is lost."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._connection: psycopg.Connection[Any] | None = None

    def connection(self) -> psycopg.Connection[Any]:
        """One that is open as far as anybody knows."""
        if self._connection is None or self._connection.closed:
            self._connection = self._database.connect(autocommit=True)
        return self._connection

    @property
    def is_open(self) -> bool:
        """Whether there is one, though it may have been lost since it was used."""
        return self._connection is not None and not self._connection.closed

    def close(self) -> None:
        """Let go of it until it is asked for again."""
        if self._connection is not None:
            self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@contextmanager
def at_one_moment(connection: psycopg.Connection[Any]) -> Iterator[None]:
    """All statements within see the database as it is now, so that what they tell fits together."""
    before = connection.isolation_level
    connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
    try:
        with connection.transaction():
            yield
    finally:
        if not connection.closed:
            connection.isolation_level = before
