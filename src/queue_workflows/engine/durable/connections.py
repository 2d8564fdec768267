"""Connections that steps write on: opened by the first step that asks for one, and kept for the next.

Handed out in a transaction, so that neither psycopg nor the function of a step can end it unnoticed, and so
that a kept one which the server has closed shows it before it is used. Given back as it was opened: what a
step has set of its session, and of how rows are read, is that step's alone.
"""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from contextvars import ContextVar
from typing import Any, Final, TypeAlias
from weakref import WeakKeyDictionary

import psycopg
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row

from queue_workflows.db.connections.failures import DATABASE_AWAY
from queue_workflows.db.connections.own import aconnect, connect, opened_for

_KEPT: Final = 8
_PREPARED_AFTER: Final = 5
_OpenedFor: TypeAlias = tuple[object, ...]
_Either: TypeAlias = psycopg.Connection[Any] | psycopg.AsyncConnection[Any]
_guard: Final = threading.Lock()
_idle: Final[list[tuple[_OpenedFor, psycopg.Connection[Any]]]] = []
_idle_of_loops: Final[
    WeakKeyDictionary[asyncio.AbstractEventLoop, list[tuple[_OpenedFor, psycopg.AsyncConnection[Any]]]]
] = WeakKeyDictionary()


class _StepTransaction:
    """What the transactions of sync and of async steps have in common."""

    def __init__(self) -> None:
        self._opened_for: _OpenedFor = ()
        self._is_over = False
        self._is_lost = False
        # Behind a proxy that keeps no sessions one cannot be made as it was.
        self._keeps_session = True

    def take_back(self, connection: _Either) -> None:
        """Have the connection as it was handed out, to store the step on it.

        Refused is to store it beside what its function has committed, or undone, by itself.
        """
        if connection.info.transaction_status == TransactionStatus.IDLE:
            raise RuntimeError("the step has ended the transaction of ctx.connection(), which is not its own")
        _forget(connection)
        connection.prepare_threshold = _PREPARED_AFTER if self._keeps_session else None

    def _check_not_over(self) -> None:
        if self._is_over:
            raise RuntimeError("this try of the step is over: what it writes now would be of no step")

    def _opened(self, connection: _Either) -> None:
        self._keeps_session = connection.prepare_threshold is not None


class StepTransaction(_StepTransaction):
    """The transaction of one try of a step, begun when its function asks for the connection."""

    def __init__(self) -> None:
        super().__init__()
        self.connection: psycopg.Connection[Any] | None = None
        self._block: psycopg.Transaction | None = None

    @property
    def is_lost(self) -> bool:
        """Whether the connection has broken, so that nobody knows what has become of a commit."""
        return self._is_lost or (self.connection is not None and self.connection.broken)

    def begun(self) -> psycopg.Connection[Any]:
        """The connection, in its transaction."""
        self._check_not_over()
        if self.connection is None:
            self._opened_for = opened_for()
            while self.connection is None:
                kept = _taken(self._opened_for)
                connection = kept or connect()
                self._opened(connection)
                block = psycopg.Transaction(connection)
                try:
                    block.__enter__()
                except BaseException as exc:
                    connection.close()
                    if kept is None or not isinstance(exc, DATABASE_AWAY):
                        raise
                else:
                    self.connection, self._block = connection, block
        return self.connection

    def commit(self) -> None:
        """Commit, and keep the connection for another step."""
        self._is_over = True
        connection, self.connection = self.connection, None
        if connection is None or self._block is None:
            return
        try:
            self._block.__exit__(None, None, None)
        except BaseException:
            self._is_lost = connection.broken
            connection.close()
            raise
        with suppress(Exception):
            if self._keeps_session and _is_usable(connection):
                connection.autocommit = True
                connection.execute("DISCARD ALL")
                connection.autocommit = False
                if _reads_times(connection):
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
            self._is_lost = self._is_lost or connection.broken
            with suppress(Exception):
                connection.close()


