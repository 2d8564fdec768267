"""The verbs of the two migration chains, as library calls; the command line adds words, no logic.

Every revision is a transaction of its own, so what is interrupted stands at the last whole revision and the
next run goes on from there. Upgrades go engine first and host second, because a host's tables may refer to
ours; the engine is not downgraded while a host chain lives above it.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final, Literal

import sqlalchemy as sa
from alembic.script import Script, ScriptDirectory

from queue_workflows.db.migrations.chains import (
    Chain,
    check_target,
    engine_tables,
    host_chain,
    load_script,
    select_chains,
    tables_dropped,
)
from queue_workflows.db.migrations.failures import check_rights, translated
from queue_workflows.db.migrations.session import (
    DEFAULT_TERMS,
    MigrationSession,
    Notify,
    Target,
    Terms,
    migration_session,
    one_target,
    silent,
)
from queue_workflows.db.migrations.state import (
    ChainState,
    read_state,
    refuse_ahead,
    refuse_hand_made,
)
from queue_workflows.db.migrations.stepping import Progress, Report, plan_downgrade, plan_upgrade, run_steps
from queue_workflows.errors import MigrationRefused

# Tables that are not the engine's and hold foreign keys to the tables named.
FOREIGN_REFERENCES: Final = sa.text("""
    SELECT c.conrelid::regclass::text AS referrer, c.conname, c.confrelid::regclass::text AS referred
    FROM pg_constraint c
    WHERE c.contype = 'f' AND c.conparentid = 0
      AND c.confrelid IN (SELECT to_regclass(quote_ident(name)) FROM unnest(CAST(:dropped AS text[])) name)
      AND c.conrelid NOT IN (
        SELECT oid FROM unnest(CAST(:ours AS text[])) name, LATERAL to_regclass(quote_ident(name)) oid
        WHERE oid IS NOT NULL)
    ORDER BY 1, 2
""")


def bootstrap(
    dsn: str | None = None,
    *,
    engine: sa.Engine | None = None,
    conn: sa.Connection | None = None,
    migrations_dir: Path | str | None = None,
    version_table: str | None = None,
    lock_timeout_s: float | None = None,
    wait_s: float | None = None,
    report: Report = silent,
    notify: Notify = silent,
) -> list[Progress]:
    """Bring the engine's schema to head, then the host app's chain, if one is configured or named here.

    The database is a DSN, an engine or a connection (outside a transaction), else what the settings say. Safe
    to call from every process of a deployment at once; returns the revisions that this call applied.
    """
    host = host_chain(migrations_dir=migrations_dir, version_table=version_table)
    return upgrade(
        one_target(dsn, engine, conn),
        chains=select_chains("all", host),
        terms=Terms(lock_timeout_s, wait_s, notify),
        report=report,
    )


def downgrade(
    dsn: str | None = None,
    *,
    chain: Literal["engine", "host"],
    revision: str,
    engine: sa.Engine | None = None,
    conn: sa.Connection | None = None,
    migrations_dir: Path | str | None = None,
    version_table: str | None = None,
    lock_timeout_s: float | None = None,
    wait_s: float | None = None,
    report: Report = silent,
    notify: Notify = silent,
) -> list[Progress]:
    """Take one chain back to `revision` (`base` removes it), refusing what would break a live host chain."""
    host = host_chain(migrations_dir=migrations_dir, version_table=version_table)
    (selected,) = select_chains(chain, host)
    return downgrade_chain(
        one_target(dsn, engine, conn),
        chain=selected,
        revision=revision,
        host=host,
        terms=Terms(lock_timeout_s, wait_s, notify),
        report=report,
    )


def upgrade(
    target: Target = None,
    *,
    chains: Iterable[Chain],
    revision: str = "head",
    terms: Terms = DEFAULT_TERMS,
    report: Report = silent,
) -> list[Progress]:
    """Upgrade each chain in the order given, all under one hold of the migration lock."""
    plans = [(chain, load_script(chain)) for chain in chains]
    for _chain, script in plans:
        check_target(script, revision)
    applied: list[Progress] = []
    with migration_session(target, terms) as session:
        for chain, script in plans:
            applied += _upgrade_one(session, chain, script, revision, report)
    return applied


def _upgrade_one(
    session: MigrationSession, chain: Chain, script: ScriptDirectory, revision: str, report: Report
) -> list[Progress]:
    state = _movable(session, chain, script)
    plan = plan_upgrade(script, revision)
    with translated(session):
        steps = plan(state.current)
    if not steps:
        return []
    if chain.name == "engine":
        check_rights(session.connection, sorted(engine_tables()))
    return run_steps(session, chain, script, plan, report)


def _movable(session: MigrationSession, chain: Chain, script: ScriptDirectory) -> ChainState:
    state = read_state(session.connection, chain, script)
    refuse_ahead(state)
    refuse_hand_made(state)
    return state


def downgrade_chain(
    target: Target = None,
    *,
    chain: Chain,
    revision: str,
    host: Chain | None,
    terms: Terms = DEFAULT_TERMS,
    report: Report = silent,
) -> list[Progress]:
    """Downgrade one chain; `host` is the host chain that may stand above the engine's."""
    script = load_script(chain)
    check_target(script, revision)
    plan = plan_downgrade(script, revision)
    with migration_session(target, terms) as session:
        state = _movable(session, chain, script)
        with translated(session):
            steps = [one.revision for one in plan(state.current)]
        if steps and chain.name == "engine":
            _refuse_under_live_host(session.connection, steps, host)
            check_rights(session.connection, sorted(engine_tables()))
        applied = run_steps(session, chain, script, plan, report)
        _drop_empty_version_table(session, chain, script)
    return applied


def _refuse_under_live_host(connection: sa.Connection, steps: list[Script], host: Chain | None) -> None:
    if host is not None:
        state = read_state(connection, host)
        if state.current:
            raise MigrationRefused(
                f"the host chain stands at {state.shown} above the engine's tables",
                advice="downgrade it first: `qwf db downgrade --chain host base`",
            )
    names = {
        "dropped": sorted(tables_dropped(steps)),
        "ours": sorted(engine_tables()),
    }
    found = [
        f"{row.referrer} ({row.conname}) to {row.referred}"
        for row in connection.execute(FOREIGN_REFERENCES, names)
    ]
    connection.rollback()
    if found:
        raise MigrationRefused(
            f"tables outside the engine refer to what would be dropped: {'; '.join(found)}",
            advice="drop those foreign keys, or downgrade the chain that made them, first",
        )


def _drop_empty_version_table(session: MigrationSession, chain: Chain, script: ScriptDirectory) -> None:
    """At base nothing of a chain is left behind, its version table included."""
    if read_state(session.connection, chain, script).status == "empty":
        with translated(session), session.connection.begin():
            session.connection.execute(sa.schema.DropTable(_version_table(chain), if_exists=True))


def _version_table(chain: Chain) -> sa.Table:
    return sa.Table(chain.version_table, sa.MetaData())
