"""Statements on whatever connection the caller brought, inside the caller's transaction.

A SQLAlchemy Session or Connection runs them as driver SQL, so that its autobegin, events and logging see
them; a psycopg connection on a cursor of our own, so that its row and cursor factories do not matter.
Nothing here begins, commits, rolls back or sets a savepoint, and the driver's errors pass as they are: the
caller's retry logic must see a unique violation, a serialization failure or a lock timeout for what it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import psycopg
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row

from queue_workflows.errors import ConfigurationError
from queue_workflows.repositories.sql.moments import read_all_moments
from queue_workflows.repositories.sql.pipeline import OneCommit
from queue_workflows.repositories.sql.prepared import IDLE, NO_PIPELINE, is_at_rest

if TYPE_CHECKING:
    from sqlalchemy import Connection, Dialect
    from sqlalchemy.orm import Session, scoped_session

Handle: TypeAlias = "Session | scoped_session[Any] | Connection | psycopg.Connection[Any]"
Params: TypeAlias = Mapping[str, Any]
Rows: TypeAlias = Sequence[Sequence[Any]]

# psycopg_async is the same driver below an AsyncSession's `run_sync`.
_DRIVERS: Final = ("psycopg", "psycopg_async")
_WANTED: Final = (
    "a SQLAlchemy Session or Connection on postgresql+psycopg, or a psycopg 3 connection; it must be open"
)
_ASYNC: Final = "use `await session.run_sync(…)` and hand on the Session or Connection that it gives"
_BEGUN: Final = TransactionStatus.INTRANS
# A caller may stream: a server-side cursor takes no INSERT.
_AT_ONCE: Final = {"stream_results": False, "yield_per": None}


class Answer(NamedTuple):
    """What a statement brought: its rows, for a caller that wants them, and how many they are."""

    rows: Callable[[], Rows]
    number: Callable[[], int]

    def __call__(self) -> Rows:
        return self.rows()


Asker: TypeAlias = Callable[[str, Params], Answer]


class Statements:
    """Runs statements for one repository; its `table` finds the database where a Session has several."""

    def __init__(self, handle: Handle, table: str) -> None:
        self._handle = handle
        self._ask = _asker(handle, table)
        self._sent: dict[str, tuple[psycopg.Cursor[Any], bytes]] = {}
        self._one_commit = OneCommit(handle) if isinstance(handle, psycopg.Connection) else None

    @property
    def commits_each(self) -> bool:
        """Whether each statement is a transaction of its own, which it may then set as it likes.

        In a pipeline it is not: what is sent between two syncs is one transaction.
        """
        handle = self._handle
        return isinstance(handle, psycopg.Connection) and handle.autocommit and is_at_rest(handle)

    def rows(self, sql: str, params: Params) -> Rows:
        """All rows of one statement in psycopg's `%(name)s` style; one that writes says what by RETURNING.

        Fetching is what makes it real: on a psycopg pipeline an unfetched statement fails later, elsewhere.
        """
        return self._ask(sql, params)()

    def ask(self, sql: str, params: Params) -> Answer:
        """What gives the rows; in a psycopg pipeline the statement is on its way until that is called.

        Elsewhere it has been answered, and its rows are read when they are called for, whatever is asked
        meanwhile.
        """
        return self._ask(sql, params)

    def ask_in_one_commit(
        self, first: tuple[str, Params], second: tuple[str, Params]
    ) -> tuple[Answer, Answer] | None:
        """Two statements that are a transaction, the second of which sees what was committed by then.

        Done and not read; None, and nothing done, where only a caller's transaction could make them one.
        """
        if self._one_commit is None or (got := self._one_commit.ask(first, second)) is None:
            return None
        one, other = got
        return Answer(one.rows, one.number), Answer(other.rows, other.number)

    def flowing(self) -> AbstractContextManager[object]:
        """Where what is asked is on its way until its answer is called for, if the caller's connection can.

        Not in autocommit, where a pipeline would make one transaction of its statements.
        """
        handle = self._handle
        if not isinstance(handle, psycopg.Connection) or handle.pgconn.pipeline_status != NO_PIPELINE:
            return nullcontext()
        status = handle.pgconn.transaction_status
        is_begun = status == _BEGUN or (status == IDLE and not handle.autocommit)
        return handle.pipeline() if is_begun and psycopg.Pipeline.is_supported() else nullcontext()

    def send(self, sql: str, params: Params) -> None:
        """Send a statement of which nobody wants the rows. In a psycopg pipeline nobody waits for it either:
        what goes wrong comes out with a later answer, or when the pipeline ends."""
        if isinstance(self._handle, psycopg.Connection):
            # Never one that `ask` uses: there this statement's rows would be taken for the next one's.
            cursor, query = self._sent.get(sql) or (psycopg.Cursor(self._handle), sql.encode())
            self._sent[sql] = cursor.execute(query, params), query
        else:
            self._ask(sql, params)


def _asker(handle: object, table: str) -> Asker:
    if isinstance(handle, psycopg.Connection):
        return _on_psycopg(handle)
    # Only here: a process that brings connections of psycopg's alone runs without SQLAlchemy.
    from sqlalchemy import Connection
    from sqlalchemy.orm import Session, scoped_session

    if isinstance(handle, scoped_session):
        handle = handle()
    if isinstance(handle, Session):
        return _on_session(handle, table)
    if isinstance(handle, Connection):
        return _on_connection(handle)
    raise _refusal(handle)


def _on_session(session: Session, table: str) -> Asker:
    """On the Session's connection for our tables; asked for each time, as it lasts one transaction.

    What the Session has pending goes first, as before its own queries: the row may be what a job refers to.
    """
    from sqlalchemy.exc import UnboundExecutionError

    from queue_workflows.models.tables import model_of

    model = model_of(table)
    try:
        bind = session.get_bind(mapper=model)
    except UnboundExecutionError as unbound:
        raise ConfigurationError(
            "this Session has no database for the engine's tables",
            advice="bind it to an engine, or add queue_workflows.models.Base to its binds",
        ) from unbound
    _check_driver(session, bind.dialect)

    def ask(sql: str, params: Params) -> Answer:
        if session.autoflush and not session._flushing:
            session.flush()
        connection = session.connection(bind_arguments={"mapper": model})
        rows = connection.exec_driver_sql(sql, dict(params), execution_options=_AT_ONCE).all()
        return Answer(lambda: rows, lambda: len(rows))

    return ask


def _on_connection(connection: Connection) -> Asker:
    _check_driver(connection, connection.dialect)
    _check_open(connection)

    def ask(sql: str, params: Params) -> Answer:
        _check_open(connection)
        rows = connection.exec_driver_sql(sql, dict(params), execution_options=_AT_ONCE).all()
        return Answer(lambda: rows, lambda: len(rows))

    return ask


def _on_psycopg(connection: psycopg.Connection[Any]) -> Asker:
    _check_open(connection)
    kept: dict[str, tuple[psycopg.Cursor[tuple[Any, ...]], bytes]] = {}

    def ask(sql: str, params: Params) -> Answer:
        _check_open(connection)
        # A cursor that is given the very same bytes again knows the types of parameters and columns already:
        # half of what a statement costs here. It is taken out while in use, so no two threads share one.
        found = kept.pop(sql, None)
        cursor, query = found or (_cursor(connection), sql.encode())
        cursor.execute(query, params)

        def rows() -> Rows:
            found = cursor.fetchall()
            kept[sql] = cursor, query
            return found

        return Answer(rows, lambda: cursor.rowcount)

    return ask


def _cursor(connection: psycopg.Connection[Any]) -> psycopg.Cursor[tuple[Any, ...]]:
    cursor = psycopg.Cursor(connection, row_factory=tuple_row)
    read_all_moments(cursor)
    return cursor


def _check_driver(handle: object, dialect: Dialect) -> None:
    if dialect.name != "postgresql" or dialect.driver not in _DRIVERS:
        raise _refusal(handle, f" on {dialect.name}+{dialect.driver}")


def _check_open(handle: Connection | psycopg.Connection[Any]) -> None:
    if handle.closed:
        raise _refusal(handle, ", closed")


def _refusal(handle: object, state: str = "") -> ConfigurationError:
    kind = type(handle)
    return ConfigurationError(
        f"conn is a {kind.__module__}.{kind.__qualname__}{state}; wanted is {_WANTED}",
        advice=_ASYNC if kind.__module__.startswith("sqlalchemy.ext.asyncio") else None,
    )
