"""A schema that is not what its version table says: everybody sees it, and the advice leads out of it."""

from __future__ import annotations

from itertools import pairwise

import pytest
import sqlalchemy as sa
from support.host_app.models import HostBase
from support.rows.revisions import BEFORE_HEAD, HEAD, REVISIONS
from support.rows.schemas import as_user, catalog, query, qwf, sa_engine
from support.servers.postgres_versions import on_each_version

from queue_workflows.config import HostMigrations, configure
from queue_workflows.db import bootstrap, downgrade, migrations, wait_for_schema
from queue_workflows.db.doctor import examine
from queue_workflows.db.migrations.chain.chains import Chain, engine_chain, host_chain
from queue_workflows.db.migrations.chain.tables import engine_tables, first_tables, tables_at
from queue_workflows.db.migrations.state import read_state
from queue_workflows.db.migrations.verbs import upgrade
from queue_workflows.errors import MigrationRefused, SchemaBehind, SchemaDrift

pytestmark = pytest.mark.slow

ENGINE = engine_chain()
# Going back to it drops tables, which is what a late look would miss.
BEFORE_HOOKS = "0012"
END_ALL_OTHERS = """
SELECT pg_terminate_backend(pid, 150000) FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid()
"""
TAKE_BACK = "`qwf db downgrade base --chain engine`, then `qwf db upgrade`"


def doctors_finding(dsn: str) -> tuple[str, str, int]:
    """What the doctor says of the schema, what it advises, and what it ends with."""
    report = examine(dsn)
    (check,) = [check for check in report.checks if check.name == "schema"]
    return check.found, check.advice, int(check.code)


def test_a_dropped_table_is_seen_by_all_who_look(migrated: str) -> None:
    """Doctor, upgrade, bootstrap and those who wait name the table; none of them sends to another of them."""
    query(migrated, "DROP TABLE schedules, rate_limits")
    told = f"the database schema is at {HEAD}, but tables of it are gone: rate_limits, schedules"
    with pytest.raises(SchemaDrift) as waiting:
        wait_for_schema(8, 0, dsn=migrated)
    with pytest.raises(SchemaDrift) as upgrading:
        bootstrap(migrated)
    found, advice, code = doctors_finding(migrated)
    assert [error.value.message for error in (waiting, upgrading)] == [told] * 2
    assert waiting.value.differences == ["table rate_limits is missing", "table schedules is missing"]
    assert found.endswith(told)
    assert {advice, waiting.value.advice, upgrading.value.advice} == {advice}
    assert TAKE_BACK in advice
    assert code == 79
    (state,) = migrations.current(migrated, chains=[ENGINE])
    assert (state.status, state.missing) == ("damaged", ("rate_limits", "schedules"))


@on_each_version("dropped", ["all", "schedules", "workflow_node_jobs", "ingest_jobs"])
def test_the_advice_for_dropped_tables_helps(
    migrated: str, at_head: dict[tuple[str, str], str], dropped: str
) -> None:
    """Going back and up again makes the schema whole, whatever was lost of it."""
    names = sorted(engine_tables()) if dropped == "all" else [dropped]
    query(migrated, f"DROP TABLE {', '.join(names)} CASCADE")
    downgrade(migrated, chain="engine", revision="base")
    assert catalog(migrated) == {}
    bootstrap(migrated)
    assert catalog(migrated) == at_head


def test_the_commands_say_so_too(migrated: str) -> None:
    """One line, exit code 79, from the worker and from the upgrade that people run next."""
    query(migrated, "DROP TABLE ingest_jobs CASCADE")
    for command in (("worker", "--queue", "fetch", "--schema-wait", "0"), ("db", "upgrade"), ("db", "check")):
        run = qwf(*command, QWF_DB_URL=migrated)
        assert run.returncode == 79, run.stderr
        assert "ingest_jobs" in run.stderr.splitlines()[-1]
    assert qwf("db", "current", QWF_DB_URL=migrated).stdout == (
        f"engine: {HEAD} (tables missing, this code is at {HEAD})\n"
    )


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        ("ALTER TABLE ingest_jobs DROP COLUMN limit_key CASCADE", "ingest_jobs.limit_key"),
        ("DROP INDEX ix_ingest_jobs_claim", "ix_ingest_jobs_claim"),
    ],
)
def test_the_doctor_compares_with_the_models(migrated: str, damage: str, named: str) -> None:
    """What makes a worker fail later fails the check-up now."""
    query(migrated, damage)
    found, advice, code = doctors_finding(migrated)
    assert named in found
    assert advice
    assert code == 79


@on_each_version("revision", ["0009", "0001", HEAD])
@pytest.mark.parametrize("loss", ["DELETE FROM queue_schema_version", "DROP TABLE queue_schema_version"])
def test_a_version_table_without_its_row_is_mended_by_adopt(empty: str, revision: str, loss: str) -> None:
    """The tables tell where they are: upgrade refuses and says so, adopt records it, and all goes on."""
    migrations.upgrade(empty, chains=[ENGINE], revision=revision)
    query(empty, loss)
    for refused in (lambda: bootstrap(empty), lambda: wait_for_schema(1, 0, dsn=empty)):
        with pytest.raises(MigrationRefused, match=r"names no revision.*`qwf db adopt`"):
            refused()
    assert "`qwf db adopt`" in doctors_finding(empty)[1]
    assert migrations.adopt(empty, dry_run=True).revision == revision
    with pytest.raises(MigrationRefused):
        bootstrap(empty)
    done = migrations.adopt(empty)
    assert (done.revision, done.already, done.ledger) == (revision, False, None)
    assert [step.revision for step in bootstrap(empty)] == REVISIONS[REVISIONS.index(revision) + 1 :]
    assert migrations.check(empty, chain=ENGINE).status == "current"


