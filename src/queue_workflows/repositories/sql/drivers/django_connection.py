"""Statements on Django's connections, through its cursors: its log, its wrappers and `atomic` see them."""

from __future__ import annotations

from typing import Any

import psycopg

from queue_workflows.errors import FailedTransaction
from queue_workflows.repositories.sql.drivers.handles import Answer, Asker, Params, answered
from queue_workflows.repositories.sql.drivers.moments import read_all_moments
from queue_workflows.repositories.sql.drivers.placeholders import for_psycopg2
from queue_workflows.repositories.sql.drivers.refusals import kind_name, refusal


def on_django(connection: Any, _table: str) -> Asker:
    """On `django.db.connection` or one of `connections`; Django connects when it is first asked."""
    if connection.vendor != "postgresql":
        raise refusal(connection, f"on {connection.vendor}")

    def ask(sql: str, params: Params) -> Answer:
        if connection.needs_rollback:
            raise FailedTransaction(kind_name(connection))
        with connection.cursor() as cursor:
            driver_cursor = cursor.cursor
            if isinstance(driver_cursor, psycopg.Cursor):
                read_all_moments(driver_cursor)
            # On either psycopg Django puts the values into the text by itself, unless it is told not to.
            cursor.execute(*for_psycopg2(sql, params))
            return answered(cursor.fetchall())

    return ask


def on_django_proxy(proxy: Any, table: str) -> Asker:
    """On what `django.db.connection` stands for in this thread."""
    return on_django(proxy._connections[proxy._alias], table)
