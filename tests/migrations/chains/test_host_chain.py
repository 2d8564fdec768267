"""A host app's chain beside the engine's: neither sees the other, and the order between them is kept."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path

import pytest
import sqlalchemy as sa
from support.host_app.models import HostBase
from support.rows.revisions import BEFORE_HEAD, HEAD
from support.rows.schemas import catalog, leftovers, query, qwf_environment
from support.servers.postgres_versions import newest_version

from queue_workflows.config import HostMigrations, configure
from queue_workflows.db import bootstrap, downgrade, migrations
from queue_workflows.db.migrations.chain.chains import Chain, engine_chain, host_chain
from queue_workflows.errors import ConfigurationError, MigrationRefused, SchemaBehind, SchemaDrift

ENGINE = engine_chain()
TABLE = "film_schema_version"


def chain_in(versions: Path, metadata: sa.MetaData = HostBase.metadata) -> Chain:
    """The host app's chain with its revisions in a directory of the test's."""
    chain = host_chain(HostMigrations(versions, TABLE, metadata))
    assert chain
    return chain


@pytest.fixture
def host(migrated: str, tmp_path: Path) -> Chain:
    """The host chain at head: its first revision written by autogenerate."""
    chain = chain_in(tmp_path)
    migrations.revision(migrated, chain=chain, message="first tables", autogenerate=True)
    migrations.upgrade(migrated, chains=[chain])
    return chain


def test_autogenerate_writes_the_host_tables_and_nothing_of_ours(migrated: str, tmp_path: Path) -> None:
    """The first revision creates exactly the two tables, the foreign key to our table included."""
    path = migrations.revision(migrated, chain=chain_in(tmp_path), message="First tables", autogenerate=True)
    assert path == tmp_path / "0001_first_tables.py"
    text = path.read_text()
    made = {
        line.split('"')[1]
        for line in text.replace("'", '"').splitlines()
        if "op." in line and "_table(" in line
    }
    assert made == {"studios", "films"}
    assert "['run_id'], ['workflow_runs.id']" in text
    assert "queue_schema_version" not in text
    assert "ingest_jobs" not in text


@newest_version
def test_round_trip_of_the_host_chain(migrated: str, host: Chain) -> None:
    """Up, checked, down: the engine's schema never notices, and nothing of the host's is left."""
    assert migrations.check(migrated, chain=host).current == ("0001",)
    assert migrations.check(migrated, chain=ENGINE).status == "current"
    assert ("constraint", "films.films_run_id_fkey") in catalog(migrated)
    migrations.downgrade_chain(migrated, chain=host, revision="base", host=host)
    assert [name for name in leftovers(migrated) if "film" in name or "studio" in name] == []
    assert migrations.check(migrated, chain=ENGINE).status == "current"


def test_autogenerate_without_a_difference_writes_no_file(migrated: str, host: Chain) -> None:
    """An empty revision would only be noise."""
    assert migrations.revision(migrated, chain=host, message="nothing", autogenerate=True) is None
    assert [path.name for path in host.versions.glob("*.py")] == ["0001_first_tables.py"]


def test_a_dropped_host_model_is_still_proposed(migrated: str, host: Chain) -> None:
    """Not seeing the engine's tables must not blind the host to its own."""
    without = sa.MetaData()
    HostBase.metadata.tables["studios"].to_metadata(without)
    fewer = chain_in(host.versions, without)
    with pytest.raises(SchemaDrift) as caught:
        migrations.check(migrated, chain=fewer)
    assert caught.value.differences == ["table films is in the database, not in the models"]
    path = migrations.revision(migrated, chain=fewer, message="no films", autogenerate=True)
    assert path is not None
    assert "drop_table('films')" in path.read_text()


def test_engine_drift_is_none_of_the_hosts_business(migrated: str, host: Chain) -> None:
    """A damaged engine table fails the engine's check only; the host's chain does not propose to mend it."""
    query(
        migrated,
        "ALTER TABLE ingest_jobs DROP COLUMN limit_key CASCADE; DROP TABLE schedules; CREATE SEQUENCE mine",
    )
    assert migrations.check(migrated, chain=host).status == "current"
    with pytest.raises(SchemaDrift, match="limit_key"):
        migrations.check(migrated, chain=ENGINE)


