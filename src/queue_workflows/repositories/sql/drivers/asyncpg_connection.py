"""Statements on connections of asyncpg, or of one of its pools, in a flow that is awaited."""

from __future__ import annotations

from typing import Any

from queue_workflows.repositories.sql.drivers.handles import Answer, Asker, Params, answered
from queue_workflows.repositories.sql.drivers.placeholders import for_asyncpg
from queue_workflows.repositories.sql.drivers.refusals import check_flow, refusal


def on_asyncpg(connection: Any, _table: str) -> Asker:
    """On the connection itself, in whatever transaction it is in."""
    from queue_workflows.repositories.sql.drivers.flow import await_here

    _check_open(connection)

    def ask(sql: str, params: Params) -> Answer:
        check_flow(connection)
        _check_open(connection)
        text, values = for_asyncpg(sql, params)
        return answered(await_here(lambda: connection.fetch(text, *values)))

    return ask


def _check_open(connection: Any) -> None:
    # A pool's connection that was given back has nothing behind it any more.
    if getattr(connection, "_con", connection) is None or connection.is_closed():
        raise refusal(connection, "closed")
