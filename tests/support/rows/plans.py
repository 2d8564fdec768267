"""Plans of prepared statements, as their nodes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import psycopg


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """A plan's nodes, the outer ones first."""
    yield plan
    for inner in plan.get("Plans", ()):
        yield from nodes(inner)


def rows_read(plan: list[dict[str, Any]], *tables: str) -> int:
    """How many rows of these tables the plan has looked at."""
    return sum(
        round((node["Actual Rows"] + node.get("Rows Removed by Filter", 0)) * node["Actual Loops"])
        for node in plan
        if node.get("Relation Name") in tables and node["Node Type"] != "ModifyTable"
    )


def as_prepared(sql: str) -> tuple[str, list[str]]:
    """A statement as the driver sends it, and its parameters in their order."""
    order: dict[str, int] = {}
    for found in re.finditer(r"%\((\w+)\)[sb]", sql):
        order.setdefault(found[1], len(order) + 1)
    return re.sub(r"%\((\w+)\)[sb]", lambda found: f"${order[found[1]]}", sql).replace("%%", "%"), list(order)


def explain(
    connection: psycopg.Connection, mode: str, sql: str, params: dict[str, Any], off: tuple[str, ...] = ()
) -> list[dict[str, Any]]:
    """The plan of a prepared statement, run and undone, under a plan mode and without some kinds of nodes.

    EXPLAIN without EXECUTE would plan for the values.
    """
    prepared, order = as_prepared(sql)
    given = f"({', '.join(f'%({name})s' for name in order)})" if order else ""
    with connection.transaction(force_rollback=True):
        connection.execute(f"SET LOCAL plan_cache_mode = {mode}")
        for kind in off:
            connection.execute(f"SET LOCAL enable_{kind} = off")
        connection.execute(f"PREPARE explained AS {prepared}")
        cursor = psycopg.ClientCursor(connection)
        command = f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) EXECUTE explained {given}"
        ((found,),) = cursor.execute(command, params)
        connection.execute("DEALLOCATE explained")
    return list(nodes(found[0]["Plan"]))
