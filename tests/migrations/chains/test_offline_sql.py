"""`--sql`: scripts for those who run DDL by hand."""

from __future__ import annotations

import re
from pathlib import Path

import psycopg
import pytest
from support.rows.revisions import HEAD, REVISIONS
from support.rows.schemas import catalog, leftovers, query, qwf
from support.servers.postgres_versions import each_version, newest_version

from queue_workflows.db import bootstrap, migrations
from queue_workflows.db.migrations.chain.chains import Chain, engine_chain
from queue_workflows.errors import UnknownRevision

ENGINE = engine_chain()
# The revision from which on changes of tables are transactions of their own.
ONE_BY_ONE = "0032"
NOWHERE = "postgresql://nobody@127.0.0.1:1/none"


def run_script(dsn: str, script: str) -> None:
    """As psql with ON_ERROR_STOP does: what is no part of a transaction comes by itself."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        for part in re.split(r"^((?:CREATE|DROP) INDEX CONCURRENTLY [^;]+;)", script, flags=re.MULTILINE):
            connection.execute(part)


@pytest.mark.slow
@each_version
def test_the_script_makes_what_an_online_upgrade_makes(
    empty: str, at_head: dict[tuple[str, str], str]
) -> None:
    """Run by hand or by us, the schema is the same, and the next upgrade knows where it stands."""
    run_script(empty, migrations.offline_sql(ENGINE, direction="upgrade"))
    assert catalog(empty) == at_head
    assert bootstrap(empty) == []


@pytest.mark.slow
@newest_version
def test_a_part_of_the_way_and_the_way_back(empty: str) -> None:
    """FROM:TO begins where the database is, and a downgrade to base leaves nothing, as online."""
    before = leftovers(empty)
    migrations.upgrade(empty, chains=[ENGINE], revision="0005")
    run_script(empty, migrations.offline_sql(ENGINE, direction="upgrade", revision="0005:head"))
    assert migrations.check(empty, chain=ENGINE).status == "current"
    run_script(empty, migrations.offline_sql(ENGINE, direction="downgrade", revision=f"{HEAD}:0005"))
    assert query(empty, "SELECT version_num FROM queue_schema_version") == [("0005",)]
    run_script(empty, migrations.offline_sql(ENGINE, direction="downgrade", revision="0005:base"))
    assert leftovers(empty) == before


def test_each_revision_is_a_transaction(empty: str) -> None:
    """A script that fails in the middle leaves the last whole revision, as an online upgrade does.

    Those that build beside others are several, and those that take one table after the other.
    """
    script = migrations.offline_sql(ENGINE, direction="upgrade")
    _, *parts = script.split("-- Running upgrade")
    assert len(parts) == len(REVISIONS)
    whole = [part for part in parts[: int(ONE_BY_ONE) - 1] if "CONCURRENTLY" not in part]
    assert {part.count("COMMIT;") for part in whole} == {1}
    assert script.count("BEGIN;") == script.count("COMMIT;")
    query(empty, "CREATE TABLE schedules (mine integer)")
    with pytest.raises(psycopg.errors.DuplicateTable):
        run_script(empty, script)
    assert query(empty, "SELECT version_num FROM queue_schema_version") == [("0011",)]


@pytest.mark.slow
def test_it_needs_no_connection_and_is_the_same_every_time() -> None:
    """Two runs print the same bytes, with a database configured that nobody could reach."""
    runs = [qwf("db", "upgrade", "--sql", QWF_DB_URL=NOWHERE, PYTHONHASHSEED=seed) for seed in ("1", "2")]
    assert [run.returncode for run in runs] == [0, 0], runs[0].stderr
    assert runs[0].stdout == runs[1].stdout
    assert runs[0].stdout.startswith("-- queue_workflows: upgrade of the engine chain")
    assert runs[0].stderr == ""


@pytest.mark.slow
def test_both_chains_in_one_script(empty: str, tmp_path: Path) -> None:
    """`all` prints the engine's part first; percent signs arrive as they were written."""
    (tmp_path / "0001_posters.py").write_text(
        '"""Posters."""\nfrom alembic import op\n'
        "revision = '0001'\ndown_revision = branch_labels = depends_on = None\n"
        "def upgrade(): op.execute(\"CREATE TABLE posters (id int, share text DEFAULT '100%')\")\n"
        "def downgrade(): op.execute('DROP TABLE posters')\n"
    )
    run = qwf(
        "--app",
        "support.host_app.wiring",
        "db",
        "upgrade",
        "--sql",
        HOST_APP_VERSIONS=str(tmp_path),
        QWF_DB_URL=NOWHERE,
    )
    assert run.returncode == 0, run.stderr
    run_script(empty, run.stdout)
    query(empty, "INSERT INTO posters (id) VALUES (1)")
    assert query(empty, "SELECT share FROM posters") == [("100%",)]
    assert query(empty, "SELECT version_num FROM film_schema_version") == [("0001",)]


@pytest.mark.parametrize(
    ("direction", "revision"), [("upgrade", "0099"), ("upgrade", "0098:head"), ("downgrade", "base")]
)
def test_a_range_that_makes_no_sense_is_refused(direction: migrations.Direction, revision: str) -> None:
    """An unknown revision, or a downgrade that does not say from where, is a usage error."""
    with pytest.raises(UnknownRevision):
        migrations.offline_sql(ENGINE, direction=direction, revision=revision)


def test_only_the_chain_that_was_asked_for() -> None:
    """The engine's script has no word of a host's version table."""
    assert isinstance(ENGINE, Chain)
    assert "film_schema_version" not in migrations.offline_sql(ENGINE, direction="upgrade")
