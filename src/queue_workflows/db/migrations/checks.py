"""CHECK constraints of tables that are in use: added at once for new rows, and held to the old ones beside
the writers.

To validate a constraint reads the whole table, which keeps nobody waiting; to add one that is not validated
takes a moment. As for indexes, a revision that is interrupted in between is begun anew.
"""

from __future__ import annotations

from collections.abc import Mapping

from alembic import op

from queue_workflows.db.migrations.indexes import beside_others, is_there


def add_checks(table: str, checks: Mapping[str, str]) -> None:
    """Constraints of a table, if there is such a table, by their names as models have them."""
    if not is_there(table):
        return
    for name, condition in checks.items():
        drop_check(table, name)
        op.execute(f"ALTER TABLE {table} ADD CONSTRAINT ck_{table}_{name} CHECK ({condition}) NOT VALID")
    with beside_others():
        for name in checks:
            op.execute(f"ALTER TABLE {table} VALIDATE CONSTRAINT ck_{table}_{name}")


def drop_check(table: str, name: str) -> None:
    """A constraint, if there is one."""
    op.execute(f"ALTER TABLE IF EXISTS {table} DROP CONSTRAINT IF EXISTS ck_{table}_{name}")
