"""The wheel, installed in a clean environment far from the checkout, does all that a host app needs of it.

There the host app migrates both chains as the migrator, and makes the round trip as least-privilege roles.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from support.processes.environments import environment_without
from support.processes.pythons import SUPPORTED, find_python
from support.rows.revisions import HEAD
from support.rows.roles import Roles, least_privilege

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

ROOT = Path(__file__).resolve().parents[3]
VERSIONS = ROOT / "alembic" / "engine" / "versions"
HOST_APP = ROOT / "tests" / "support" / "host_app"
PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", "--quiet")
# What is imported is compiled then; most of it never is.
INSTALL = ("install", "--no-compile")
INSTALL_TIMEOUT_S = 300

# A step of the host app each, in a process of its own, as the user of its own that QWF_DB_URL names.
ENQUEUE = """
import json, os, psycopg
from sqlalchemy import create_engine
from sqlalchemy.orm import Session
from queue_workflows import RunRepository, enqueue_ingest_job
from support.host_app.models import Film, Studio

engine = create_engine("postgresql+psycopg://", creator=lambda: psycopg.connect(os.environ["QWF_DB_URL"]))

def order(session, title):
    run = RunRepository(session).insert("film", spec={"name": "film"}, spec_hash="x", dedupe_key=title)
    studio = Studio(name=title)
    session.add(studio)
    session.flush()
    session.add(Film(title=title, studio_id=studio.id, run_id=run.id))
    session.flush()
    return enqueue_ingest_job("render", queue="fetch", args={"title": title}, dedupe_key=title, conn=session)

with Session(engine) as session:
    gone = order(session, "rolled back")
    session.rollback()
with Session(engine) as session, session.begin():
    kept = order(session, "kept")
    again = enqueue_ingest_job("render", queue="fetch", dedupe_key="kept", conn=session)
print(json.dumps({"kept": kept, "again": again, "gone": gone}))
"""
WORK = """
import json
from sqlalchemy.orm import Session
from queue_workflows import IngestJobRepository, LeaseLost
from queue_workflows.db.connections.engine import Database

with Database.open(role="worker") as database:
    with Session(database.engine) as session, session.begin():
        jobs = IngestJobRepository(session).claim("fetch", worker_id="far:fetch:1", lease_s=30, limit=10)
    for job in jobs:
        with Session(database.engine) as session, session.begin():
            IngestJobRepository(session).complete(job, {"frames": len(job.args["title"])})
    with Session(database.engine) as session:
        try:
            IngestJobRepository(session).complete(jobs[0], "again")
        except LeaseLost:
            print(json.dumps([job.id for job in jobs]))
"""
LOOK = """
import json
from queue_workflows import IngestJobRepository
from queue_workflows.db.connections.engine import Database

with Database.open(role="reader") as database, database.connect() as connection:
    rows = IngestJobRepository(connection).list(queue="fetch")
    films = connection.execute("SELECT f.title, s.name FROM films f JOIN studios s ON s.id = f.studio_id")
    print(json.dumps({
        "jobs": [[row.id, row.status, row.attempt, row.claimed_by, row.result] for row in rows],
        "films": films.fetchall(),
    }))
"""
WAIT = "from queue_workflows import db; print(db.wait_for_schema(13, timeout=10))"
WHERE = """
import sys, queue_workflows, queue_workflows.db.migrations.chain.chains as chains
print(queue_workflows.__file__)
print(chains.chain_directory())
print([entry for entry in sys.path if entry.startswith(sys.argv[1])])
"""
HOST_GRANTS = """
GRANT SELECT, INSERT ON studios, films TO {producer};
GRANT USAGE ON ALL SEQUENCES IN SCHEMA public TO {producer};
GRANT SELECT ON studios, films TO {reader};
"""


class Installed:
    """The wheel in a virtual environment, used from a directory that has only the host app in it."""

    def __init__(self, base: Path, version: str) -> None:
        self.version = version
        self.venv = base / "venv"
        self.cwd = base / "elsewhere"
        self.python = str(self.venv / "bin" / "python")
        self.qwf = str(self.venv / "bin" / "qwf")
        shutil.copytree(HOST_APP, self.cwd / "support" / "host_app")
        (self.cwd / "versions").mkdir()

    def run(self, *command: str, dsn: str | None = None, status: int = 0) -> str:
        """A command as somebody runs it who has no checkout; its output."""
        hidden = ("QWF_", "AI_LEADS_", "QUEUE_WORKFLOWS_", "PG", "PYTHON", "PYTEST_", "VIRTUAL_ENV")
        env = environment_without(*hidden)
        env["HOST_APP_VERSIONS"] = str(self.cwd / "versions")
        if dsn is not None:
            env["QWF_DB_URL"] = dsn
        done = subprocess.run(
            command,
            cwd=self.cwd,
            env=env,
            capture_output=True,
            text=True,
            timeout=INSTALL_TIMEOUT_S,
            check=False,
        )
        assert done.returncode == status, f"{command}: {done.stdout}{done.stderr}"
        return done.stdout

    def pip(self, *command: str) -> None:
        """Our pip, which puts packages there by the environment's own Python."""
        self.run(*PIP, "--python", self.python, *command)

    def host(self, *command: str, dsn: str, status: int = 0) -> str:
        """`qwf` with the host app's wiring."""
        return self.run(self.qwf, "--app", "support.host_app.wiring", *command, dsn=dsn, status=status)


