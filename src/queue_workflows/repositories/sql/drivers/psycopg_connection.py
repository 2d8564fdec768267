"""Statements on connections of psycopg 3, on cursors of our own: the caller's factories do not matter."""

from __future__ import annotations

from typing import Any

import psycopg
from psycopg.rows import tuple_row

from queue_workflows.repositories.sql.drivers.handles import Answer, Asker, Params, Rows, answered
from queue_workflows.repositories.sql.drivers.moments import read_all_moments
from queue_workflows.repositories.sql.drivers.refusals import check_flow, refusal


def on_psycopg(connection: psycopg.Connection[Any], _table: str) -> Asker:
    """On a synchronous connection, where a statement may be on its way in a pipeline."""
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


def on_async_psycopg(connection: psycopg.AsyncConnection[Any], _table: str) -> Asker:
    """On an asynchronous connection, in a flow that is awaited."""
    from queue_workflows.repositories.sql.drivers.flow import await_here

    _check_open(connection)

    async def fetch(sql: str, params: Params) -> Rows:
        cursor = psycopg.AsyncCursor(connection, row_factory=tuple_row)
        read_all_moments(cursor)
        await cursor.execute(sql.encode(), params)
        return await cursor.fetchall()

    def ask(sql: str, params: Params) -> Answer:
        check_flow(connection)
        _check_open(connection)
        return answered(await_here(lambda: fetch(sql, params)))

    return ask


def _cursor(connection: psycopg.Connection[Any]) -> psycopg.Cursor[tuple[Any, ...]]:
    cursor = psycopg.Cursor(connection, row_factory=tuple_row)
    read_all_moments(cursor)
    return cursor


def _check_open(connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> None:
    if connection.closed:
        raise refusal(connection, "closed")
