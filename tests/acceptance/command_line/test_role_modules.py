"""Roles as modules: `python -m queue_workflows.claim_worker`, and `main` for a process that wired itself."""

from __future__ import annotations

import subprocess
import sys

import psycopg
import pytest
from support.processes.workers import worker_environment

from queue_workflows.repositories import IngestJobRepository

WIRED = """
from queue_workflows import claim_worker, ingest_task

@ingest_task("double", queue="fetch")
def double(reason, args):
    return args["n"] * 2

claim_worker.main(["--queue", "fetch", "--drain"])
"""


@pytest.mark.parametrize(
    "command",
    [
        ("orchestrator", "--once"),
        ("claim_worker", "--queue", "fetch", "--drain"),
        ("scheduler", "--once"),
    ],
    ids=" ".join,
)
def test_each_role_is_a_module_too(qwf_dsn: str, command: tuple[str, ...]) -> None:
    """With the options, and the exit status, of the command that it stands for."""
    module, *options = command
    done = subprocess.run(
        [sys.executable, "-m", f"queue_workflows.{module}", *options],
        env=worker_environment(qwf_dsn),
        capture_output=True,
        text=True,
        timeout=150,
    )
    assert done.returncode == 0, done.stderr
    wrong = subprocess.run(
        [sys.executable, "-m", f"queue_workflows.{module}", "--no-such-option"],
        capture_output=True,
        text=True,
        timeout=150,
    )
    assert wrong.returncode == 2
    assert "--no-such-option" in wrong.stderr


def test_a_process_that_wired_itself_becomes_a_worker(qwf_dsn: str) -> None:
    """It needs no module of its own that `--app` would name."""
    with psycopg.connect(qwf_dsn, autocommit=True) as connection:
        jobs = IngestJobRepository(connection)
        job = jobs.enqueue("double", queue="fetch", args={"n": 21}).id
        env = worker_environment(qwf_dsn)
        del env["QWF_APP"]
        done = subprocess.run(
            [sys.executable, "-c", WIRED], env=env, capture_output=True, text=True, timeout=150
        )
        assert done.returncode == 0, done.stderr
        found = jobs.fetch(job)
        assert found is not None
        assert (found.status, found.result) == ("completed", 42)
