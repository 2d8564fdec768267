"""Taking over a database that the older hand-written SQL chain migrated.

That chain kept a ledger, also named `queue_schema_version`: one row a migration, with its number. Its
numbers 1 to 9 stand for the same subjects as our first nine revisions, but a ledger is only a claim. So the
revision that it claims is built next to it, in a scratch schema, and the two are compared; only where the
database really is what the revision makes does Alembic's version table take the ledger's place. All of it
is one transaction.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import sqlalchemy as sa
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory

from queue_workflows.config import ENGINE_VERSION_TABLE
from queue_workflows.db.migrations.catalog import Catalog, compare_catalogs, read_catalog, read_functions
from queue_workflows.db.migrations.chain.chains import LEGACY_LEDGER, Chain, engine_chain
from queue_workflows.db.migrations.chain.revisions import load_script
from queue_workflows.db.migrations.chain.tables import engine_tables, tables_at
from queue_workflows.db.migrations.failures import translated
from queue_workflows.db.migrations.mending import mending, moving
from queue_workflows.db.migrations.refusals import refuse_misfit
from queue_workflows.db.migrations.session import (
    DEFAULT_TERMS,
    MigrationSession,
    SessionTerms,
    Target,
    migration_session,
)
from queue_workflows.db.migrations.state import read_state
from queue_workflows.db.migrations.steps import Plan, run_steps
from queue_workflows.errors import AccessRefused, MigrationRefused, SchemaDrift

LAST_OF_OLD_CHAIN: Final = 9
SCRATCH: Final = "qwf_adopt_scratch"

# No migrator of the older chain may write on while its ledger is being judged.
LOCK_LEDGER: Final = sa.text(f"LOCK TABLE {ENGINE_VERSION_TABLE} IN SHARE ROW EXCLUSIVE MODE")
LEDGER: Final = sa.text(f"SELECT version FROM {ENGINE_VERSION_TABLE} ORDER BY version")  # noqa: S608
KEEP_LEDGER: Final = sa.text(f"ALTER TABLE {ENGINE_VERSION_TABLE} RENAME TO {LEGACY_LEDGER}")
LEGACY_EXISTS: Final = sa.text("SELECT to_regclass(:name) IS NOT NULL")
MAY_CREATE_SCHEMA: Final = sa.text(
    "SELECT has_database_privilege(current_database(), 'CREATE'), current_user, current_database(),"
    " current_schema()"
)


_MEND: Final = (
    "`qwf db adopt --dry-run > mend.sql` writes the statements that would mend it: read them, run them, and"
    " adopt again; nothing was changed"
)


class Built(NamedTuple):
    """What a revision makes, and the sources of its functions by their names with arguments."""

    catalog: Catalog
    functions: Mapping[str, str]

    def functions_in(self, schema: str) -> dict[str, str]:
        """The sources, each with that schema in its own search_path."""
        return {name: source.replace(SCRATCH, schema) for name, source in self.functions.items()}


@dataclass(frozen=True)
class Adoption:
    """What was done, or would be: the revision that the database is at, and the ledger's new name."""

    revision: str
    already: bool
    dry_run: bool
    ledger: str | None = LEGACY_LEDGER


def adopt(target: Target = None, *, dry_run: bool = False, terms: SessionTerms = DEFAULT_TERMS) -> Adoption:
    """Replace a hand-made ledger by Alembic's version table, if the revision it claims is really there.

    Where the version table lost its row, the revision that the tables are at is found and recorded.
    """
    chain = engine_chain()
    script = load_script(chain)
    with migration_session(target, terms) as session:
        state = read_state(session.connection, chain, script)
        refuse_misfit(state, chain, but=("hand-made", "unrecorded"))
        if state.status == "empty":
            raise MigrationRefused("there is no hand-made ledger to adopt", advice="run `qwf db upgrade`")
        if state.status not in ("hand-made", "unrecorded"):
            return Adoption(", ".join(state.current), already=True, dry_run=dry_run)
        session.watch.begin("the adoption")
        hand_made = state.status == "hand-made"
        with translated(session), session.connection.begin() as transaction:
            revision = (_adopt if hand_made else _record)(session, chain, script)
            if dry_run:
                transaction.rollback()
        return Adoption(revision, already=False, dry_run=dry_run, ledger=LEGACY_LEDGER if hand_made else None)


