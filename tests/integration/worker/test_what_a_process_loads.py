"""What a process imports is its start and its memory, and each worker pays for both."""

from __future__ import annotations

import subprocess
import sys
from typing import Final

import psycopg
import pytest
from support.processes.workers import worker_command, worker_environment
from support.rows.jobs import CLEAR

from queue_workflows.repositories import IngestJobRepository

APP: Final = {"QWF_APP": "support.tasks.light_tasks"}
# What a host app's worker needs that brings no package of its own; compiled parts and `.pth` files aside.
PACKAGES: Final = {
    "annotated_types",
    "click",
    "cython_runtime",
    "dotenv",
    "psutil",
    "psycopg",
    "psycopg_binary",
    "pydantic",
    "pydantic_core",
    "pydantic_settings",
    "queue_workflows",
    "support",
    "typing_extensions",
    "typing_inspection",
}
OF_OTHERS: Final = {
    "db.embedded",
    "db.migrations",
    "models.tables",
    "repositories.schedules",
    "workflow.document",
}
# Of our own; whoever adds one that every worker loads says so here.
MOST_OF_OURS: Final = 261


def packages_among(modules: set[str]) -> set[str]:
    """The packages that are no part of Python, and were not there before a program has begun."""
    begun = subprocess.run(
        [sys.executable, "-c", "import sys; print(*sys.modules)"], capture_output=True, text=True, timeout=60
    )
    ours = modules - set(begun.stdout.split()) - {"__main__", "__mp_main__"}
    return {name.partition(".")[0] for name in ours} - set(sys.stdlib_module_names)


@pytest.mark.parametrize("concurrency", ["1", "4"])
def test_a_worker_that_has_run_a_job_has_loaded_no_more_than_it_needs(qwf_dsn: str, concurrency: str) -> None:
    """Neither SQLAlchemy nor what belongs to orchestrators, schedulers and the embedded server."""
    with psycopg.connect(qwf_dsn, autocommit=True) as connection:
        connection.execute(CLEAR)
        IngestJobRepository(connection).enqueue("loaded", queue="fetch")
        done = subprocess.run(
            worker_command("--drain", "--concurrency", concurrency),
            env=worker_environment(qwf_dsn, APP),
            capture_output=True,
            text=True,
            timeout=100,
        )
        assert (done.returncode, done.stderr) == (0, done.stderr), done.stderr[-2000:]
        ((modules,),) = connection.execute("SELECT result FROM ingest_jobs").fetchall()
    loaded = set(modules)
    begin = ("_", "psycopg_c")
    assert {each for each in packages_among(loaded) if not each.startswith(begin)} - PACKAGES == set()
    assert {f"queue_workflows.{name}" for name in OF_OTHERS} & loaded == set()
    assert sum(name.startswith("queue_workflows.") for name in loaded) <= MOST_OF_OURS


@pytest.mark.parametrize(
    "command",
    [
        ("orchestrator", "--once"),
        ("scheduler", "--once"),
        ("queue", "stats"),
        ("workers", "list"),
        ("limits", "list"),
    ],
    ids=lambda command: command[0],
)
def test_no_other_process_loads_sqlalchemy_for_itself(qwf_dsn: str, command: tuple[str, ...]) -> None:
    """A host app that uses it loads it, and so does a command that shows rows as models."""
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "queue_workflows", *command],
        env=worker_environment(qwf_dsn, APP),
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    loaded = {line.rpartition("|")[2].strip().partition(".")[0] for line in done.stderr.splitlines()}
    assert "psycopg" in loaded
    assert "sqlalchemy" not in loaded
