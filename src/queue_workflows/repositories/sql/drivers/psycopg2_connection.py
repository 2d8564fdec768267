"""Statements on connections of psycopg2, on cursors of its plain kind."""

from __future__ import annotations

import sys
import uuid
from typing import Any, Final

from queue_workflows.repositories.sql.drivers.handles import Answer, Asker, Params, answered
from queue_workflows.repositories.sql.drivers.placeholders import for_psycopg2
from queue_workflows.repositories.sql.drivers.refusals import refusal

_UUID_OID: Final = 2950


def on_psycopg2(connection: Any, _table: str) -> Asker:
    """On the connection, whatever cursors its owner makes."""
    _check_open(connection)

    def ask(sql: str, params: Params) -> Answer:
        _check_open(connection)
        extensions = sys.modules["psycopg2.extensions"]
        with connection.cursor(cursor_factory=extensions.cursor) as cursor:
            extensions.register_type(extensions.new_type((_UUID_OID,), "QWF_UUID", _read_uuid), cursor)
            cursor.execute(*for_psycopg2(sql, params))
            return answered(cursor.fetchall())

    return ask


def _read_uuid(text: str | None, _cursor: Any) -> uuid.UUID | None:
    return None if text is None else uuid.UUID(text)


def _check_open(connection: Any) -> None:
    if connection.closed:
        raise refusal(connection, "closed")
