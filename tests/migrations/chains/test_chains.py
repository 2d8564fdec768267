"""The chains as data: where they lie, what is theirs, what a name means."""

from __future__ import annotations

from pathlib import Path

import pytest
import sqlalchemy as sa
from support.rows.revisions import HEAD, REVISIONS

from queue_workflows.config import HostMigrations, configure
from queue_workflows.db import migrations, shipped_chain
from queue_workflows.db.migrations.chain.chains import engine_chain, host_chain, select_chains
from queue_workflows.db.migrations.chain.revisions import (
    check_target,
    find_revision,
    load_script,
    next_number,
)
from queue_workflows.db.migrations.chain.tables import engine_tables
from queue_workflows.db.migrations.differences import describe_differences
from queue_workflows.db.shipped_chain import chain_directory
from queue_workflows.errors import ConfigurationError, MigrationRefused, UnknownRevision
from queue_workflows.models import Base

SCRIPT = load_script(engine_chain())


def test_both_chains_share_the_directory_of_env_py() -> None:
    """One place for the environment, the template and the engine's revisions."""
    directory = chain_directory()
    assert (directory / "env.py").is_file()
    assert (directory / "script.py.mako").is_file()
    assert engine_chain().versions == directory / "engine" / "versions"


def test_an_installed_package_prefers_its_own_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a wheel the chains lie inside the package; a broken installation says so."""
    package = tmp_path / "lib" / "site-packages" / "queue_workflows"
    package.mkdir(parents=True)
    monkeypatch.setattr(shipped_chain, "__file__", str(package / "db" / "shipped_chain.py"))
    with pytest.raises(ConfigurationError, match="reinstall"):
        chain_directory()
    (package / "_alembic").mkdir()
    (package / "_alembic" / "env.py").touch()
    assert chain_directory() == package / "_alembic"
    with pytest.raises(MigrationRefused, match="part of the installed package"):
        migrations.revision(chain=engine_chain(), message="more")


def test_the_revisions_make_exactly_the_models_tables() -> None:
    """No model without a revision, no table without a model."""
    assert engine_tables() == set(Base.metadata.tables)


def test_all_means_engine_first_and_then_the_host_if_there_is_one(tmp_path: Path) -> None:
    """What is referred to comes before what refers."""
    assert [chain.name for chain in select_chains("all", None)] == ["engine"]
    configure(host_migrations=HostMigrations(tmp_path, "mine", sa.MetaData()))
    assert [chain.name for chain in select_chains("all", host_chain())] == ["engine", "host"]


def test_a_host_chain_must_be_configured_to_be_named() -> None:
    """The refusal says how."""
    with pytest.raises(ConfigurationError, match="host_migrations=HostMigrations"):
        select_chains("host", host_chain())
    with pytest.raises(ConfigurationError, match="no chain 'nonsense'"):
        select_chains("nonsense", None)


def test_the_version_table_of_the_engine_is_not_for_a_host(tmp_path: Path) -> None:
    """Two chains in one version table would undo each other."""
    with pytest.raises(ConfigurationError, match="queue_schema_version"):
        host_chain(migrations_dir=tmp_path, version_table="queue_schema_version")
    with pytest.raises(ConfigurationError, match="no directory"):
        host_chain(migrations_dir=tmp_path / "absent", version_table="mine")


@pytest.mark.parametrize(("name", "revision"), [(8, "0008"), ("0008", "0008"), (13, "0013"), (HEAD, HEAD)])
def test_a_number_names_a_revision(name: int | str, revision: str) -> None:
    """`ingest needs >= 8`."""
    assert find_revision(SCRIPT, name) == revision


@pytest.mark.parametrize("name", [0, 99, -1, "nonsense", "", "00", "8"])
def test_what_names_none_is_refused(name: int | str) -> None:
    """Also an ambiguous beginning, and a number without its zeros, which Alembic would take for nothing."""
    with pytest.raises(UnknownRevision, match=f"newest is {HEAD}"):
        find_revision(SCRIPT, name)


@pytest.mark.parametrize("target", ["head", "base", "+1", "-1", "0005", "0005+1"])
def test_targets_that_alembic_understands_pass(target: str) -> None:
    """Relative ones are judged where the database stands."""
    check_target(SCRIPT, target)


def test_numbering_goes_on_only_where_there_are_numbers(tmp_path: Path) -> None:
    """An empty chain begins with 0001."""
    assert next_number(SCRIPT) == f"{len(REVISIONS) + 1:04d}"
    empty = host_chain(migrations_dir=tmp_path, version_table="mine")
    assert empty
    assert next_number(load_script(empty)) == "0001"


def test_differences_read_as_sentences() -> None:
    """Alembic's tuples, also the nested ones and those of no kind we know."""
    table = sa.Table("films", sa.MetaData(), sa.Column("id", sa.Integer))
    assert describe_differences(
        [
            ("add_table", table),
            ("remove_column", None, "films", table.c.id),
            [("modify_nullable", None, "films", "id", {}, True, False)],
            ("add_table_comment", "films"),
        ]
    ) == [
        "table films is in the models, not in the database",
        "column films.id is in the database, not in the models",
        "column films.id: nullable is True, the models say False",
        "add_table_comment films",
    ]


def test_two_files_with_one_id_are_refused(tmp_path: Path) -> None:
    """Two branches that both wrote the next number: one of them would be lost without a word."""
    for name in ("ann", "bob"):
        (tmp_path / f"0001_{name}.py").write_text(
            f'"""{name}"""\nrevision = "0001"\ndown_revision = None\n\n\n'
            "def upgrade():\n    pass\n\n\ndef downgrade():\n    pass\n"
        )
    chain = host_chain(migrations_dir=tmp_path, version_table="mine")
    assert chain is not None
    with pytest.raises(
        ConfigurationError, match=r"revision 0001 is there twice: .*0001_ann.py and .*0001_bob.py"
    ):
        load_script(chain)
