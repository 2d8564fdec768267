"""Rows that no application would write, and each may: a bad value at a time, for every column of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import psycopg

# What a value of a type can be at its worst, as SQL.
_TEXTS = (
    "''",
    "'*'",
    "'a*'",
    "' a '",
    r"E'a\nb'",
    "chr(1)",
    "chr(8203)",
    "'elsewhere:'",
    "'elsewhere:elsewhere:x'",
    "'../../etc/passwd'",
    "'os.system'",
    "'%s{}\"\\'",
    "repeat('x', 60000)",
    "repeat('x', 2000000)",
)
_MANY = "1e131071," * 9
_DEEP = "repeat('[', 5000) || repeat(']', 5000)"
VALUES: Mapping[str, Sequence[str]] = {
    "text": _TEXTS,
    "jsonb": (
        "'null'",
        "'[]'",
        "'\"x\"'",
        "'1'",
        "'{\"x\": 1e5000}'",
        f"'{{\"x\": [{_MANY}1]}}'",
        f"('{{\"x\": ' || {_DEEP} || '}}')::jsonb",
        "jsonb_build_object('x', repeat('x', 2000000))",
    ),
    "double precision": ("'NaN'", "'Infinity'", "'-Infinity'", "-1", "0", "1e308", "1e-308"),
    "smallint": ("-32768", "-1", "0", "32767"),
    "integer": ("-2147483648", "-1", "0", "2147483647"),
    "bigint": ("-9223372036854775808", "-1", "0", "9223372036854775807"),
    "timestamp with time zone": (
        "'infinity'",
        "'-infinity'",
        "'294276-12-31 00:00+00'",
        "'4713-01-01 00:00+00 BC'",
        "'0001-01-01 00:00+00'",
    ),
    "uuid": ("'00000000-0000-0000-0000-000000000000'", "'ffffffff-ffff-ffff-ffff-ffffffffffff'"),
    "boolean": ("true", "false"),
}
COLUMNS = """
SELECT column_name, data_type FROM information_schema.columns
WHERE table_schema = 'public' AND table_name = %s AND is_identity = 'NO'
    AND has_column_privilege(%s, table_name, column_name, 'INSERT')
ORDER BY ordinal_position
"""


@dataclass(frozen=True)
class HostileRow:
    """A row, the one column of it that is bad, and what the server said if it refused it."""

    column: str
    value: str
    key: object
    refused: str | None


def columns_of(admin: psycopg.Connection, role: str, table: str) -> list[tuple[str, str]]:
    """The columns that a role may insert, with their types."""
    return admin.execute(COLUMNS, [table, role]).fetchall()


def insert_hostile(
    writer: psycopg.Connection,
    table: str,
    columns: Sequence[tuple[str, str]],
    base: Mapping[str, str],
    beside: Mapping[str, Sequence[Mapping[str, str]]] | None = None,
    *,
    key: str = "id",
    values: Mapping[str, Sequence[str]] = VALUES,
) -> list[HostileRow]:
    """A row for each bad value of each column; `base` is the SQL of a good row; `beside`, of more of it."""
    return [
        _inserted(writer, table, column, value, {**base, **more, column: value}, key)
        for column, kind in columns
        for value in values[kind]
        for more in (beside or {}).get(column, [{}])
    ]


def _inserted(  # noqa: PLR0917
    writer: psycopg.Connection, table: str, column: str, value: str, words: Mapping[str, str], key: str
) -> HostileRow:
    sql = f"INSERT INTO {table} ({', '.join(words)}) VALUES ({', '.join(words.values())}) RETURNING {key}"
    try:
        ((found,),) = writer.execute(sql).fetchall()
    except psycopg.Error as refused:
        return HostileRow(column, value, None, str(refused))
    return HostileRow(column, value, found, None)
