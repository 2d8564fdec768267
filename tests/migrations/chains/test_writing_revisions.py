"""`qwf db revision`, and files that people write by hand: what is broken is named, and breaks nothing."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest
import sqlalchemy as sa
from support.rows.schemas import catalog, query, qwf, qwf_environment

from queue_workflows.config import HostMigrations
from queue_workflows.db import bootstrap, migrations
from queue_workflows.db.migrations.chain.chains import Chain, host_chain
from queue_workflows.errors import ConfigurationError

pytestmark = pytest.mark.slow

HOST = ("--app", "support.host_app.wiring")
NOWHERE = "postgresql://nobody@127.0.0.1:1/none"
TABLE = "film_schema_version"


@pytest.fixture
def chain(tmp_path: Path) -> Chain:
    """A host chain with nothing in it yet."""
    return chain_in(tmp_path, sa.MetaData())


def chain_in(versions: Path, metadata: sa.MetaData) -> Chain:
    chain = host_chain(HostMigrations(versions, TABLE, metadata))
    assert chain
    return chain


def write(chain: Chain, name: str, *, down: str | None = None, body: str = "pass", more: str = "") -> Path:
    """A revision as a person writes it, named by the beginning of its file's name."""
    path = chain.versions / f"{name}.py"
    path.write_text(
        f'"""{name}."""\nfrom alembic import op\n{more}\n'
        f"revision, down_revision, depends_on = {name.partition('_')[0]!r}, {down!r}, None\n"
        f"def upgrade():\n    {body}\ndef downgrade():\n    pass\n"
    )
    return path


@pytest.mark.parametrize(
    ("message", "subject"),
    [
        (r"Paths like C:\new\x41", r"Paths like C:\new\x41"),
        ('Say """hello"""', 'Say """hello"""'),
        ('"quoted"', '"quoted"'),
        ("ends in a backslash \\", "ends in a backslash \\"),
        ("two\nlines", "two"),
        ("tab\tand \udcff a byte", "tab\tand \udcff a byte"),
        ("Größe in %", "Größe in %"),
    ],
)
def test_any_message_makes_a_file_that_parses(chain: Chain, message: str, subject: str) -> None:
    """What was said is the revision's subject, to the letter, and the chain can be read on."""
    path = migrations.revision(chain=chain, message=message)
    assert path is not None
    ast.parse(path.read_text(encoding="utf-8"))
    assert [line.subject for line in migrations.history([chain])] == [subject]


def test_what_is_written_is_formatted(migrated: str, tmp_path: Path) -> None:
    """A blank line before the ids, with and without imports, so that no formatter has anything to change."""
    metadata = sa.MetaData()
    sa.Table("posters", metadata, sa.Column("tags", sa.dialects.postgresql.JSONB))
    chain = chain_in(tmp_path, metadata)
    paths = [
        migrations.revision(migrated, chain=chain, message="Posters", autogenerate=True),
        migrations.revision(chain=chain, message="Empty"),
    ]
    texts = [path.read_text() for path in paths if path is not None]
    assert len(texts) == 2
    assert "import postgresql" in texts[0]
    assert all(re.search(r"import [^\n]+\n\nrevision = ", text) for text in texts), texts


class Unwritable(sa.types.UserDefinedType):
    """A type whose representation is no Python."""

    cache_ok = True

    def get_col_spec(self, **_: object) -> str:
        return "text"

    def __repr__(self) -> str:
        return "<no python>"


