"""Statements on SQLAlchemy's Sessions and Connections, as driver SQL: its events and its log see them.

An asynchronous one is asked through the synchronous one that it is made of, within its own `run_sync`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from queue_workflows.errors import ConfigurationError
from queue_workflows.repositories.sql.drivers.handles import Answer, Asker, Params, answered
from queue_workflows.repositories.sql.drivers.placeholders import for_asyncpg, for_psycopg2
from queue_workflows.repositories.sql.drivers.refusals import check_flow, refusal

if TYPE_CHECKING:
    from sqlalchemy import Connection, Dialect
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session
    from sqlalchemy.orm import Session, scoped_session

# psycopg_async is the same driver below an AsyncSession.
_AS_WRITTEN: Final[Callable[[str, Params], tuple[str, Any]]] = lambda sql, params: (sql, dict(params))  # noqa: E731
_DRIVERS: Final = {
    "psycopg": _AS_WRITTEN,
    "psycopg_async": _AS_WRITTEN,
    "psycopg2": for_psycopg2,
    "asyncpg": for_asyncpg,
}
# A caller may stream: a server-side cursor takes no INSERT.
_AT_ONCE: Final = {"stream_results": False, "yield_per": None}


def on_session(session: Session, table: str) -> Asker:
    """On the Session's connection for our tables; asked for each time, as it lasts one transaction.

    What the Session has pending goes first, as before its own queries: the row may be what a job refers to.
    """
    from sqlalchemy.exc import UnboundExecutionError

    from queue_workflows.models.tables import model_of

    _check_reopens(session)
    model = model_of(table)
    try:
        bind = session.get_bind(mapper=model)
    except UnboundExecutionError as unbound:
        raise ConfigurationError(
            "this Session has no database for the engine's tables",
            advice="bind it to an engine, or add queue_workflows.models.Base to its binds",
        ) from unbound
    written = _written_for(session, bind.dialect)

    def ask(sql: str, params: Params) -> Answer:
        _check_reopens(session)
        if session.autoflush and not session._flushing:
            session.flush()
        connection = session.connection(bind_arguments={"mapper": model})
        return answered(connection.exec_driver_sql(*written(sql, params), execution_options=_AT_ONCE).all())

    return ask


def on_scoped_session(sessions: scoped_session[Any], table: str) -> Asker:
    """On the Session that is this thread's now."""
    return on_session(sessions(), table)


def on_connection(connection: Connection, _table: str) -> Asker:
    """On a Connection, which begins its transaction by itself."""
    written = _written_for(connection, connection.dialect)
    _check_open(connection)

    def ask(sql: str, params: Params) -> Answer:
        _check_open(connection)
        return answered(connection.exec_driver_sql(*written(sql, params), execution_options=_AT_ONCE).all())

    return ask


def on_async_session(session: AsyncSession, table: str) -> Asker:
    """On the Session that it is made of."""
    return _in_flow(session, on_session(session.sync_session, table))


def on_async_scoped_session(sessions: async_scoped_session[Any], table: str) -> Asker:
    """On the AsyncSession that is this task's now."""
    return on_async_session(sessions(), table)


def on_async_connection(connection: AsyncConnection, table: str) -> Asker:
    """On the Connection that it is made of; one that was never started has none."""
    if connection.sync_connection is None or connection.closed:
        raise refusal(connection, "closed")
    return _in_flow(connection, on_connection(connection.sync_connection, table))


async def run_sync(handle: Any, flow: Callable[[], Any]) -> Any:
    """The flow, awaited as SQLAlchemy awaits its own."""
    from queue_workflows.repositories.sql.drivers.flow import within_flow

    usable = handle if hasattr(handle, "run_sync") else handle()
    return await usable.run_sync(lambda _: within_flow(flow))


def _in_flow(handle: object, ask: Asker) -> Asker:
    def ask_in_flow(sql: str, params: Params) -> Answer:
        check_flow(handle)
        return ask(sql, params)

    return ask_in_flow


def _written_for(handle: object, dialect: Dialect) -> Callable[[str, Params], tuple[str, Any]]:
    written = _DRIVERS.get(dialect.driver) if dialect.name == "postgresql" else None
    if written is None:
        raise refusal(handle, f"on {dialect.name}+{dialect.driver}")
    return written


def _check_reopens(session: Session) -> None:
    # One that was made with `close_resets_only=False` does not begin anew.
    if getattr(getattr(session, "_close_state", None), "name", None) == "CLOSED":
        raise refusal(session, "closed")


def _check_open(connection: Connection) -> None:
    if connection.closed:
        raise refusal(connection, "closed")