def test_ledgers_are_nobodys_tables(migrated: str, host: Chain) -> None:
    """Version tables, also the one that an adoption keeps, are seen by neither chain."""
    query(migrated, "CREATE TABLE queue_schema_version_legacy (version integer)")
    assert migrations.check(migrated, chain=host).status == "current"
    assert migrations.check(migrated, chain=ENGINE).status == "current"


@pytest.mark.slow
def test_the_hosts_own_filter_hides_a_neighbours_table(migrated: str, host: Chain) -> None:
    """Where a host app shares its schema with others, `include_name` says what is its own."""
    query(migrated, "CREATE TABLE neighbour_things (id integer)")
    with pytest.raises(SchemaDrift, match="neighbour_things"):
        migrations.check(migrated, chain=host)

    def ours(name: str | None, kind: str, _parents: object) -> bool:
        return kind != "table" or not str(name).startswith("neighbour_")

    filtered = host_chain(HostMigrations(host.versions, TABLE, HostBase.metadata, ours))
    assert filtered
    assert migrations.check(migrated, chain=filtered).status == "current"


def test_host_tables_in_a_schema_of_their_own(migrated: str, tmp_path: Path) -> None:
    """A host app may keep its tables beside `public`, even under a name of ours."""
    query(migrated, "CREATE SCHEMA cinema")
    metadata = sa.MetaData(schema="cinema")
    sa.Table("schedules", metadata, sa.Column("id", sa.Integer, primary_key=True))
    chain = chain_in(tmp_path, metadata)
    migrations.revision(migrated, chain=chain, message="in a schema", autogenerate=True)
    migrations.upgrade(migrated, chains=[chain])
    assert ("table", "schedules") in catalog(migrated, "cinema")
    assert migrations.check(migrated, chain=chain).status == "current"
    assert migrations.check(migrated, chain=ENGINE).status == "current"


SHARED_BASE = """
import sys
from sqlalchemy.orm import Mapped, mapped_column
from queue_workflows.config import HostMigrations
from queue_workflows.db import bootstrap, migrations
from queue_workflows.db.migrations.chain.chains import engine_chain, host_chain
from queue_workflows.models import Base

class Poster(Base):
    __tablename__ = "posters"
    id: Mapped[int] = mapped_column(primary_key=True)

dsn, versions = sys.argv[1:]
chain = host_chain(HostMigrations(versions, "poster_version", Base.metadata))
path = migrations.revision(dsn, chain=chain, message="posters", autogenerate=True)
migrations.upgrade(dsn, chains=[chain])
print(path.read_text().count("create_table("))
print(migrations.check(dsn, chain=chain).status, migrations.check(dsn, chain=engine_chain()).status)
"""


@pytest.mark.slow
def test_a_host_may_map_its_tables_on_our_base(migrated: str, tmp_path: Path) -> None:
    """Sharing the metadata is not advised, and still neither chain takes the other's tables for its own."""
    ran = subprocess.run(
        [sys.executable, "-c", SHARED_BASE, migrated, str(tmp_path)],
        env=qwf_environment(),
        capture_output=True,
        text=True,
        timeout=150,
    )
    assert ran.stdout.splitlines() == ["1", "current current"], ran.stderr


def test_upgrade_runs_engine_then_host(empty: str, tmp_path: Path) -> None:
    """The host's foreign keys find our tables, because `all` brings ours first."""
    scratch = chain_in(tmp_path)
    bootstrap(empty)
    migrations.revision(empty, chain=scratch, message="first tables", autogenerate=True)
    downgrade(empty, chain="engine", revision="base")
    configure(host_migrations=HostMigrations(tmp_path, TABLE, HostBase.metadata))
    done = bootstrap(empty)
    assert [step.chain for step in done] == ["engine"] * (len(done) - 1) + ["host"]
    assert bootstrap(empty) == []


def test_bootstrap_takes_the_host_chain_by_name(empty: str, host_directory: Path) -> None:
    """`migrations_dir=` and `version_table=` do without `configure()`, and belong together."""
    done = bootstrap(empty, migrations_dir=host_directory, version_table="other_version")
    assert done[-1].chain == "host"
    assert query(empty, "SELECT version_num FROM other_version") == [("0001",)]
    with pytest.raises(ConfigurationError, match="belong together"):
        bootstrap(empty, migrations_dir=host_directory)


