"""Three threads that read for every page and every tab, each at one moment, read-only, and within bounds.

A statement may take a second, and none begins when a look has taken two; then the look is given up.
The transaction is READ ONLY whatever its statements are, and where the connection's user may take the role of
readers it has no rights but those.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any, Final, TypeVar

import psycopg

from queue_workflows import clock as time
from queue_workflows.db.connections.asking_connection import AskingConnection
from queue_workflows.errors import QwfError
from queue_workflows.web.database.opened import OpenedDatabase

T = TypeVar("T")

THREADS: Final = 3
WITHIN_MS: Final = 1000
LOOK_WITHIN_S: Final = 2.0
# More would wait for longer than anybody looks at an empty page.
MOST_WAITING: Final = 200
MOST_WAITING_BESIDE: Final = 10
READER_ROLE: Final = "qwf_reader"
# What an older or a newer schema has not.
_NOT_THERE: Final = (
    psycopg.errors.UndefinedTable,
    psycopg.errors.UndefinedColumn,
    psycopg.errors.UndefinedFunction,
)

_MAY_BE_READER: Final = """
SELECT EXISTS (
    SELECT FROM pg_roles WHERE rolname = %(role)s::text AND pg_has_role(current_user, oid, 'MEMBER')
)
"""
# For this transaction alone, so that a pooler in between hands nothing on to others. What is planned as
# costly is read within a second all the same, of which compiling it would take a part.
_BOUNDS: Final = """
SELECT set_config('statement_timeout', %(ms)s::text, true), set_config('jit', 'off', true)
"""
_AS_READER: Final = "SELECT set_config('role', %(role)s::text, true)"


class Busy(QwfError):
    """More looks are waiting than can be served soon."""

    def __init__(self) -> None:
        super().__init__(
            "the page is asked for more than its three readers can read", advice="try again in a moment"
        )


class Readers:
    """Reads what is asked, in the order of asking."""

    def __init__(
        self,
        opened: OpenedDatabase,
        *,
        threads: int = THREADS,
        within_ms: int = WITHIN_MS,
        look_within_s: float = LOOK_WITHIN_S,
    ) -> None:
        self._opened = opened
        self._within_ms = within_ms
        self.look_within_s = look_within_s
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="qwf-web-reader")
        self._beside = ThreadPoolExecutor(1, thread_name_prefix="qwf-web-beside")
        self._own = threading.local()
        self._guard = threading.Lock()
        self._connections: list[psycopg.Connection[Any]] = []
        self._waiting = 0
        self._waiting_beside = 0

    async def ask(self, look: Callable[[psycopg.Connection[Any]], T]) -> T:
        """What `look` says of the database at one moment.

        Where a table or a column is missing, the error says at which revision the schema is. That is asked
        once the transaction is over: behind a small pool it would wait for what the transaction holds.
        """
        if self._waiting >= MOST_WAITING:
            raise Busy
        self._waiting += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._pool, self._look, look)
        except _NOT_THERE:
            await asyncio.to_thread(self._opened.check_schema)
            raise
        finally:
            self._waiting -= 1

    async def beside(self, look: Callable[[Any], T]) -> T:
        """What `look` says that makes connections of its own and takes its time; one after the other."""
        if self._waiting_beside >= MOST_WAITING_BESIDE:
            raise Busy
        self._waiting_beside += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._beside, look, None)
        finally:
            self._waiting_beside -= 1

    def close(self) -> None:
        """Let go of the threads and their connections; what is being read is cut off."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._beside.shutdown(wait=False, cancel_futures=True)
        with self._guard:
            for connection in self._connections:
                with suppress(psycopg.Error):
                    connection.cancel_safe(timeout=1)
                connection.close()
            self._connections.clear()

    def _look(self, look: Callable[[psycopg.Connection[Any]], T]) -> T:
        """Once more on a new connection, if the one that was kept proves to be dead."""
        was_kept = self._kept() is not None
        try:
            return self._once(look)
        except (psycopg.OperationalError, psycopg.InterfaceError):
            connection = self._kept()
            if not was_kept or (connection is not None and not connection.broken):
                raise
        return self._once(look)

    def _once(self, look: Callable[[psycopg.Connection[Any]], T]) -> T:
        connection = self._connected()
        try:
            with (
                _read_only(connection, self._own.role, self._within_ms),
                _asking_until(connection, time.monotonic() + self.look_within_s),
            ):
                return look(connection)
        finally:
            if connection.closed:
                self._forget(connection)

    def _kept(self) -> AskingConnection | None:
        return getattr(self._own, "connection", None)

    def _connected(self) -> AskingConnection:
        kept = self._kept()
        if kept is not None and not kept.closed:
            return kept
        connection = self._opened.connect()
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        connection.read_only = True
        found = connection.execute(_MAY_BE_READER, {"role": READER_ROLE}).fetchone()
        self._own.role = READER_ROLE if found is not None and found[0] else None
        self._own.connection = connection
        with self._guard:
            self._connections.append(connection)
        return connection

    def _forget(self, connection: psycopg.Connection[Any]) -> None:
        self._own.connection = None
        with self._guard, suppress(ValueError):
            self._connections.remove(connection)


@contextmanager
def within(connection: psycopg.Connection[Any], ms: int) -> Iterator[None]:
    """A shorter bound for a part of a look that a page can do without; if it is met, the rest still works."""
    until = connection.asks_until if isinstance(connection, AskingConnection) else None
    with _asking_until(connection, None), connection.transaction(force_rollback=True):
        connection.execute(_BOUNDS, {"ms": str(ms)})
        with _asking_until(connection, until):
            yield


@contextmanager
def _asking_until(connection: psycopg.Connection[Any], until: float | None) -> Iterator[None]:
    """No statement begins later; what ends the transaction, outside of this, does."""
    if not isinstance(connection, AskingConnection):
        yield
        return
    before, connection.asks_until = connection.asks_until, until
    try:
        yield
    finally:
        connection.asks_until = before


@contextmanager
def _read_only(connection: psycopg.Connection[Any], role: str | None, within_ms: int) -> Iterator[None]:
    with connection.transaction(force_rollback=True):
        connection.execute(_BOUNDS, {"ms": str(within_ms)})
        if role is not None:
            connection.execute(_AS_READER, {"role": role})
        yield
