"""How far a database has come along a chain, and whether that can be believed."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Final, Literal

import psycopg
import sqlalchemy as sa
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory

from queue_workflows.config import ENGINE_VERSION_TABLE
from queue_workflows.db.migrations.chain.chains import Chain
from queue_workflows.db.migrations.chain.revisions import heads, known, load_script, newest
from queue_workflows.db.migrations.chain.tables import first_tables, tables_at
from queue_workflows.db.migrations.session import Target, connection_to
from queue_workflows.errors import AccessRefused, MigrationRefused

# unrecorded: the tables are there, and the version table says nothing. contradictory: it names several places
# on one line. damaged: tables are gone that its revision made.
Status = Literal["empty", "behind", "current", "ahead", "hand-made", "unrecorded", "contradictory", "damaged"]

# A ledger of the older SQL chain has the same name as ours and other columns.
VERSION_TABLE_COLUMNS: Final = sa.text("""
    SELECT a.attname FROM pg_attribute a
    WHERE a.attrelid = to_regclass(quote_ident(:table)) AND a.attnum > 0 AND NOT a.attisdropped
""")
LEDGER_VERSION: Final = sa.text(f"SELECT max(version) FROM {ENGINE_VERSION_TABLE}")  # noqa: S608
# By the statement's snapshot, unlike to_regclass: in a long transaction it agrees with the version table.
FOUND_TABLES: Final = sa.text("""
    SELECT DISTINCT c.relname::text FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE n.nspname = ANY (current_schemas(false)) AND c.relname = ANY (CAST(:tables AS text[]))
""")


@dataclass(frozen=True)
class ChainState:
    """One chain in one database; `missing` are tables that its revision made and that are gone."""

    chain: str
    current: tuple[str, ...]
    head: str
    status: Status
    missing: tuple[str, ...] = ()

    @property
    def shown(self) -> str | None:
        """The current revision for a person; None when there is none."""
        text = ", ".join(self.current)
        if self.status == "hand-made":
            return f"version {text or 'none'} of a hand-made ledger"
        return text or None


def read_state(connection: sa.Connection, chain: Chain, script: ScriptDirectory | None = None) -> ChainState:
    """Read where a chain stands; leaves no transaction open, and one of the caller's as it was."""
    script = script or load_script(chain)
    try:
        with _looking(connection):
            return _read(connection, chain, script)
    except sa.exc.ProgrammingError as error:
        if isinstance(error.orig, psycopg.errors.InsufficientPrivilege):
            raise AccessRefused(
                f"this role may not read {chain.version_table}",
                advice=f"GRANT SELECT ON {chain.version_table} to it",
            ) from error
        raise


def current(target: Target = None, *, chains: Iterable[Chain]) -> list[ChainState]:
    """Where the database stands on each chain."""
    with connection_to(target, inside_transaction=True) as connection:
        return [read_state(connection, chain) for chain in chains]


@contextmanager
def _looking(connection: sa.Connection) -> Iterator[None]:
    """Leave no lock and no failed statement behind; what ends the look early is told, and nothing instead."""
    inside = connection.begin_nested() if connection.in_transaction() else connection
    try:
        yield
    except BaseException:
        with suppress(sa.exc.SQLAlchemyError):  # of a lost connection nothing is left behind
            inside.rollback()
        raise
    inside.rollback()


def _read(connection: sa.Connection, chain: Chain, script: ScriptDirectory) -> ChainState:
    """What looks wrong is believed if the version table says the same afterwards: migrations commit."""
    rows, hand_made = _read_version_table(connection, chain)
    while True:
        status, missing = _judged(connection, chain, script, rows, hand_made)
        if status not in ("unrecorded", "damaged"):
            break
        before = rows
        rows, hand_made = _read_version_table(connection, chain)
        if rows == before:
            break
    return ChainState(chain.name, rows, newest(script), status, missing)


def _judged(
    connection: sa.Connection, chain: Chain, script: ScriptDirectory, rows: tuple[str, ...], hand_made: bool
) -> tuple[Status, tuple[str, ...]]:
    """What the version table says, and whether the engine's tables bear it out; a host's are its own."""
    status: Status = "hand-made" if hand_made else _status(script, rows)
    if chain.name != "engine":
        return status, ()
    if status == "empty" and _found(connection, first_tables()):
        return "unrecorded", ()
    if status in ("behind", "current"):
        expected = tables_at(rows[0])
        missing = tuple(sorted(expected - _found(connection, expected)))
        return ("damaged" if missing else status), missing
    return status, ()


def _found(connection: sa.Connection, tables: Collection[str]) -> frozenset[str]:
    return frozenset(connection.execute(FOUND_TABLES, {"tables": sorted(tables)}).scalars())


def _read_version_table(connection: sa.Connection, chain: Chain) -> tuple[tuple[str, ...], bool]:
    columns = set(connection.execute(VERSION_TABLE_COLUMNS, {"table": chain.version_table}).scalars())
    if not columns:
        return (), False
    if "version_num" in columns:
        context = MigrationContext.configure(connection, opts={"version_table": chain.version_table})
        return tuple(sorted(context.get_current_heads())), False
    if chain.name == "engine" and "version" in columns:
        version = connection.execute(LEDGER_VERSION).scalar_one()
        return (() if version is None else (str(version),)), True
    raise MigrationRefused(
        f"the table {chain.version_table} exists and is no version table of ours",
        advice="rename it, or choose another version_table for the host chain",
    )


def _status(script: ScriptDirectory, rows: tuple[str, ...]) -> Status:
    if not all(known(script, one) for one in rows):
        return "ahead"
    if not rows:
        return "current" if not heads(script) else "empty"
    if len(rows) > 1 and _overlap(script, rows):
        return "contradictory"
    return "current" if list(rows) == heads(script) else "behind"


def _overlap(script: ScriptDirectory, rows: tuple[str, ...]) -> bool:
    """Whether one row is on the way to another; branches have a row each, and none is on another's way."""
    ways = [{step.revision for step in script.iterate_revisions(one, "base")} - {one} for one in rows]
    return any(one in way for one in rows for way in ways)
