"""CHECK constraints of tables that are in use: added and validated beside the writers, by revisions.

    mend what is there ──> add, NOT VALID ──> mend what came meanwhile ──> validate

Each step is a transaction of its own. To add one holds writers up for a moment and reads nothing; to validate
it reads the whole table and holds nobody up. An interrupted revision is begun anew, so each step may be done
twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from alembic import op

from queue_workflows.db.migrations.beside_writers.indexes import beside_others, is_there


def add_checks(table: str, checks: Mapping[str, str], *, mend: str) -> None:
    """Checks of a table by their names, if there is such a table; `mend` makes rows that break them obey."""
    if not is_there(table):
        return
    with beside_others():
        op.execute(mend)
        op.execute(_anew(table, checks))
        op.execute(mend)
        _validate(table, checks)


def reword_checks(table: str, checks: Mapping[str, str]) -> None:
    """Checks that say in other words what those with their names say now, if there is such a table."""
    if is_there(table):
        with beside_others():
            op.execute(_anew(table, checks))
            _validate(table, checks)


def drop_checks(table: str, names: Iterable[str]) -> None:
    """Checks of a table, as far as they are there."""
    with beside_others():
        gone = ", ".join(f"DROP CONSTRAINT IF EXISTS ck_{table}_{name}" for name in names)
        op.execute(f"ALTER TABLE IF EXISTS {table} {gone}")


def _anew(table: str, checks: Mapping[str, str]) -> str:
    """Of each new row from now on, in the place of what is there."""
    changes = ", ".join(
        f"DROP CONSTRAINT IF EXISTS ck_{table}_{name},"
        f" ADD CONSTRAINT ck_{table}_{name} CHECK ({condition}) NOT VALID"
        for name, condition in checks.items()
    )
    return f"ALTER TABLE {table} {changes}"


def _validate(table: str, names: Iterable[str]) -> None:
    # By one statement, which reads the table once.
    each = ", ".join(f"VALIDATE CONSTRAINT ck_{table}_{name}" for name in names)
    op.execute(f"ALTER TABLE {table} {each}")
