"""The pytest plugin as a host app meets it: real runs of pytest, on real servers."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest
from psycopg import sql
from support.processes.embedded_users import processes_below, until
from support.processes.pytest_runs import run_pytest, start_pytest

from queue_workflows.host.locks.flock import try_lock
from queue_workflows.testing import runs
from queue_workflows.testing.choice import docker_host

pytestmark = pytest.mark.slow

WRITE_ONE = """
def test_write(qwf_conn):
    assert qwf_conn.execute("SELECT count(*) FROM ingest_jobs").fetchone() == (0,)
    qwf_conn.execute("CREATE TABLE mine AS SELECT current_database() AS name")
    qwf_conn.commit()

def test_read(qwf_conn, qwf_dsn):
    (name,) = qwf_conn.execute("SELECT name FROM mine").fetchone()
    assert f"/{name}?" in qwf_dsn
    assert name.endswith("_test")
"""

REPORT = """
import json, os, pathlib, psycopg, pytest

@pytest.mark.parametrize("n", range(4))
def test_report(n, qwf_server, qwf_new_database, qwf_role_suffix):
    with psycopg.connect(qwf_new_database(), autocommit=True) as connection:
        row = connection.execute("SELECT pg_postmaster_start_time()::text, current_database()").fetchone()
        closed = "SELECT datname FROM pg_database WHERE NOT datallowconn AND datname <> 'template0'"
        templates = [name for (name,) in connection.execute(closed)]
        connection.execute(f"CREATE ROLE tester_{n}_{qwf_role_suffix}")
    report = {"started": row[0], "name": row[1], "templates": templates, "suffix": qwf_role_suffix}
    pathlib.Path(f"{os.environ['PYTEST_XDIST_WORKER']}-{n}.json").write_text(json.dumps(report))
"""


@pytest.fixture
def other_server(qwf_server, qwf_new_database, qwf_role_suffix) -> Iterator[str]:
    """A named server for inner runs: this run's, as a role that may just make databases and roles."""
    role = f"inner_{qwf_role_suffix}"
    with psycopg.connect(qwf_new_database(template=False), autocommit=True) as admin:
        admin.execute(sql.SQL("CREATE ROLE {} LOGIN CREATEDB CREATEROLE").format(sql.Identifier(role)))
        yield qwf_server.dsn("precious").replace("postgres@", f"{role}@")
        admin.execute(sql.SQL("DROP ROLE {}").format(sql.Identifier(role)))


def names(dsn: str) -> tuple[set[str], set[str]]:
    """The databases and roles of a server."""
    with psycopg.connect(dsn, dbname="postgres") as connection:
        databases = {name for (name,) in connection.execute("SELECT datname FROM pg_database")}
        roles = {name for (name,) in connection.execute("SELECT rolname FROM pg_roles")}
    return databases, roles


def test_each_file_has_its_own_migrated_database(tmp_path: Path) -> None:
    """Files share nothing, tests of a file share its database, and the header says which server it was.

    Session, connection and engine reach one database, and what a test does not commit is gone after it. When
    pytest ends, its server has stopped and its directory is gone. QWF_LISTEN=off is about the application's
    connections: the schema is migrated all the same.
    """
    text = """
from sqlalchemy import text

def test_write(qwf_session, qwf_engine, qwf_conn, qwf_dsn):
    qwf_session.execute(text("CREATE TABLE gone (n int)"))
    assert qwf_session.execute(text("SHOW transaction_isolation")).scalar() == "read committed"
    with qwf_engine.connect() as connection:
        name = connection.execute(text("SELECT current_database()")).scalar()
    assert qwf_conn.execute("SELECT current_database()").fetchone() == (name,)
    print("DIRECTORY", qwf_dsn.split("host=")[1].split("/pg")[0])

def test_gone(qwf_conn):
    assert qwf_conn.execute("SELECT to_regclass('gone')").fetchone() == (None,)

def test_empty(qwf_new_database):
    import psycopg
    with psycopg.connect(qwf_new_database(template=False)) as connection:
        assert connection.execute("SELECT to_regclass('ingest_jobs')").fetchone() == (None,)
"""
    files = {"test_a.py": WRITE_ONE, "test_b.py": WRITE_ONE, "test_it.py": text}
    status, output = run_pytest(tmp_path, files, "-s", QWF_LISTEN="off")
    assert status == 0, output
    assert "7 passed" in output
    header = output.split("platform ", 1)[1].splitlines()[1]
    assert header.startswith("queue_workflows: PostgreSQL 18.")
    assert header.endswith(" embedded, from the wheel (testcontainers is disabled)")
    directory = Path(output.split("DIRECTORY ")[1].split()[0])
    assert directory.name.startswith("qwf-tests-")
    assert not directory.exists()
    assert processes_below(directory) == []