class AsyncStepTransaction(_StepTransaction):
    """`StepTransaction` for async code; a connection is of the loop that it was made on."""

    def __init__(self) -> None:
        super().__init__()
        self.connection: psycopg.AsyncConnection[Any] | None = None
        self._block: psycopg.AsyncTransaction | None = None
        self._beginning = asyncio.Lock()

    @property
    def is_lost(self) -> bool:
        """Whether the connection has broken, so that nobody knows what has become of a commit."""
        return self._is_lost or (self.connection is not None and self.connection.broken)

    async def begun(self) -> psycopg.AsyncConnection[Any]:
        """The connection, in its transaction."""
        async with self._beginning:
            self._check_not_over()
            if self.connection is None:
                self._opened_for = opened_for()
                while self.connection is None:
                    await self._begin()
            return self.connection

    async def _begin(self) -> None:
        """Try one connection: a kept one may turn out to be closed."""
        idle = _idle_of_loops.setdefault(asyncio.get_running_loop(), [])
        opened, kept = idle.pop() if idle else (self._opened_for, None)
        if kept is not None and (opened != self._opened_for or not _is_usable(kept)):
            await kept.close()
            return
        connection = kept or await aconnect()
        self._opened(connection)
        block = psycopg.AsyncTransaction(connection)
        try:
            await block.__aenter__()
        except BaseException as exc:
            await connection.close()
            if kept is None or not isinstance(exc, DATABASE_AWAY):
                raise
            return
        if self._is_over:
            # The step was given up meanwhile.
            await connection.close()
            self._check_not_over()
        self.connection, self._block = connection, block

    async def commit(self) -> None:
        """Commit, and keep the connection for another step."""
        self._is_over = True
        connection, self.connection = self.connection, None
        if connection is None or self._block is None:
            return
        try:
            await self._block.__aexit__(None, None, None)
        except BaseException:
            self._is_lost = connection.broken
            await connection.close()
            raise
        with suppress(Exception):
            if self._keeps_session and _is_usable(connection):
                await connection.set_autocommit(True)
                await connection.execute("DISCARD ALL")
                await connection.set_autocommit(False)
                idle = _idle_of_loops.setdefault(asyncio.get_running_loop(), [])
                if _reads_times(connection) and len(idle) < _KEPT:
                    idle.append((self._opened_for, connection))
                    return
        await connection.close()

    async def roll_back(self) -> None:
        """Let nothing of it happen, nor of what its function may yet do."""
        self._is_over = True
        connection, self.connection = self.connection, None
        if connection is not None:
            self._is_lost = self._is_lost or connection.broken
            with suppress(Exception):
                await connection.close()


def _taken(wanted: _OpenedFor) -> psycopg.Connection[Any] | None:
    with _guard:
        while _idle:
            opened, connection = _idle.pop()
            if opened == wanted and _is_usable(connection):
                return connection
            connection.close()
    return None


def _is_usable(connection: _Either) -> bool:
    return not connection.closed and connection.info.transaction_status == TransactionStatus.IDLE


def _reads_times(connection: _Either) -> bool:
    """Whether times are still written as psycopg reads them, which may have been set once for the session."""
    return (connection.info.parameter_status("DateStyle") or "ISO").startswith("ISO")


def _forget(connection: Any) -> None:
    """Undo what a step has set of the driver's side: how rows, parameters and notices are taken."""
    is_async = isinstance(connection, psycopg.AsyncConnection)
    connection.row_factory = tuple_row
    connection.cursor_factory = psycopg.AsyncCursor if is_async else psycopg.Cursor
    connection.server_cursor_factory = psycopg.AsyncServerCursor if is_async else psycopg.ServerCursor
    # psycopg copies its own map when one is next asked for.
    connection._adapters = None
    connection._notice_handlers.clear()
    connection._notify_handlers.clear()


# Of the step that runs here, if any does.
CURRENT: Final[ContextVar[StepTransaction | AsyncStepTransaction | None]] = ContextVar(
    "qwf_step", default=None
)