def test_what_cannot_be_read_back_is_not_left_behind(migrated: str, tmp_path: Path) -> None:
    """A file that does not parse would break every command after it; its line is told instead."""
    metadata = sa.MetaData()
    sa.Table("posters", metadata, sa.Column("odd", Unwritable()))
    chain = chain_in(tmp_path, metadata)
    with pytest.raises(ConfigurationError, match="<no python>"):
        migrations.revision(migrated, chain=chain, message="Odd", autogenerate=True)
    assert list(tmp_path.glob("*.py")) == []
    assert migrations.history([chain]) == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("revision = '0002\ndown_revision = None\n", "SyntaxError"),
        ("import not_there_at_all\n", "line 1: ModuleNotFoundError: No module named 'not_there_at_all'"),
        ("revision = '0002'\n\n1 / 0\n", "line 3: ZeroDivisionError"),
        ("import sys\nsys.exit(3)\n", "line 2: SystemExit: 3"),
        ("def upgrade(): pass\n", "Could not determine revision id"),
        ("revision = '0002'\n", "down_revision"),
        ("revision = 2\ndown_revision = '0001'\n", "TypeError"),
        ("revision = '0002'\ndown_revision = '0001'\n", "has no upgrade()"),
        (
            "revision = '0002'\ndown_revision = 'nil'\ndef upgrade(): pass\n",
            "follows nil, which is not there",
        ),
        ("revision = '0001'\ndown_revision = None\ndef upgrade(): pass\n", "revision 0001 is there twice"),
    ],
)
def test_a_broken_file_is_named(chain: Chain, text: str, said: str) -> None:
    """Exit code 78, the file, what is wrong with it, and no database needed to see it."""
    write(chain, "0001_fine")
    (chain.versions / "0002_broken.py").write_text(text)
    run = qwf(*HOST, "db", "upgrade", HOST_APP_VERSIONS=str(chain.versions), QWF_DB_URL=NOWHERE)
    assert run.returncode == 78, run.stderr
    assert len(run.stderr.splitlines()) == 1
    assert str(chain.versions / "0002_broken.py") in run.stderr
    assert said in run.stderr


@pytest.mark.parametrize(
    "circle", [("0003", None), ("0001", "0003")], ids=["depends on what is not there", "a circle"]
)
def test_revisions_that_make_no_chain_are_refused(chain: Chain, circle: tuple[str, str | None]) -> None:
    """A circle has no first revision."""
    down, other = circle
    write(chain, "0001_first", down=other)
    if other:
        write(chain, "0003_third", down=down)
    else:
        path = write(chain, "0002_second", down="0001")
        path.write_text(path.read_text().replace("'0001', None", f"'0001', {down!r}"))
    with pytest.raises(ConfigurationError, match="make no chain"):
        migrations.history([chain])


@pytest.mark.parametrize("direction", ["upgrade", "downgrade"])
def test_a_revision_that_raises_is_rolled_back_and_named(migrated: str, chain: Chain, direction: str) -> None:
    """Python's own errors in the middle of a revision: its subject, its file, its line."""
    write(chain, "0001_fine", body="op.execute('CREATE TABLE posters (id int)')")
    path = write(chain, "0002_fails", down="0001", body="op.execute('CREATE TABLE lost ()')")
    text = path.read_text().replace(
        f"def {direction}():\n    ", f"def {direction}():\n    undefined(7)\n    "
    )
    path.write_text(text)
    line = text.splitlines().index("    undefined(7)") + 1
    migrations.upgrade(migrated, chains=[chain], revision="0001" if direction == "upgrade" else "head")
    before = query(migrated, f"SELECT version_num FROM {TABLE}")
    go = {
        "upgrade": lambda: migrations.upgrade(migrated, chains=[chain]),
        "downgrade": lambda: migrations.downgrade_chain(migrated, chain=chain, revision="base", host=chain),
    }
    with pytest.raises(ConfigurationError) as caught:
        go[direction]()
    assert (
        f"host revision 0002 (0002_fails) failed and was rolled back: {path}, line {line}: NameError"
        in str(caught.value)
    )
    assert query(migrated, f"SELECT version_num FROM {TABLE}") == before


def test_a_way_back_that_nobody_wrote_is_said_so(migrated: str, chain: Chain) -> None:
    """A revision without downgrade() goes up, and refuses to be undone before anything is."""
    path = write(chain, "0001_one_way")
    path.write_text(path.read_text().partition("def downgrade")[0])
    migrations.upgrade(migrated, chains=[chain])
    with pytest.raises(ConfigurationError, match=r"no downgrade\(\).*0001_one_way"):
        migrations.downgrade_chain(migrated, chain=chain, revision="base", host=chain)


@pytest.fixture
def forked(chain: Chain) -> Chain:
    """Two branches in git, each with a revision of its own, merged without a word."""
    write(chain, "0001_first")
    write(chain, "0002_ann", down="0001", body="op.execute('CREATE TABLE ann ()')")
    write(chain, "0003_bob", down="0001", body="op.execute('CREATE TABLE bob ()')")
    return chain