def test_workers_share_one_server_and_one_template(tmp_path: Path) -> None:
    """Under xdist there is one server and one template, names differ, and nothing is left afterwards."""
    status, output = run_pytest(tmp_path, {"test_it.py": REPORT}, "-n", "2", "--dist", "load")
    assert status == 0, output
    reports = {path.stem: json.loads(path.read_text()) for path in tmp_path.glob("*.json")}
    assert {stem.split("-")[0] for stem in reports} == {"gw0", "gw1"}
    assert len({report["started"] for report in reports.values()}) == 1
    assert len({tuple(report["templates"]) for report in reports.values()}) == 1
    assert len({report["name"] for report in reports.values()}) == 4
    assert all(report["name"].endswith("_test") for report in reports.values())
    assert len({report["suffix"] for report in reports.values()}) == 2


def test_a_run_without_database_tests_costs_nothing(tmp_path: Path) -> None:
    """A host app's other tests start no server and load no driver because of the plugin."""
    text = """
import sys, pathlib

def test_light():
    heavy = {"sqlalchemy", "psycopg", "alembic", "pydantic", "docker", "queue_workflows.testing.servers"}
    assert heavy & set(sys.modules) == set()
"""
    # Looked for in the run itself: beside it others make such directories, and remove them.
    watching = """
import sys

def saw(event, arguments):
    if event == "os.mkdir" and "qwf-tests-" in str(arguments[0]):
        raise RuntimeError("a directory of servers is made")

sys.addaudithook(saw)
"""
    status, output = run_pytest(tmp_path, {"conftest.py": watching, "test_it.py": text})
    assert status == 0, output


def test_a_named_server_keeps_what_it_has(tmp_path: Path, other_server: str) -> None:
    """On a named server only `*_test` databases are made, not the named one, and all is dropped."""
    before = names(other_server)
    status, output = run_pytest(
        tmp_path, {"test_a.py": WRITE_ONE, "test_it.py": REPORT}, "-n", "2", AI_LEADS_DB_URL=other_server
    )
    assert status == 0, output
    assert " from AI_LEADS_DB_URL, databases postgresql://" in output
    reports = [json.loads(path.read_text()) for path in tmp_path.glob("*.json")]
    assert {report["name"][:9] for report in reports} == {"precious_"}
    assert "precious" not in before[0]
    run = {report["name"].split("_qwft_")[1].split("_")[0] for report in reports}
    left = [name for group in names(other_server) for name in group if any(one in name for one in run)]
    assert left == []
    assert [name for name in before[0] if name not in names(other_server)[0] and "_qwft_" not in name] == []


def test_leftovers_of_dead_runs_are_swept(tmp_path: Path, other_server: str) -> None:
    """A run drops what a dead run left, but nothing of a living run, and no name that looks alike."""
    databases = ["a_qwft_0000abc_gw0_1_test", "b_qwft_0000abd_main_1_test", "c_qwft_0000abc_gw0_1"]
    with psycopg.connect(other_server, dbname="postgres", autocommit=True) as living:
        living.execute("SELECT pg_advisory_lock_shared(1903655540, %s)", (0x0000ABD,))
        for name in databases:
            living.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        living.execute("CREATE ROLE worker_qwft_0000abc_gw0")
        try:
            status, output = run_pytest(tmp_path, {"test_a.py": WRITE_ONE}, QWF_TEST_DB_URL=other_server)
            assert status == 0, output
            left, roles = names(other_server)
            assert set(databases) & left == set(databases[1:])
            assert "worker_qwft_0000abc_gw0" not in roles
        finally:
            for name in databases:
                living.execute(sql.SQL("DROP DATABASE IF EXISTS {}").format(sql.Identifier(name)))
            living.execute("DROP ROLE IF EXISTS worker_qwft_0000abc_gw0")


def test_a_killed_run_is_cleaned_up(tmp_path: Path) -> None:
    """After kill -9 of pytest its server stops by itself, and the next run removes its directory."""
    text = """
import pathlib, time

def test_hang(qwf_dsn):
    pathlib.Path("where").write_text(qwf_dsn.split("host=")[1].split("/pg")[0])
    time.sleep(600)
"""
    killed = start_pytest(tmp_path, {"test_hang.py": text})
    where = tmp_path / "where"
    until(lambda: where.exists() and where.read_text(), "the test hangs")
    directory = Path(where.read_text())
    assert processes_below(directory) != []
    os.kill(killed.pid, signal.SIGKILL)
    killed.communicate()
    until(lambda: processes_below(directory) == [], "the server stops by itself")
    assert directory.exists()
    status, output = run_pytest(tmp_path, {"test_a.py": WRITE_ONE}, "test_a.py")
    assert status == 0, output
    assert not directory.exists()


def test_without_a_server_only_its_tests_fail(tmp_path: Path) -> None:
    """With every server passed over, a test that needs one fails with the way out; others pass."""
    text = "def test_plain(): pass\ndef test_needs(qwf_dsn): pass\n"
    status, output = run_pytest(tmp_path, {"test_it.py": text}, AI_LEADS_DISABLE_EMBEDDED="1")
    assert status == 1
    assert "1 passed, 1 error" in output
    reason = "testcontainers is disabled; the embedded server is disabled"
    assert f"queue_workflows: no PostgreSQL ({reason}); set QWF_TEST_DB_URL, start Docker" in output
    assert f"there is no Postgres for the tests: {reason} — set QWF_TEST_DB_URL" in output
    assert "Traceback" not in output


