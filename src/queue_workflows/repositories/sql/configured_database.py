"""Whether a caller's connection is to the database that this process is configured for.

A job in another one is seen by no worker of this application. What the client says of its connection is
compared, which costs nothing; only where the names differ are both servers asked for their own, for behind a
proxy a database may go by another name. Nothing is compared where no database is configured.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, closing, nullcontext
from typing import Any, Final

from queue_workflows.config import EngineConfig, current_config, resolve_dsn
from queue_workflows.db.connections.dsn import parse_dsn
from queue_workflows.errors import OtherDatabase, QwfError
from queue_workflows.repositories.sql.connection import Handle, Statements
from queue_workflows.repositories.sql.drivers.databases import is_made_by_django
from queue_workflows.repositories.sql.drivers.recognize import database_of
from queue_workflows.repositories.sql.drivers.refusals import kind_name

REAL_NAME: Final = "SELECT current_database()::text"


class _Known:
    """The names that will do, until the next `configure()`; None where any will."""

    def __init__(self) -> None:
        self.config: EngineConfig | None = None
        self.names: frozenset[str] | None = None


_known: Final = _Known()
_of_tests: Final[set[str]] = set()


def check_database(conn: Any, table: str) -> None:
    """Refuse a connection to another database, by its name, before anything is written."""
    if _known.config is not current_config():
        _known.names, _known.config = _configured(), current_config()
    if _known.names is None:
        return
    name = database_of(conn)
    if name is None or name in _known.names or name in _of_tests:
        return
    # The environment may have changed since.
    names = _configured()
    if names is not None and name not in names:
        if is_made_by_django(conn, name, names):
            return
        ((real,),) = Statements(conn, table).rows(REAL_NAME, {})
        if real not in names and real != _own_name():
            raise OtherDatabase(kind_name(conn), name, sorted(names))
        names |= {name}
    _known.names = names


def transaction_of(conn: Handle | None) -> AbstractContextManager[Handle]:
    """The caller's connection, in the transaction that it is in; without one a transaction of our own."""
    if conn is not None:
        return nullcontext(conn)
    # Only here: most callers, a worker among them, bring one.
    from queue_workflows.db.connections.own import own_transaction

    return own_transaction()


def checked_transaction_of(conn: Handle | None, table: str) -> AbstractContextManager[Handle]:
    """`transaction_of`, for a connection that is to the configured database."""
    if conn is not None:
        check_database(conn, table)
    return transaction_of(conn)


def allow_database(name: str) -> None:
    """Let verbs work on this database too, whatever is configured: tests make their own."""
    _of_tests.add(name)


def _configured() -> frozenset[str] | None:
    choice = resolve_dsn()
    given = [parse_dsn(dsn) for dsn in (choice.dsn, choice.direct_dsn) if dsn is not None]
    # Without a name it is the user's, or what the environment says: libpq knows.
    names = [params.get("dbname") for params in given]
    return None if not names or None in names else frozenset(name for name in names if name is not None)


def _own_name() -> str | None:
    """What the server calls the configured database; None where it does not answer."""
    from queue_workflows.db.connections.own import connect

    try:
        with closing(connect(autocommit=True)) as connection:
            row = connection.execute(REAL_NAME).fetchone()
    except QwfError:
        return None
    return None if row is None else str(row[0])
