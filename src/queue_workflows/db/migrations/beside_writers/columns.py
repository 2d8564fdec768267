"""Columns of tables that are in use: all of a table's in one statement, which is a transaction of its own.

Such a statement reads and writes no row. But it waits for transactions that write to the table, and holds up
those behind it; so a revision that changes several tables must not hold one of them while it waits for the
next. Interrupted in between, it is begun anew.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from alembic import op

from queue_workflows.db.migrations.beside_writers import history
from queue_workflows.db.migrations.beside_writers.indexes import beside_others


def add_columns(table: str, columns: Mapping[str, str]) -> None:
    """Columns by their names, as far as they are not there; with a constant default or none."""
    _alter(table, (f"ADD COLUMN IF NOT EXISTS {name} {kind}" for name, kind in columns.items()), drops=False)


def drop_columns(table: str, names: Iterable[str]) -> None:
    """Columns of a table, as far as they are there."""
    _alter(table, (f"DROP COLUMN IF EXISTS {name}" for name in names), drops=True)


def _alter(table: str, actions: Iterable[str], *, drops: bool) -> None:
    changed = ", ".join(actions)
    with beside_others():
        if table == history.TABLE:
            op.execute(history.alter_both(changed, hides=drops))
        else:
            op.execute(f"ALTER TABLE IF EXISTS {table} {changed}")