@pytest.fixture
def host_directory(tmp_path: Path) -> Path:
    """A directory with one hand-written host revision."""
    directory = tmp_path / "100% mine, truly"
    directory.mkdir()
    (directory / "0001_posters.py").write_text(
        '"""Posters."""\nfrom alembic import op\n'
        "revision = '0001'\ndown_revision = branch_labels = depends_on = None\n"
        "def upgrade(): op.execute(\"CREATE TABLE posters (id int, share text DEFAULT '100%')\")\n"
        "def downgrade(): op.execute('DROP TABLE posters')\n"
    )
    return directory


def test_the_engine_is_not_downgraded_under_a_live_host_chain(migrated: str, host: Chain) -> None:
    """The refusal says what to do; after doing it, the downgrade goes through."""
    before = catalog(migrated)
    for revision in ("base", "0012"):
        with pytest.raises(MigrationRefused, match=r"host chain stands at 0001.*--chain host base"):
            migrations.downgrade_chain(migrated, chain=ENGINE, revision=revision, host=host)
    assert catalog(migrated) == before
    migrations.downgrade_chain(migrated, chain=host, revision="base", host=host)
    migrations.downgrade_chain(migrated, chain=ENGINE, revision="base", host=host)
    assert leftovers(migrated) == []


def test_foreign_keys_of_tables_that_nobody_told_us_of_count_too(migrated: str, host: Chain) -> None:
    """Without the host app's wiring the database itself shows who refers to what would be dropped."""
    with pytest.raises(MigrationRefused, match=r"films \(films_run_id_fkey\) to workflow_runs"):
        downgrade(migrated, chain="engine", revision="base")
    assert migrations.check(migrated, chain=ENGINE).status == "current"
    # What drops no table that anybody refers to goes through.
    assert [step.revision for step in downgrade(migrated, chain="engine", revision=BEFORE_HEAD)] == [HEAD]


def test_a_host_revision_may_read_the_database(migrated: str, host_directory: Path) -> None:
    """A data migration asks on its way, which nothing of ours may turn into a dry run."""
    path = host_directory / "0002_count.py"
    path.write_text(
        '"""Count."""\nfrom alembic import op\nimport sqlalchemy as sa\n'
        "revision, down_revision = '0002', '0001'\nbranch_labels = depends_on = None\n"
        "def upgrade():\n"
        "    number = op.get_bind().execute(sa.text('SELECT count(*) FROM workflow_runs')).scalar_one()\n"
        "    op.execute(f'INSERT INTO posters (id) VALUES ({number})')\n"
        "def downgrade(): op.execute('DELETE FROM posters')\n"
    )
    chain = chain_in(host_directory)
    migrations.upgrade(migrated, chains=[chain])
    assert query(migrated, "SELECT id FROM posters") == [(0,)]
    migrations.downgrade_chain(migrated, chain=chain, revision="-1", host=chain)
    assert query(migrated, "SELECT id FROM posters") == []


def test_a_host_chain_keeps_its_way_of_naming(migrated: str, host_directory: Path) -> None:
    """Numbers go on as numbers; a chain with Alembic's random ids gets random ids."""
    chain = chain_in(host_directory)
    path = migrations.revision(migrated, chain=chain, message="next one")
    assert path is not None
    assert path.name == "0002_next_one.py"
    path.write_text(path.read_text().replace("'0002'", "'c0ffee'"))
    third = migrations.revision(migrated, chain=chain, message="third")
    assert third is not None
    assert not third.name.startswith("0003")
    assert [line.subject for line in migrations.history([chain])] == ["Posters", "next one", "third"]


def test_autogenerate_refuses_a_database_that_is_behind(empty: str, host_directory: Path) -> None:
    """What is missing would be mistaken for what is new."""
    bootstrap(empty)
    with pytest.raises(SchemaBehind, match="0001"):
        migrations.revision(empty, chain=chain_in(host_directory), message="too early", autogenerate=True)


def test_the_host_apps_logging_is_left_alone(empty: str) -> None:
    """Alembic's usual env.py would reconfigure the root logger of whoever calls it."""
    root, alembic = logging.getLogger(), logging.getLogger("alembic")
    quiet = logging.getLogger("a.host.logger")
    before = (root.level, list(root.handlers), alembic.level, list(alembic.handlers), quiet.disabled)
    bootstrap(empty)
    migrations.check(empty, chain=ENGINE)
    assert (root.level, list(root.handlers), alembic.level, list(alembic.handlers), quiet.disabled) == before
