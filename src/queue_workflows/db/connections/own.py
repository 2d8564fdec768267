"""This process's own connections to the configured database, for callers that bring none.

A pool of five, made when it is first needed and again after `configure()`, a fork or another address, from
the environment or from the function that names it. An embedded server is started by it and held until the
process ends.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import psycopg

from queue_workflows.config import current_config
from queue_workflows.db.connections.engine import Database
from queue_workflows.db.connections.failures import classify_failure, drivers_own
from queue_workflows.errors import DatabaseUnreachable, SchemaError

if TYPE_CHECKING:
    from sqlalchemy import Connection

POOL_SIZE: Final = 5
_ADDRESSES: Final = ("QWF_DB_URL", "AI_LEADS_DB_URL", "QWF_DATA_DIR")


def opened_for() -> tuple[object, ...]:
    """What tells whether something that this process has open is still of its configured database."""
    config = current_config()
    names = (*_ADDRESSES, *filter(None, (config.db_url_env,)))
    given = config.overrides.get("db_url")
    asked = given() if callable(given) else None
    return (config, os.getpid(), asked, *map(os.environ.get, names))


class _Own:
    """The database that this process has open, and what it was opened for."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._database: Database | None = None
        self._opened_for: tuple[object, ...] = ()

    def database(self) -> Database:
        """The configured one."""
        wanted = opened_for()
        with self._guard:
            if self._database is None or self._opened_for != wanted:
                self._close()
                self._database, self._opened_for = Database.open(role="app", pool_size=POOL_SIZE), wanted
            return self._database

    def close(self) -> None:
        """Let go of it; the next caller opens another."""
        with self._guard:
            self._close()

    def _close(self) -> None:
        database, self._database = self._database, None
        if database is not None:
            database.close()


_own: Final = _Own()
close_own: Final = _own.close
atexit.register(close_own)
if hasattr(os, "register_at_fork"):
    # Another thread of the parent may have it at that moment.
    os.register_at_fork(after_in_child=lambda: setattr(_own, "_guard", threading.Lock()))


def connect(*, autocommit: bool = False) -> psycopg.Connection[Any]:
    """A psycopg connection to the configured database, the caller's to close.

    Where that is the embedded server, it is started, and held until the process ends.
    """
    connection = _own.database().connect(autocommit=autocommit)
    connection.is_callers = True
    return connection


async def aconnect(*, autocommit: bool = False) -> psycopg.AsyncConnection[Any]:
    """`connect`, for asyncio."""
    options = await asyncio.to_thread(lambda: _own.database().options())
    try:
        return await psycopg.AsyncConnection.connect(autocommit=autocommit, **options)
    except (psycopg.Error, OSError) as exc:
        raise classify_failure(exc, _own.database().params) from None


@contextmanager
def own_transaction() -> Iterator[Connection]:
    """A transaction on a connection of the pool, committed at the end; it joins nothing that is open."""
    database = _own.database()
    try:
        with database.engine.begin() as connection:
            yield connection
    except Exception as error:
        if isinstance(drivers_own(error), psycopg.Error):
            meaning = classify_failure(error, database.params)
            if isinstance(meaning, DatabaseUnreachable | SchemaError):
                raise meaning from error
        raise
