"""Connections that steps write on: opened by the first step that asks for one, and kept for the next."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from contextvars import ContextVar
from typing import Any, Final
from weakref import WeakKeyDictionary

import psycopg
from psycopg.pq import TransactionStatus

from queue_workflows.db.connections.own import aconnect, connect, opened_for

_KEPT: Final = 8
_guard: Final = threading.Lock()
_idle: Final[list[tuple[tuple[object, ...], psycopg.Connection[Any]]]] = []
_idle_of_loops: Final[
    WeakKeyDictionary[
        asyncio.AbstractEventLoop, list[tuple[tuple[object, ...], psycopg.AsyncConnection[Any]]]
    ]
] = WeakKeyDictionary()


class StepTransaction:
    """The transaction of one try of a step, begun when its function asks for the connection."""

    def __init__(self) -> None:
        self.connection: psycopg.Connection[Any] | None = None
        self._opened_for: tuple[object, ...] = ()
        self._is_over = False

    def begun(self) -> psycopg.Connection[Any]:
        """The connection, in its transaction."""
        if self._is_over:
            raise RuntimeError("this try of the step was given up: what it writes now would be of no step")
        if self.connection is None:
            self._opened_for = opened_for()
            self.connection = _taken(self._opened_for) or connect()
        return self.connection

    def commit(self) -> None:
        """Commit, and keep the connection for another step."""
        connection, self.connection = self.connection, None
        if connection is None:
            return
        try:
            connection.commit()
        except BaseException:
            connection.close()
            raise
        with _guard:
            if len(_idle) < _KEPT:
                _idle.append((self._opened_for, connection))
                return
        connection.close()

    def roll_back(self) -> None:
        """Let nothing of it happen, nor of what its function may yet do."""
        self._is_over = True
        connection, self.connection = self.connection, None
        if connection is not None:
            with suppress(Exception):
                connection.close()


def _taken(wanted: tuple[object, ...]) -> psycopg.Connection[Any] | None:
    with _guard:
        while _idle:
            opened, connection = _idle.pop()
            if opened == wanted and _is_usable(connection):
                return connection
            connection.close()
    return None


def _is_usable(connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> bool:
    return not connection.closed and connection.info.transaction_status == TransactionStatus.IDLE


class AsyncStepTransaction:
    """`StepTransaction` for async code; a connection is of the loop that it was made on."""

    def __init__(self) -> None:
        self.connection: psycopg.AsyncConnection[Any] | None = None
        self._opened_for: tuple[object, ...] = ()

    async def begun(self) -> psycopg.AsyncConnection[Any]:
        """The connection, in its transaction."""
        if self.connection is None:
            self._opened_for = opened_for()
            idle = _idle_of_loops.setdefault(asyncio.get_running_loop(), [])
            while idle and self.connection is None:
                opened, connection = idle.pop()
                if opened == self._opened_for and _is_usable(connection):
                    self.connection = connection
                else:
                    await connection.close()
            if self.connection is None:
                self.connection = await aconnect()
        return self.connection

    async def commit(self) -> None:
        """Commit, and keep the connection for another step."""
        connection, self.connection = self.connection, None
        if connection is None:
            return
        try:
            await connection.commit()
        except BaseException:
            await connection.close()
            raise
        idle = _idle_of_loops.setdefault(asyncio.get_running_loop(), [])
        if len(idle) < _KEPT:
            idle.append((self._opened_for, connection))
        else:
            await connection.close()

    async def roll_back(self) -> None:
        """Let nothing of it happen."""
        connection, self.connection = self.connection, None
        if connection is not None:
            with suppress(Exception):
                await connection.close()


# Of the step that runs here, if any does.
CURRENT: Final[ContextVar[StepTransaction | AsyncStepTransaction | None]] = ContextVar(
    "qwf_step", default=None
)
