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
from alembic.script import Script

from queue_workflows.db.migrations.chain.chains import Chain, host_chain, select_chains
from queue_workflows.db.migrations.chain.revisions import check_target, load_script, refuse_two_heads
from queue_workflows.db.migrations.chain.tables import engine_tables, tables_dropped
from queue_workflows.db.migrations.failures import check_rights, translated
from queue_workflows.db.migrations.refusals import refuse_misfit
from queue_workflows.db.migrations.session import (
    DEFAULT_TERMS,
    MigrationSession,
    Notify,
    SessionTerms,
    Target,
    migration_session,
    one_target,
    silent,
)
from queue_workflows.db.migrations.state import read_state
from queue_workflows.db.migrations.steps import Plan, Progress, Report, run_steps
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
        terms=SessionTerms(lock_timeout_s, wait_s, notify),
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
        terms=SessionTerms(lock_timeout_s, wait_s, notify),
        report=report,
    )


def upgrade(
    target: Target = None,
    *,
    chains: Iterable[Chain],
    revision: str = "head",
    terms: SessionTerms = DEFAULT_TERMS,
    report: Report = silent,
) -> list[Progress]:
    """Upgrade each chain in the order given, all under one hold of the migration lock."""
    plans = [(chain, Plan(load_script(chain), "upgrade", revision)) for chain in chains]
    for chain, plan in plans:
        check_target(plan.script, revision)
        if revision == "head":
            refuse_two_heads(chain, plan.script)
    applied: list[Progress] = []
    with migration_session(target, terms) as session:
        for chain, plan in plans:
            applied += _upgrade_one(session, chain, plan, report)
    return applied


def _upgrade_one(session: MigrationSession, chain: Chain, plan: Plan, report: Report) -> list[Progress]:
    state = read_state(session.connection, chain, plan.script)
    refuse_misfit(state, chain)
    if not plan.steps(state.current):
        return []
    if chain.name == "engine":
        check_rights(session.connection, sorted(engine_tables()))
    return run_steps(session, chain, plan, report)


def downgrade_chain(
    target: Target = None,
    *,
    chain: Chain,
    revision: str,
    host: Chain | None,
    terms: SessionTerms = DEFAULT_TERMS,
    report: Report = silent,
) -> list[Progress]:
    """Downgrade one chain; `host` is the host chain that may stand above the engine's."""
    plan = Plan(load_script(chain), "downgrade", revision)
    check_target(plan.script, revision)
    with migration_session(target, terms) as session:
        state = read_state(session.connection, chain, plan.script)
        # Going back and up again is what mends a schema that has lost tables.
        refuse_misfit(state, chain, but=("damaged",))
        steps = [one.revision for one in plan.steps(state.current)]
        if steps and chain.name == "engine":
            _refuse_under_live_host(session.connection, steps, host)
            check_rights(session.connection, sorted(engine_tables()))
        applied = run_steps(session, chain, plan, report)
        _drop_empty_version_table(session, chain, plan)
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


def _drop_empty_version_table(session: MigrationSession, chain: Chain, plan: Plan) -> None:
    """At base nothing of a chain is left behind, its version table included."""
    if read_state(session.connection, chain, plan.script).status == "empty":
        with translated(session), session.connection.begin():
            session.connection.execute(sa.schema.DropTable(_version_table(chain), if_exists=True))


def _version_table(chain: Chain) -> sa.Table:
    return sa.Table(chain.version_table, sa.MetaData())
