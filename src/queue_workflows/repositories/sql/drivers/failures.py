"""What no retry can mend, in words of ours: a failed transaction, a schema that is not there, a proxy that
keeps no sessions below a connection that counts on them.

Every other error is the driver's own, and passes as it is.
"""

from __future__ import annotations

import sys
from typing import Final

from queue_workflows.db.connections.asking_connection import AskingConnection
from queue_workflows.errors import FailedTransaction, QwfError, SchemaError, SessionsNotKept
from queue_workflows.repositories.sql.drivers.recognize import database_of
from queue_workflows.repositories.sql.drivers.refusals import kind_name

_FAILED: Final = "25P02"
# A table, a column, a function or a whole schema that is not there.
_MISSING: Final = frozenset({"42P01", "42703", "42883", "3F000"})
# The server does not know what was prepared, or knows it already; and where it knows another statement by
# that name, what it is given does not fit.
_ANOTHER_SESSION: Final = frozenset({"26000", "42P05"})
_DOES_NOT_FIT: Final = "08P01"
_PREPARE_NOTHING: Final = (
    "have this connection prepare nothing: psycopg.connect(…, prepare_threshold=None), for an engine"
    " create_engine(…, connect_args={'prepare_threshold': None})"
)
_PREPARE_NOTHING_ASYNCPG: Final = "have it prepare nothing: asyncpg.connect(…, statement_cache_size=0)"
# SQLAlchemy keeps statements of its own beside those that asyncpg keeps, and gives them names.
_PREPARE_NOTHING_ASYNCPG_ENGINE: Final = (
    "have it prepare nothing: create_async_engine(…, connect_args={'statement_cache_size': 0,"
    " 'prepared_statement_cache_size': 0, 'prepared_statement_name_func': str})"
)
_UPGRADE: Final = "run `qwf db upgrade` on it, then `qwf db check`, which names what is missing"


def explained(error: Exception, handle: object) -> QwfError | None:
    """Our error in place of a driver's; None where its own says more to the caller.

    On connections of the engine's own its processes know the driver's errors, and live with some of them.
    """
    if isinstance(handle, AskingConnection) and not handle.is_callers:
        return None
    state = _sqlstate(error)
    if state == _FAILED or _is_left_to_roll_back(error):
        return FailedTransaction(kind_name(handle))
    if _is_of_another_session(state, error):
        return _sessions_not_kept(error)
    if state not in _MISSING:
        return None
    database = database_of(handle)
    place = "this database" if database is None else f"the database {database!r}"
    return SchemaError(f"{place} has not what this needs: {_first_line(error)}", advice=_UPGRADE)


def _is_of_another_session(state: str | None, error: Exception) -> bool:
    return state in _ANOTHER_SESSION or (state == _DOES_NOT_FIT and "prepared statement" in str(error))


def _sessions_not_kept(error: Exception) -> SessionsNotKept:
    module = type(_drivers_own(error)).__module__
    advice = _PREPARE_NOTHING
    if module.startswith("sqlalchemy.dialects.postgresql.asyncpg"):
        advice = _PREPARE_NOTHING_ASYNCPG_ENGINE
    elif module.startswith("asyncpg"):
        advice = _PREPARE_NOTHING_ASYNCPG
    return SessionsNotKept(
        "a pooling proxy gave this connection another session than the one that its statements were prepared"
        f" in: {_first_line(error)}",
        advice=advice,
    )


def _first_line(error: Exception) -> str:
    return str(_drivers_own(error)).splitlines()[0]


def _is_left_to_roll_back(error: Exception) -> bool:
    """Whether SQLAlchemy sends nothing in a transaction that it gave up, as after a flush that failed."""
    kind = getattr(sys.modules.get("sqlalchemy.exc"), "PendingRollbackError", ())
    return isinstance(error, kind)


def _sqlstate(error: Exception) -> str | None:
    """As psycopg and asyncpg say it, or psycopg2."""
    own = _drivers_own(error)
    state = getattr(own, "sqlstate", None) or getattr(own, "pgcode", None)
    return state if isinstance(state, str) else None


def _drivers_own(error: Exception) -> BaseException:
    """The driver's exception where SQLAlchemy or Django has wrapped it."""
    own: BaseException | None = getattr(error, "orig", None)
    if own is None and type(error).__module__.startswith("django."):
        own = error.__cause__
    return own or error
