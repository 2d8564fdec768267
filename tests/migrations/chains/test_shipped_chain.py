"""The quick look at the schema: what it believes, what it leaves to Alembic, what it saves each start."""

from __future__ import annotations

import subprocess
import sys

import psycopg
import pytest
from support.rows.revisions import HEAD
from support.rows.schemas import as_user, query, qwf_environment

from queue_workflows.db import bootstrap, migrations
from queue_workflows.db.migrations.chain.chains import engine_chain
from queue_workflows.db.migrations.chain.tables import tables_at
from queue_workflows.db.shipped_chain import head, is_at_head
from queue_workflows.models import Base

TABLES = Base.metadata.tables
# What only a migration needs, and what a role without telemetry has no use for.
NOT_FOR_A_START = {"alembic", "mako", "jsonschema", "referencing", "opentelemetry", "http", "yaml"}


def looked(dsn: str) -> bool:
    with psycopg.connect(dsn, autocommit=True) as connection:
        return is_at_head(connection, TABLES)


def test_it_expects_what_the_revisions_make() -> None:
    """The names of the files tell the head, and the models the tables, as Alembic does."""
    assert head() == HEAD
    assert frozenset(TABLES) == tables_at(HEAD)


def test_a_schema_at_the_head_is_seen_with_the_right_to_read_alone(migrated: str, limited_role: str) -> None:
    """Whole, it is believed; to a role that may not read the version table nothing can be told."""
    assert looked(migrated)
    assert not looked(as_user(migrated, limited_role))
    query(migrated, f"GRANT SELECT ON queue_schema_version TO {limited_role}")
    assert looked(as_user(migrated, limited_role))


@pytest.mark.slow
@pytest.mark.parametrize(
    "change",
    [
        "DROP TABLE schedules",
        "ALTER TABLE machines SET SCHEMA elsewhere",
        "DELETE FROM queue_schema_version",
        "INSERT INTO queue_schema_version VALUES ('0012')",
        "UPDATE queue_schema_version SET version_num = '9999'",
        "DROP TABLE queue_schema_version; CREATE TABLE queue_schema_version (version int)",
    ],
)
def test_what_is_not_whole_is_left_to_alembic(migrated: str, change: str) -> None:
    """A lost table, no row, two rows, one of a later version, a hand-made ledger: it says no to all."""
    query(migrated, f"CREATE SCHEMA elsewhere; {change}")
    assert not looked(migrated)


def test_an_older_schema_is_left_to_alembic(empty: str) -> None:
    """Empty, then behind, then at the head."""
    assert not looked(empty)
    migrations.upgrade(empty, chains=[engine_chain()], revision="0013")
    assert not looked(empty)
    bootstrap(empty)
    assert looked(empty)


@pytest.mark.parametrize("role", [("worker", "--queue", "cpu", "--drain"), ("orchestrator", "--once")])
def test_a_role_starts_without_what_migrations_need(migrated: str, role: tuple[str, ...]) -> None:
    """On a schema at the head a role loads neither Alembic nor what checks documents or exports telemetry."""
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "queue_workflows", *role],
        env=qwf_environment(QWF_DB_URL=migrated),
        capture_output=True,
        text=True,
        timeout=150,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    loaded = {line.rpartition("|")[2].strip().partition(".")[0] for line in done.stderr.splitlines()}
    assert "psycopg" in loaded
    assert not NOT_FOR_A_START & loaded