def _adopt(session: MigrationSession, chain: Chain, script: ScriptDirectory) -> str:
    connection = session.connection
    schema = _need_rights(connection)
    if connection.execute(LEGACY_EXISTS, {"name": LEGACY_LEDGER}).scalar_one():
        raise MigrationRefused(
            f"{LEGACY_LEDGER} exists already, so the ledger could not be kept under that name",
            advice="rename or drop the older one",
        )
    connection.execute(LOCK_LEDGER)
    revision = claimed_revision(list(connection.execute(LEDGER).scalars()))
    (expected,) = _built(session, chain, script, [revision])
    there = read_catalog(connection, schema)
    found = compare_catalogs(expected.catalog, there)
    if found and (moved := moving(expected.catalog, there, ENGINE_VERSION_TABLE)):
        raise SchemaDrift(
            f"the tables at version {int(revision)} of this ledger have keys of text, and ours have numbers:"
            " no statement turns them",
            found,
            advice="`qwf db adopt --dry-run > move.sql` writes what puts them into a schema of their own;"
            " `qwf db upgrade` then makes ours, and docs/deploy/from-the-sql-chain.md says how queued jobs"
            " are carried over; nothing was changed",
            statements=moved,
        )
    if found:
        raise SchemaDrift(
            f"the ledger claims version {int(revision)}, but the database differs from revision {revision}: "
            + "; ".join(found),
            found,
            advice=_MEND,
            statements=mending(expected.catalog, there, expected.functions_in(schema)),
        )
    connection.execute(KEEP_LEDGER)
    return _stamp(connection, chain, script, revision)


def _record(session: MigrationSession, chain: Chain, script: ScriptDirectory) -> str:
    """The newest revision that makes what is there, of those that know all of our tables in it."""
    connection = session.connection
    schema = _need_rights(connection)
    actual = read_catalog(connection, schema)
    there = {name for kind, name in actual if kind == "table"} & engine_tables()
    possible = [one.revision for one in script.walk_revisions() if there <= tables_at(one.revision)]
    made = _built(session, chain, script, possible[::-1])
    differences = {
        one: compare_catalogs(expected.catalog, actual)
        for one, expected in zip(possible, made[::-1], strict=True)
    }
    for one, found in differences.items():
        if not found:
            return _stamp(connection, chain, script, one)
    nearest = min(differences, key=lambda one: len(differences[one]))
    expected = made[::-1][possible.index(nearest)]
    raise SchemaDrift(
        f"the tables are at no revision of this code; from {nearest} they differ least: "
        + "; ".join(differences[nearest]),
        differences[nearest],
        advice=_MEND,
        statements=mending(expected.catalog, actual, expected.functions_in(schema)),
    )


def _stamp(connection: sa.Connection, chain: Chain, script: ScriptDirectory, revision: str) -> str:
    context = MigrationContext.configure(connection, opts={"version_table": chain.version_table})
    context.stamp(script, revision)
    return revision


def claimed_revision(versions: list[int]) -> str:
    """The revision that a ledger's rows claim; a ledger with holes claims nothing that could be believed."""
    if not versions:
        raise MigrationRefused(
            "the hand-made ledger is empty: it claims no version",
            advice=f"if nothing was ever migrated, drop {ENGINE_VERSION_TABLE} and run `qwf db upgrade`",
        )
    newest = max(versions)
    if newest > LAST_OF_OLD_CHAIN or min(versions) < 1:
        raise MigrationRefused(
            f"the hand-made ledger has version {newest if newest > LAST_OF_OLD_CHAIN else min(versions)}; "
            f"only 1 to {LAST_OF_OLD_CHAIN} are known",
            advice="this is not the ledger of the older chain",
        )
    missing = sorted(set(range(1, newest + 1)) - set(versions))
    if missing:
        raise MigrationRefused(
            f"the hand-made ledger is at {newest} but has no row for {', '.join(map(str, missing))}",
            advice="find out whether those ran, and complete the ledger",
        )
    return f"{newest:04d}"


def _need_rights(connection: sa.Connection) -> str:
    may_create, role, database, schema = connection.execute(MAY_CREATE_SCHEMA).one()
    if not may_create:
        raise AccessRefused(
            f"role {role} lacks the CREATE right on database {database}, needed for a scratch schema",
            advice=f"GRANT CREATE ON DATABASE {database} TO {role}, and revoke it after the adoption",
        )
    return str(schema)


def _built(
    session: MigrationSession, chain: Chain, script: ScriptDirectory, revisions: Sequence[str]
) -> list[Built]:
    """What each of these revisions, oldest first, makes of the one before, the first of an empty schema.

    The savepoint takes the schema away again.
    """
    connection = session.connection
    made = []
    savepoint = connection.begin_nested()
    try:
        connection.execute(sa.text(f"CREATE SCHEMA {SCRATCH}"))
        connection.execute(sa.text("SELECT set_config('search_path', :path, true)"), {"path": SCRATCH})
        for revision in revisions:
            run_steps(session, chain, Plan(script, "upgrade", revision))
            made.append(Built(read_catalog(connection, SCRATCH), read_functions(connection, SCRATCH)))
    finally:
        savepoint.rollback()
    session.watch.begin("the adoption")
    return [one._replace(catalog=_without_version_table(one.catalog)) for one in made]


def _without_version_table(catalog: Catalog) -> Catalog:
    return {key: text for key, text in catalog.items() if key[1].partition(".")[0] != ENGINE_VERSION_TABLE}
