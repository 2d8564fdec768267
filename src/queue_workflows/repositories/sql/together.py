"""Several reads as one statement: one way to the server and back, and one moment for all of them.

Each read becomes a column that is an array of its rows. In the binary format a row tells the types of its
columns, so values come back as if each read had been asked by itself. Meant for a few rows of each: they are
read by Python, and cost more than those of a statement of their own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import psycopg
from psycopg.rows import tuple_row

from queue_workflows.repositories.sql.connection import Handle, Params, Rows, Statements
from queue_workflows.repositories.sql.drivers.moments import read_all_moments


def read_together(handle: Handle, table: str, reads: Mapping[str, str], params: Params) -> dict[str, Rows]:
    """The rows of each read by its name; all take from the same parameters.

    On a Session or Connection of SQLAlchemy they are asked one after the other.
    """
    if not isinstance(handle, psycopg.Connection):
        statements = Statements(handle, table)
        return {name: statements.rows(sql, params) for name, sql in reads.items()}
    cursor: psycopg.Cursor[tuple[Any, ...]] = psycopg.Cursor(handle, row_factory=tuple_row)
    read_all_moments(cursor)
    # Planned for what is asked each time: most of these cost little or much by the run that they are about.
    row = cursor.execute(joined(reads).encode(), params, binary=True, prepare=False).fetchone()
    assert row is not None  # noqa: S101 - a SELECT without FROM has one row
    return dict(zip(reads, row, strict=True))


def joined(reads: Mapping[str, str]) -> str:
    """The statement, with a read a column, each as it stands."""
    columns = (f"ARRAY(SELECT part FROM ({sql}) AS part) AS {name}" for name, sql in reads.items())  # noqa: S608
    return "SELECT " + ",\n".join(columns)
