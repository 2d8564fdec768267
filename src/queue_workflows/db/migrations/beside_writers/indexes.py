"""Indexes of tables that are in use: built, replaced and dropped beside the writers, by revisions.

CREATE INDEX CONCURRENTLY is no part of a transaction. A revision that is interrupted between two such steps
has not happened, and is begun anew by the next upgrade: first of all what it left is dropped.
So what such a revision does besides comes after the last of them, or may be done twice.

While it is built, an index waits for transactions that are older than it, and nobody waits for it. Our own
second connection and the migrations that queue up behind this one are in no transaction while they wait.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import sqlalchemy as sa
from alembic import op

EXISTS: Final = sa.text("SELECT to_regclass(quote_ident(:name)) IS NOT NULL")


def build_index(name: str, table: str, what: str) -> None:
    """An index of a table, if there is such a table; `what` are its columns and its predicate."""
    if not is_there(table):
        return
    with beside_others() as how:
        op.execute(f"DROP INDEX {how} IF EXISTS {name}")
        op.execute(f"CREATE INDEX {how} {name} ON {table} {what}")


def replace_index(name: str, table: str, what: str) -> None:
    """An index in the place of one with that name, which serves until the new one does."""
    if not is_there(table):
        return
    before, after = f"{name}_before", f"{name}_after"
    with beside_others() as how:
        op.execute(f"DROP INDEX {how} IF EXISTS {before}")
        op.execute(f"DROP INDEX {how} IF EXISTS {after}")
        op.execute(f"CREATE INDEX {how} {after} ON {table} {what}")
    op.execute(f"ALTER INDEX IF EXISTS {name} RENAME TO {before}")
    op.execute(f"ALTER INDEX {after} RENAME TO {name}")
    drop_index(before)


def drop_index(name: str) -> None:
    """An index, if there is one."""
    with beside_others() as how:
        op.execute(f"DROP INDEX {how} IF EXISTS {name}")


@contextmanager
def beside_others() -> Iterator[str]:
    """Outside of the revision's transaction, which is committed; in a scratch schema there is nobody."""
    connection = _connection()
    if connection is not None and connection.in_nested_transaction():
        yield ""
        return
    with op.get_context().autocommit_block():
        yield "CONCURRENTLY"


def is_there(table: str) -> bool:
    """A schema may have lost tables, and downgrades are the way out of it; a script cannot look."""
    connection = _connection()
    return connection is None or bool(connection.execute(EXISTS, {"name": table}).scalar_one())


def _connection() -> sa.Connection | None:
    """None where a script is written."""
    context = op.get_context()
    return None if context.as_sql else context.connection