def test_tables_that_fit_no_revision_are_not_adopted(migrated: str) -> None:
    """The differences from the nearest revision are named, and nothing is recorded."""
    query(migrated, "DELETE FROM queue_schema_version; ALTER TABLE schedules DROP COLUMN timezone")
    with pytest.raises(
        SchemaDrift, match=f"from {HEAD} they differ least: column schedules.timezone is missing"
    ):
        migrations.adopt(migrated)
    assert query(migrated, "SELECT version_num FROM queue_schema_version") == []


@pytest.mark.parametrize("chain", ["engine", "host"])
def test_two_rows_on_one_line_are_refused_with_what_to_do(
    migrated: str, chain: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Of a revision and one before it only one can be where the database is; deleting the other mends it."""
    if chain == "engine":
        table, rows = "queue_schema_version", (BEFORE_HEAD, HEAD)
    else:
        table, rows = "film_schema_version", ("0001", "0002")
        versions = tmp_path_factory.mktemp("versions")
        configure(host_migrations=HostMigrations(versions, table, HostBase.metadata))
        for message in ("One", "Two"):
            migrations.revision(chain=migrations_chain(), message=message)
        bootstrap(migrated)
    query(migrated, f"INSERT INTO {table} VALUES ('{rows[0]}')")
    told = f"{table} names {rows[0]} and {rows[1]}, one of which is on the way to the other"
    with pytest.raises(MigrationRefused, match=f"{told}.*delete the row"):
        bootstrap(migrated)
    assert told in doctors_finding(migrated)[0]
    query(migrated, f"DELETE FROM {table} WHERE version_num = '{rows[0]}'")
    assert bootstrap(migrated) == []


def migrations_chain() -> Chain:
    """The configured host chain."""
    chain = host_chain()
    assert chain is not None
    return chain


def test_a_host_chain_that_is_behind_is_named(migrated: str, tmp_path: pytest.TempPathFactory) -> None:
    """Of two chains one is behind: the error says which, and the command for it."""
    configure(host_migrations=HostMigrations(tmp_path, "film_schema_version", HostBase.metadata))
    migrations.revision(chain=migrations_chain(), message="One")
    with pytest.raises(SchemaBehind) as caught:
        migrations.check(migrated, chain=migrations_chain())
    assert str(caught.value) == (
        "the schema of the host chain is at nothing, this needs 0001 — run `qwf db upgrade --chain host`"
    )
    assert caught.value.chain == "host"
    assert "the schema of the host chain is at nothing" in doctors_finding(migrated)[0]


@pytest.mark.parametrize("way", ["up", "down"])
def test_who_looks_while_a_migration_commits_is_not_misled(empty: str, way: str) -> None:
    """The version table is read, a revision commits, the tables are looked for: that is no damage.

    Who looks is in a transaction, for whose end a revision that builds an index would wait; here for ever.
    """
    if way == "down":
        bootstrap(empty)
    engine, interrupted = sa_engine(empty), []

    @sa.event.listens_for(engine, "before_cursor_execute")
    def meanwhile(_conn: object, _cursor: object, statement: str, *_rest: object) -> None:
        if "FROM pg_class" not in statement or interrupted:
            return
        interrupted.append(statement)
        if way == "up":
            upgrade(empty, chains=[engine_chain()], revision=BEFORE_HOOKS)
        else:
            downgrade(empty, chain="engine", revision=BEFORE_HOOKS)

    with engine.connect() as connection:
        state = read_state(connection, ENGINE)
    assert (", ".join(state.current), state.status, len(interrupted)) == (BEFORE_HOOKS, "behind", 1)


def test_a_stop_is_told_though_the_connection_is_lost_with_it(
    migrated: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rollback that fails is no failure: a wait for the schema would take it for an outage, and go on."""

    def stopped(_revision: str) -> frozenset[str]:
        query(migrated, END_ALL_OTHERS)
        raise KeyboardInterrupt

    monkeypatch.setattr("queue_workflows.db.migrations.state.tables_at", stopped)
    with sa_engine(migrated).connect() as connection, pytest.raises(KeyboardInterrupt):
        read_state(connection, ENGINE)


def test_a_role_that_may_only_read_the_version_table_sees_the_tables(
    migrated: str, limited_role: str
) -> None:
    """Whether a table exists is no secret, so waiting still needs SELECT on one table only."""
    query(migrated, f"GRANT SELECT ON queue_schema_version TO {limited_role}")
    assert wait_for_schema(HEAD, 0, dsn=as_user(migrated, limited_role)) == HEAD


def test_the_tables_of_a_revision_are_those_that_it_made() -> None:
    """From the revisions themselves: each has at least what the one before had, and the last has all."""
    sets = [tables_at(revision) for revision in REVISIONS]
    assert sets[0] == first_tables() == {"workflow_runs"}
    assert all(before <= after for before, after in pairwise(sets))
    assert sets[-1] == engine_tables()