@pytest.fixture(scope="module")
def distributions(tmp_path_factory) -> tuple[Path, Path]:
    """The source distribution of this checkout, and the wheel that is built from that."""
    target = tmp_path_factory.mktemp("dist")
    built = subprocess.run(
        [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(target), str(ROOT)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert built.returncode == 0, built.stdout + built.stderr
    (wheel,) = target.glob("*.whl")
    (source,) = target.glob("*.tar.gz")
    return source, wheel


# The oldest has the oldest SQLAlchemy; the newest, and what runs this, have the newest. What is between is by
# night, and on each change where CI runs the suite on it.
BY_DAY = {SUPPORTED[0], SUPPORTED[-1], f"{sys.version_info[0]}.{sys.version_info[1]}"}
each_python = pytest.mark.parametrize(
    "installed",
    [pytest.param(version, marks=() if version in BY_DAY else pytest.mark.nightly) for version in SUPPORTED],
    indirect=True,
)


@pytest.fixture(scope="module")
def installed(request, distributions, tmp_path_factory) -> Installed:
    """The wheel with its dependencies in a clean environment of a supported Python."""
    python = find_python(request.param)
    if python is None:
        pytest.skip(f"no Python {request.param} here: name one in QWF_TEST_PYTHONS")
    here = Installed(tmp_path_factory.mktemp(f"python{request.param}-"), request.param)
    # Without a pip of its own: ours serves, which takes half as long.
    here.run(python, "-m", "venv", "--without-pip", str(here.venv))
    wheel = str(distributions[1])
    here.pip(*INSTALL, "--no-deps", "--no-index", wheel)
    _install_dependencies(here, wheel)
    return here


def _install_dependencies(here: Installed, wheel: str) -> None:
    """The locked ones; without a registry our own environment's, if its Python is of the same version.

    With the oldest Python the oldest SQLAlchemy is installed that is taken.
    """
    pins = here.cwd.parent / "pins.txt"
    lock = (ROOT / "requirements.lock").read_text(encoding="utf-8")
    locked = re.findall(r"^[\w.\[\]-]+==[^ \\;]+(?:\s*;[^\\\n]+)?", lock, re.M)
    if here.version == "3.11":
        project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
        (least,) = re.findall(r'"sqlalchemy\[asyncio\]>=([\d.]+)"', project)
        locked = [pin for pin in locked if not pin.lower().startswith("sqlalchemy==")]
        locked.append(f"sqlalchemy=={least}")
    pins.write_text("\n".join(locked))
    command = (*INSTALL, "--only-binary=:all:", "--retries", "1", "-c", str(pins))
    try:
        here.pip(*command, wheel)
    except AssertionError as failure:
        if _registry_answers(here):
            raise
        if here.version != f"{sys.version_info.major}.{sys.version_info.minor}":
            pytest.skip(f"Python {here.version}: no package registry answers, so nothing can be installed")
        _borrow(here)
        here.run(here.python, "-c", "import sqlalchemy, alembic, psycopg, pydantic_settings, click, psutil")
        print(f"borrowed this environment's packages: {str(failure).splitlines()[-1]}")


def _registry_answers(here: Installed) -> bool:
    probe = (
        "download",
        "--no-deps",
        "--no-cache-dir",
        "--retries",
        "1",
        "-d",
        str(here.venv / "probe"),
        "click",
    )
    try:
        here.pip(*probe)
    except AssertionError:
        return False
    return True


def _borrow(here: Installed) -> None:
    (site,) = (here.venv / "lib").glob("python*/site-packages")
    (site / "borrowed.pth").write_text(f"{Path(psycopg.__file__).parent.parent}\n")


@pytest.fixture(scope="module")
def roles(installed, qwf_server, qwf_role_suffix) -> Iterator[Roles]:
    """An empty database with the roles of the docs."""
    with qwf_server.database(False) as dsn, least_privilege(dsn, qwf_role_suffix) as roles:
        yield roles


def test_the_wheel_carries_what_it_must_and_nothing_else(distributions):
    """Types, both chains' environment and every revision; no tests, no docs, no byte code."""
    with zipfile.ZipFile(distributions[1]) as wheel:
        names = set(wheel.namelist())
        entry_points = wheel.read(next(n for n in names if n.endswith("entry_points.txt"))).decode()
    revisions = {path.name for path in VERSIONS.glob("*.py")}
    assert len(revisions) >= 13
    assert {f"queue_workflows/_alembic/engine/versions/{name}" for name in revisions} <= names
    assert {
        "queue_workflows/py.typed",
        "queue_workflows/_alembic/env.py",
        "queue_workflows/_alembic/script.py.mako",
        "queue_workflows/demo/film.yaml",
    } <= names
    tops = {name.split("/")[0] for name in names}
    assert tops == {"queue_workflows", next(top for top in tops if top.endswith(".dist-info"))}
    assert not [name for name in names if "__pycache__" in name or "/tests/" in name]
    for script in (
        "qwf =",
        "queue-orchestrator =",
        "queue-claim-worker =",
        "queue-scheduler =",
        "[pytest11]",
    ):
        assert script in entry_points


def test_the_source_distribution_is_the_checkout(distributions):
    """It has the tests, the docs with their scripts, and what builds it; nothing that git ignores."""
    with tarfile.open(distributions[0]) as source:
        names = {name.partition("/")[2] for name in source.getnames()}
    assert {
        "README.md",
        "LICENSE",
        "hatch_build.py",
        "docs/deploy/grants.sql",
        "tests/acceptance/product/test_wheel.py",
    } <= names
    assert not [name for name in names if re.match(r"\.(venv|qwf|git|mypy_cache)(/|$)", name)]


@each_python
def test_it_runs_from_the_wheel_alone(installed):
    """The command says its version; package and chain are the environment's, nothing is the checkout's."""
    version = re.search(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.M)
    assert version is not None
    assert installed.run(installed.qwf, "--version") == f"qwf {version[1]}\n"
    module, chain, checkout = installed.run(installed.python, "-c", WHERE, str(ROOT / "src")).splitlines()
    assert Path(module).is_relative_to(installed.venv)
    assert Path(chain) == Path(module).parent / "_alembic"
    assert checkout == "[]"


@each_python
def test_a_host_app_migrates_both_chains_and_makes_the_round_trip(installed, roles):
    """Migrator, producer, worker, reader and orchestrator do their parts as users without other rights."""
    migrator = roles.dsn("migrator")
    assert HEAD in installed.host("db", "upgrade", "--chain", "engine", dsn=migrator)
    roles.grant()
    made = installed.host(
        "db", "revision", "--chain", "host", "--autogenerate", "-m", "First tables", dsn=migrator
    )
    assert Path(made.strip()).parent == installed.cwd / "versions"
    installed.host("db", "upgrade", dsn=migrator)
    installed.host("db", "check", dsn=migrator)
    with roles.connect("migrator") as connection:
        names = {role: roles.name(role) for role in ("producer", "reader")}
        connection.execute(HOST_GRANTS.format(**names))

    assert installed.run(installed.python, "-c", WAIT, dsn=roles.dsn("orchestrator")).strip() == HEAD
    told = json.loads(installed.run(installed.python, "-c", ENQUEUE, dsn=roles.dsn("producer")))
    (kept, created), (again, created_again) = told["kept"], told["again"]
    assert (created, created_again, again) == (True, False, kept)
    assert json.loads(installed.run(installed.python, "-c", WORK, dsn=roles.dsn("worker"))) == [kept]
    seen = json.loads(installed.run(installed.python, "-c", LOOK, dsn=roles.dsn("reader")))
    assert seen["jobs"] == [[kept, "completed", 1, "far:fetch:1", {"frames": 4}]]
    assert seen["films"] == [["kept", "kept"]]

    installed.host("db", "downgrade", "base", "--chain", "engine", "--yes", dsn=migrator, status=79)
    installed.host("db", "downgrade", "base", "--chain", "host", "--yes", dsn=migrator)
    installed.host("db", "downgrade", "base", "--chain", "engine", "--yes", dsn=migrator)
    with roles.connect("migrator") as connection:
        left = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'").fetchall()
    assert left == []
