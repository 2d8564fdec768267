"""What no retry can mend, in words of ours: a transaction that has failed, a schema that is not there.

Every other error is the driver's own, and passes as it is.
"""

from __future__ import annotations

import sys
from typing import Final

from queue_workflows.db.connections.asking_connection import AskingConnection
from queue_workflows.errors import FailedTransaction, QwfError, SchemaError
from queue_workflows.repositories.sql.drivers.recognize import database_of
from queue_workflows.repositories.sql.drivers.refusals import kind_name

_FAILED: Final = "25P02"
# A table, a column, a function or a whole schema that is not there.
_MISSING: Final = frozenset({"42P01", "42703", "42883", "3F000"})
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
    if state not in _MISSING:
        return None
    database = database_of(handle)
    place = "this database" if database is None else f"the database {database!r}"
    first_line = str(_drivers_own(error)).splitlines()[0]
    return SchemaError(f"{place} has not what this needs: {first_line}", advice=_UPGRADE)


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
