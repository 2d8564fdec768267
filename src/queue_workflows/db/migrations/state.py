"""How far a database has come along a chain, and waiting until it has come far enough."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, Literal

import psycopg
import sqlalchemy as sa
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory

from queue_workflows.config import ENGINE_VERSION_TABLE
from queue_workflows.db.migrations.chains import (
    Chain,
    engine_chain,
    find_revision,
    known,
    load_script,
    newest,
)
from queue_workflows.db.migrations.session import Target, connection_to, one_target
from queue_workflows.errors import (
    AccessRefused,
    DatabaseUnreachable,
    MigrationRefused,
    SchemaAhead,
    SchemaBehind,
)

Status = Literal["empty", "behind", "current", "ahead", "hand-made"]
POLL_S: Final = 0.5
ADOPT_ADVICE: Final = "convert the hand-made ledger first: `qwf db adopt --dry-run`, then `qwf db adopt`"

# A ledger of the older SQL chain has the same name as ours and other columns.
VERSION_TABLE_COLUMNS: Final = sa.text("""
    SELECT a.attname FROM pg_attribute a
    WHERE a.attrelid = to_regclass(quote_ident(:table)) AND a.attnum > 0 AND NOT a.attisdropped
""")
LEDGER_VERSION: Final = sa.text(f"SELECT max(version) FROM {ENGINE_VERSION_TABLE}")  # noqa: S608


@dataclass(frozen=True)
class ChainState:
    """One chain in one database."""

    chain: str
    current: tuple[str, ...]
    head: str
    status: Status

    @property
    def shown(self) -> str | None:
        """The current revision for a person; None when there is none."""
        text = ", ".join(self.current)
        if self.status == "hand-made":
            return f"version {text or 'none'} of a hand-made ledger"
        return text or None


def read_state(connection: sa.Connection, chain: Chain, script: ScriptDirectory | None = None) -> ChainState:
    """Read a chain's version table; leaves no transaction open."""
    script = script or load_script(chain)
    try:
        current, hand_made = _read_version_table(connection, chain)
    except sa.exc.ProgrammingError as error:
        if isinstance(error.orig, psycopg.errors.InsufficientPrivilege):
            raise AccessRefused(
                f"this role may not read {chain.version_table}",
                advice=f"GRANT SELECT ON {chain.version_table} to it",
            ) from error
        raise
    finally:
        connection.rollback()
    return ChainState(chain.name, current, newest(script), _status(script, current, hand_made))


def current(target: Target = None, *, chains: Iterable[Chain]) -> list[ChainState]:
    """Where the database stands on each chain."""
    with connection_to(target) as connection:
        return [read_state(connection, chain) for chain in chains]


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


def _status(script: ScriptDirectory, current: tuple[str, ...], hand_made: bool) -> Status:
    if hand_made:
        return "hand-made"
    if not all(known(script, one) for one in current):
        return "ahead"
    if set(current) == set(script.get_heads()):
        return "current"
    return "behind" if current else "empty"


def refuse_ahead(state: ChainState) -> None:
    """A schema this code has never heard of is nobody's to touch."""
    if state.status != "ahead":
        return
    error = SchemaAhead(", ".join(state.current), state.head)
    if state.chain == "host":
        error.advice = "deploy the version of the host app that made it, or downgrade with that version"
    raise error


def refuse_hand_made(state: ChainState) -> None:
    """The older chain's ledger has the name of ours; moving on it would take its tables for absent."""
    if state.status == "hand-made":
        raise MigrationRefused(
            f"{ENGINE_VERSION_TABLE} is the hand-made ledger of an older chain of SQL files",
            advice=ADOPT_ADVICE,
        )


def behind(state: ChainState, needed: str) -> SchemaBehind:
    """The error for a schema that is older than `needed`."""
    return SchemaBehind(state.shown, needed, advice=ADOPT_ADVICE if state.status == "hand-made" else None)


def _reached(script: ScriptDirectory, state: ChainState, needed: str) -> bool:
    refuse_ahead(state)
    if state.status == "hand-made" or not state.current:
        return False
    return any(needed == revision.revision for revision in script.iterate_revisions(state.current, "base"))


def wait_for_schema(
    min_version: int | str,
    timeout: float,
    *,
    dsn: str | None = None,
    engine: sa.Engine | None = None,
    conn: sa.Connection | None = None,
    sleep: Callable[[float], None] = time.sleep,
    now: Callable[[], float] = time.monotonic,
) -> str:
    """Wait until the engine's schema is at `min_version` or beyond; returns where it is, needs SELECT only.

    A schema ahead of this code ends the wait at once. A database that does not answer yet is waited for too,
    and so is the right to read the version table: grants come after the first migration.
    """
    chain = engine_chain()
    script = load_script(chain)
    needed = find_revision(script, min_version)
    deadline = now() + timeout

    def reached(connection: sa.Connection) -> str:
        while True:
            try:
                return _far_enough(connection, chain, script, needed)
            except (SchemaBehind, AccessRefused):
                if now() >= deadline:
                    raise
            sleep(POLL_S)

    while True:
        try:
            with connection_to(one_target(dsn, engine, conn)) as connection:
                return reached(connection)
        except DatabaseUnreachable:
            if now() >= deadline:
                raise
        sleep(POLL_S)


def _far_enough(connection: sa.Connection, chain: Chain, script: ScriptDirectory, needed: str) -> str:
    """Where the schema is, or why that will not do."""
    state = _answer(connection, chain, script)
    if not _reached(script, state, needed):
        raise behind(state, needed)
    return ", ".join(state.current)


def _answer(connection: sa.Connection, chain: Chain, script: ScriptDirectory) -> ChainState:
    try:
        return read_state(connection, chain, script)
    except sa.exc.OperationalError as error:
        raise DatabaseUnreachable("the database stopped answering", advice="see its log") from error