def test_two_heads_are_refused_until_they_are_joined(migrated: str, forked: Chain) -> None:
    """By every command that would have to choose; the advice is a command, and after it all goes on."""
    where = {"HOST_APP_VERSIONS": str(forked.versions), "QWF_DB_URL": migrated}
    for refused in (
        ("upgrade",),
        ("upgrade", "--chain", "host", "--sql"),
        ("revision", "--chain", "host", "-m", "Third"),
    ):
        run = qwf(*HOST, "db", *refused, **where)
        assert run.returncode == 78, run.stderr
        assert "2 heads: 0002 (0002_ann.py), 0003 (0003_bob.py)" in run.stderr
        assert "`qwf db revision --chain host --merge`" in run.stderr
    with pytest.raises(ConfigurationError, match="--merge"):
        bootstrap(migrated, migrations_dir=forked.versions, version_table=TABLE)
    assert ("table", TABLE) not in catalog(migrated)
    joined = qwf(*HOST, "db", "revision", "--chain", "host", "--merge", **where)
    assert joined.stdout == f"{forked.versions}/0004_join_0002_and_0003.py\n", joined.stderr
    assert qwf(*HOST, "db", "upgrade", **where).stdout.splitlines()[-1] == "host 0004 Join 0002 and 0003 … ok"
    assert {("table", "ann"), ("table", "bob")} <= set(catalog(migrated))
    assert query(migrated, f"SELECT version_num FROM {TABLE}") == [("0004",)]
    again = qwf(*HOST, "db", "revision", "--chain", "host", "--merge", **where)
    assert (again.returncode, again.stdout) == (0, "nothing to do: the chain has one head\n")


def test_two_heads_may_be_applied_by_name(migrated: str, forked: Chain) -> None:
    """`heads` says that both are meant; joining them later finds both done."""
    migrations.upgrade(migrated, chains=[forked], revision="heads")
    (state,) = migrations.current(migrated, chains=[forked])
    assert (state.current, state.status) == (("0002", "0003"), "current")
    migrations.merge(chain=forked)
    assert [step.revision for step in migrations.upgrade(migrated, chains=[forked])] == ["0004"]


def test_labelled_branches_are_meant_to_stay_apart(migrated: str, chain: Chain) -> None:
    """Two heads with labels of their own are no accident, also where one depends on the other."""
    write(chain, "0001_first", more="branch_labels = ('ann',)")
    second = write(chain, "0002_second", more="branch_labels = ('bob',)")
    bootstrap(migrated, migrations_dir=chain.versions, version_table=TABLE)
    assert migrations.current(migrated, chains=[chain])[0].status == "current"
    third = write(chain, "0003_third", down="0002")
    third.write_text(third.read_text().replace("'0002', None", "'0002', '0001'"))
    assert second.exists()
    assert [step.revision for step in migrations.upgrade(migrated, chains=[chain])] == ["0003"]
    assert migrations.current(migrated, chains=[chain])[0].status == "current"
    assert migrations.upgrade(migrated, chains=[chain]) == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--merge", "--autogenerate"), "--merge only joins heads"),
        (("--merge", "-m", " "), "say what the revision is about"),
        (("--autogenerate",), "-m"),
    ],
)
def test_odd_ways_to_ask_for_a_revision(chain: Chain, arguments: tuple[str, ...], said: str) -> None:
    """Usage errors, and no file."""
    where = {"HOST_APP_VERSIONS": str(chain.versions), "QWF_DB_URL": NOWHERE}
    run = qwf(*HOST, "db", "revision", "--chain", "host", *arguments, **where)
    assert (run.returncode, said in run.stderr) == (2, True), run.stderr
    assert list(chain.versions.iterdir()) == []


def test_a_message_from_the_shell_in_any_bytes(chain: Chain) -> None:
    """A terminal in another encoding hands in what is no text; the file is text all the same."""
    ran = subprocess.run(
        [
            sys.executable,
            "-m",
            "queue_workflows",
            *HOST,
            "db",
            "revision",
            "--chain",
            "host",
            "-m",
            b"caf\xe9",
        ],
        env=qwf_environment(HOST_APP_VERSIONS=str(chain.versions), QWF_DB_URL=NOWHERE),
        capture_output=True,
        timeout=150,
    )
    assert ran.returncode == 0, ran.stderr
    (path,) = chain.versions.glob("*.py")
    ast.parse(path.read_text(encoding="utf-8"))
