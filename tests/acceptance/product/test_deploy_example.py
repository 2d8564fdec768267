"""The example that deploys servers: owners are killed, and the janitor ends what they left, nothing else."""

from __future__ import annotations

import os
import shlex
import sys
import urllib.request
from contextlib import suppress
from http.client import HTTPException
from pathlib import Path
from typing import Self
from urllib.error import URLError

import psutil
import psycopg
import pytest
from support.processes.programs import Running, environment
from support.processes.workers import patiently

from queue_workflows import RunRepository, load_document, start_run

EXAMPLE = Path(__file__).parents[3] / "docs" / "examples" / "deploy"
QWF = [sys.executable, "-m", "queue_workflows", "--app", "app"]


class Host:
    """A machine with the example's host app."""

    def __init__(self, place: Path, dsn: str) -> None:
        self.deployed = place / "deployed"
        self.env = {
            "DEPLOY_DIR": str(self.deployed),
            "QWF_LOCK_DIR": str(place / "locks"),
            "QWF_DATA_DIR": str(place / "data"),
            "QWF_DB_URL": dsn,
            "QWF_LEASE_S": "3",
            "PYTHONPATH": os.pathsep.join([environment()["PYTHONPATH"], str(EXAMPLE)]),
        }

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Servers outlive whoever deployed them, also a test that failed."""
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if str(self.deployed) in " ".join(process.cmdline()):
                    process.kill()

    def run(self, *command: str) -> Running:
        return Running([*command], env=self.env, stderr=None)

    def said(self, *command: str) -> str:
        """What a command says that ends with 0."""
        with self.run(*command) as running:
            assert running.process.stdout
            said = running.process.stdout.read()
            assert running.status() == 0, said
            return said

    def url(self, name: str) -> str | None:
        """Where the server of this name says it is."""
        told = self.deployed / name / ".url"
        return told.read_text() if told.exists() else None


def answer(url: str) -> str | None:
    """The page of a server; None if nobody answers, or not to the end."""
    try:
        with urllib.request.urlopen(url, timeout=150) as page:
            return str(page.read().decode())
    except (URLError, ConnectionError, HTTPException):
        return None


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_what_killed_owners_deployed_is_reaped_and_what_lives_is_left(qwf_new_database, tmp_path):
    """A worker and a harness are killed with SIGKILL; a third owner lives on, and then ends in order."""
    dsn = qwf_new_database()
    harness = (sys.executable, str(EXAMPLE / "harness.py"))
    with (
        Host(tmp_path, dsn) as host,
        psycopg.connect(dsn, autocommit=True) as conn,
        host.run(*QWF, "orchestrator"),
        host.run(*harness, "demo-green") as green,
        host.run(*harness, "demo-red") as red,
        host.run(*QWF, "worker", "--queue", "cpu") as worker,
    ):
        inputs = {"name": "demo-blue", "page": "<h1>blue</h1>", "seconds": 10_000}
        run = start_run(load_document(EXAMPLE / "try-out.yaml"), inputs, conn=conn)
        urls = {"demo-green": green.line(), "demo-red": red.line()}
        urls["demo-blue"] = patiently(lambda: host.url("demo-blue"))
        answered = tmp_path / "data" / "workspaces" / str(run.id) / "demo-blue.html"
        patiently(answered.exists)
        for owner in (red, worker):
            owner.process.kill()
            owner.status()
        assert [answer(urls[name]) for name in ("demo-red", "demo-blue")] == [
            "<h1>demo-red</h1>",
            "<h1>blue</h1>",
        ]
        said = host.said(*QWF, "janitor", "--once")
        deeds = {line.split()[1]: line.split()[2] for line in said.splitlines()[1:]}
        assert deeds == {"demo-blue": "reaped", "demo-green": "leave", "demo-red": "reaped"}
        assert {name: answer(url) for name, url in urls.items()} == {
            "demo-green": "<h1>demo-green</h1>",
            "demo-red": None,
            "demo-blue": None,
        }
        green.process.terminate()
        assert green.status() == 143
        assert answer(urls["demo-green"]) is None
        # What the killed worker was at is done by the next one, from the beginning.
        conn.execute(
            "UPDATE workflow_runs SET inputs = jsonb_set(inputs, '{seconds}', '0') WHERE id = %s", [run.id]
        )
        with host.run(*QWF, "worker", "--queue", "cpu"):
            ended = patiently(
                lambda: (found := RunRepository(conn).fetch(run.id)) and found.finished_at and found
            )
        assert ended.status == "completed"
        assert answered.read_text() == "<h1>blue</h1>"
        assert host.said(*QWF, "janitor", "--dry-run") == ""


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_what_a_killed_shell_had_started_ends_and_frees_its_name(qwf_new_database, tmp_path):
    """Nothing of the harness is left for a janitor, and the next one has the lock."""
    harness = (sys.executable, str(EXAMPLE / "harness.py"), "demo-white")
    with Host(tmp_path, qwf_new_database()) as host:
        with host.run("sh", "-c", shlex.join(harness) + "; true") as shell:
            url = shell.line()
            shell.process.kill()
            shell.process.wait(150)
            patiently(lambda: answer(url) is None)
        with host.run(*harness) as next_one:
            assert answer(next_one.line()) == "<h1>demo-white</h1>"
            next_one.process.terminate()
            assert next_one.status() == 143
        assert host.said(*QWF, "janitor", "--dry-run") == ""
