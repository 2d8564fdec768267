"""An orchestrator says that it is ready when the schema is right and it advances runs, and not before."""

from __future__ import annotations

import json
import re
import subprocess
import urllib.error
import urllib.request
from pathlib import Path

import psycopg
import pytest
from support.processes.workers import patiently, running_orchestrator
from support.rows.roles import least_privilege
from support.rows.runs import start

from queue_workflows import db
from queue_workflows.repositories import RunRepository

pytestmark = pytest.mark.usefixtures("cold_starts")

ONE = {"nodes": [{"id": "nap", "type": "wait", "seconds": 0}]}


def address(orchestrator: subprocess.Popen[str]) -> str:
    """Where it says that it answers."""
    assert orchestrator.stderr is not None
    while line := orchestrator.stderr.readline():
        if found := re.search(r"health: (http://127\.0\.0\.1:\d+)/live", line):
            return found[1]
    raise AssertionError("it did not say where it answers")


def asked(url: str) -> int:
    try:
        with urllib.request.urlopen(url, timeout=150) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as refused:
        return refused.code


@pytest.mark.slow
def test_without_the_right_to_migrate_it_waits(qwf_new_database, qwf_role_suffix, tmp_path: Path) -> None:
    """Live, not ready on an empty database; ready once somebody has migrated and granted, and it works."""
    file = tmp_path / "health"
    with least_privilege(qwf_new_database(False), qwf_role_suffix) as roles:
        options = ("--health", "0", "--health-file", str(file), "--schema-wait", "600")
        with running_orchestrator(roles.dsn("orchestrator"), *options) as orchestrator:
            url = address(orchestrator)
            patiently(file.exists)
            assert (asked(f"{url}/live"), asked(f"{url}/ready")) == (200, 503)
            assert json.loads(file.read_text())["state"] == "starting"
            db.bootstrap(roles.dsn("migrator"))
            roles.grant()
            patiently(lambda: asked(f"{url}/ready") == 200)
            with roles.connect("producer") as producer, roles.connect("reader") as reader:
                run_id = start(producer, ONE)
                patiently(lambda: RunRepository(reader).fetch(run_id).status == "completed")  # type: ignore[union-attr]
            orchestrator.terminate()
            assert orchestrator.wait(300) == 0
    assert not file.exists()


def test_with_it_it_migrates_and_begins(qwf_new_database) -> None:
    """An empty database is all that it needs."""
    dsn = qwf_new_database(False)
    with running_orchestrator(dsn, "--health", "0") as orchestrator:
        url = address(orchestrator)
        patiently(lambda: asked(f"{url}/ready") == 200)
        with psycopg.connect(dsn, autocommit=True) as connection:
            run_id = start(connection, ONE)
            patiently(lambda: RunRepository(connection).fetch(run_id).status == "completed")  # type: ignore[union-attr]


@pytest.mark.slow
def test_a_schema_ahead_of_it_ends_it(qwf_new_database) -> None:
    """It does not touch rows that it may misread: status 79."""
    dsn = qwf_new_database(True)
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("UPDATE queue_schema_version SET version_num = '9999'")
    with running_orchestrator(dsn) as orchestrator:
        assert orchestrator.wait(300) == 79