def test_an_unreachable_server_is_not_replaced_by_another(tmp_path: Path) -> None:
    """Who names a server gets that one or an error: never, unnoticed, another. The password is not shown."""
    status, output = run_pytest(
        tmp_path, {"test_a.py": WRITE_ONE}, QWF_TEST_DB_URL="postgresql://me:s3cret@127.0.0.1:1/app"
    )
    assert status == 1
    assert (
        "queue_workflows: PostgreSQL from QWF_TEST_DB_URL, databases postgresql://me:***@127.0.0.1:1"
        in output
    )
    assert "2 errors" in output
    assert "no Postgres for this test: cannot use" in output
    assert "Traceback" not in output
    assert "s3cret" not in output


def test_a_named_server_is_left_alone_until_a_test_wants_it(tmp_path: Path) -> None:
    """Nobody connects to it in a run without tests of ours, nor at its end."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        address = f"postgresql://me@127.0.0.1:{listening.getsockname()[1]}/app"
        status, output = run_pytest(
            tmp_path, {"test_it.py": "def test_plain(): pass\n"}, QWF_TEST_DB_URL=address
        )
        listening.settimeout(0)
        with pytest.raises(BlockingIOError):
            listening.accept()
    assert status == 0, output
    assert "queue_workflows: PostgreSQL from QWF_TEST_DB_URL" in output


def test_a_server_that_goes_away_is_told_in_a_line(tmp_path: Path, other_server: str) -> None:
    """At the end of the run its databases cannot be dropped; the next run does that."""
    text = """
import os, psycopg

def test_it(qwf_server, qwf_dsn):
    with psycopg.connect(os.environ["SUPERUSER"], autocommit=True) as admin:
        admin.execute(f"ALTER ROLE {qwf_server.params['user']} CONNECTION LIMIT 0")
"""
    role = other_server.split("//")[1].split("@", maxsplit=1)[0]
    superuser = other_server.replace(role, "postgres").replace("precious", "postgres")
    status, output = run_pytest(
        tmp_path, {"test_it.py": text}, QWF_TEST_DB_URL=other_server, SUPERUSER=superuser
    )
    assert "the next run drops this one's databases: " in output
    assert "Traceback" not in output
    assert status == 0, output
    with psycopg.connect(superuser, autocommit=True) as admin:
        admin.execute(sql.SQL("ALTER ROLE {} CONNECTION LIMIT -1").format(sql.Identifier(role)))
    status, output = run_pytest(tmp_path, {"test_it.py": WRITE_ONE}, QWF_TEST_DB_URL=other_server)
    assert status == 0, output
    assert not [name for name in names(superuser)[0] if name.startswith("precious_")]


@pytest.mark.parametrize("is_gone", [False, True])
def test_a_directory_that_is_swept_before_it_is_locked_is_not_used(
    monkeypatch: pytest.MonkeyPatch, is_gone: bool
) -> None:
    """The sweeping run holds the lock, or has removed the directory: the new run takes another."""
    made: list[Path] = []

    def make(**where: Any) -> str:
        made.append(Path(tempfile.mkdtemp(**where)))
        if len(made) == 1:
            sweepers.append(try_lock(made[0] / "alive"))
            if is_gone:
                shutil.rmtree(made[0])
        return str(made[-1])

    sweepers: list[int | None] = []
    monkeypatch.setattr(runs, "tempfile", SimpleNamespace(mkdtemp=make, gettempdir=tempfile.gettempdir))
    with runs.new_run() as run:
        assert run.directory == made[1]
        assert (run.directory / "alive").exists()
    assert not made[1].exists()
    assert made[0].exists() is not is_gone
    assert sweepers[0] is not None
    os.close(sweepers[0])
    shutil.rmtree(made[0], ignore_errors=True)


def test_a_role_without_createdb_is_told(tmp_path: Path, other_server: str) -> None:
    """A role that may not make databases gets the one statement that helps."""
    role = other_server.split("//")[1].split("@", maxsplit=1)[0]
    with psycopg.connect(other_server.replace(role, "postgres"), dbname="postgres", autocommit=True) as admin:
        admin.execute(sql.SQL("ALTER ROLE {} NOCREATEDB").format(sql.Identifier(role)))
    status, output = run_pytest(tmp_path, {"test_a.py": WRITE_ONE}, QWF_TEST_DB_URL=other_server)
    assert status == 1
    assert f"ALTER ROLE {role} CREATEDB" in output


def test_in_a_container(tmp_path: Path) -> None:
    """Where Docker answers, the run's server is a container of the wanted version."""
    pytest.importorskip("testcontainers")
    if docker_host(os.environ) is None:
        pytest.skip("testcontainers: no Docker engine answers here")
    status, output = run_pytest(
        tmp_path,
        {"test_it.py": REPORT},
        *("-n", "2"),
        QWF_DISABLE_TESTCONTAINERS="0",
        QWF_TEST_PG_VERSION="15",
        DOCKER_HOST=docker_host(os.environ) or "",
    )
    assert status == 0, output
    assert "queue_workflows: PostgreSQL in a container, postgres:15" in output
