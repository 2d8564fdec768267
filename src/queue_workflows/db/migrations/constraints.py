"""CHECK constraints of tables that are in use: added and validated beside the writers, by revisions.

    mend what is there ──> add, NOT VALID ──> mend what came meanwhile ──> validate

Each step is a transaction of its own. To add one holds writers up for a moment and reads nothing; to validate
it reads the whole table and holds nobody up. An interrupted revision is begun anew, so each step may be done
twice.
"""

from __future__ import annotations

from collections.abc import Mapping

from alembic import op

from queue_workflows.db.migrations.indexes import beside_others, is_there


def add_checks(table: str, checks: Mapping[str, str], *, mend: str) -> None:
    """Checks of a table by their names, if there is such a table; `mend` makes rows that break them obey."""
    if not is_there(table):
        return
    with beside_others():
        op.execute(mend)
        for name, condition in checks.items():
            op.execute(f"ALTER TABLE {table} DROP CONSTRAINT IF EXISTS ck_{table}_{name}")
            op.execute(f"ALTER TABLE {table} ADD CONSTRAINT ck_{table}_{name} CHECK ({condition}) NOT VALID")
        op.execute(mend)
        for name in checks:
            op.execute(f"ALTER TABLE {table} VALIDATE CONSTRAINT ck_{table}_{name}")


def drop_checks(table: str, names: Mapping[str, str]) -> None:
    """Checks of a table, as far as they are there."""
    for name in names:
        op.execute(f"ALTER TABLE IF EXISTS {table} DROP CONSTRAINT IF EXISTS ck_{table}_{name}")
