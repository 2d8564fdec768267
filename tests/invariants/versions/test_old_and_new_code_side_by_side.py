"""Two versions of an app at work, a revision of its schema between them: nothing fails, all is done."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psycopg
import pytest
from support.connections.kept import own_connection
from support.processes.commands import qwf_here
from support.processes.workers import running_orchestrator, running_worker, until
from support.rows.jobs import CLEAR_WITH_WORKERS

from queue_workflows import NewIngestJob, db, start_run
from queue_workflows.repositories import HeartbeatRepository, IngestJobRepository

OLD, NEW = "support.versions.app_one", "support.versions.app_two"
REVISION = '''
revision, down_revision, branch_labels, depends_on = "{revision}", {before}, None, None


def upgrade() -> None:
    from alembic import op

    op.execute("""{up}""")


def downgrade() -> None:
    raise NotImplementedError
'''
THINGS = "CREATE TABLE app_things (name text PRIMARY KEY); INSERT INTO app_things VALUES ('ball'), ('kite')"
COLOURS = "ALTER TABLE app_things ADD COLUMN colour text NOT NULL DEFAULT 'red'"
TABLES = "DROP TABLE IF EXISTS app_things, app_schema_version"


@pytest.fixture
def conn(qwf_dsn: str) -> Iterator[psycopg.Connection]:
    with own_connection(qwf_dsn) as connection:
        connection.execute(CLEAR_WITH_WORKERS)
        connection.execute(TABLES)
        yield connection
        connection.execute(TABLES)


def migrate(dsn: str, versions: Path, revision: str, before: str | None, up: str) -> None:
    """Add a revision to the app's chain, and bring the database there."""
    text = REVISION.format(revision=revision, before=before and repr(before), up=up)
    (versions / f"{revision}_app.py").write_text(text)
    db.bootstrap(dsn, migrations_dir=versions, version_table="app_schema_version")


def enqueue(conn: psycopg.Connection, count: int, *tasks: str) -> None:
    """Jobs of these tasks, mixed."""
    jobs = [
        NewIngestJob(task_name=task, queue="fetch", reason="ball" if task == "added" else None)
        for _ in range(count)
        for task in tasks
    ]
    IngestJobRepository(conn).enqueue_many(jobs)


def start(conn: psycopg.Connection, count: int, *modules: str) -> None:
    """Runs with a node that each version knows, and behind it one of these."""
    for _ in range(count):
        for module in modules:
            nodes = [{"id": "a", "module": "both"}, {"id": "b", "module": module, "depends_on": ["a"]}]
            start_run({"name": "film", "nodes": nodes}, conn=conn)


def is_all_done(conn: psycopg.Connection) -> bool:
    sql = (
        "SELECT (SELECT count(*) FROM ingest_jobs WHERE status <> 'completed'),"
        " (SELECT count(*) FROM workflow_runs WHERE status <> 'completed')"
    )
    return conn.execute(sql).fetchone() == (0, 0)


def done(conn: psycopg.Connection, table: str, name: str, result: str) -> dict[tuple[Any, ...], int]:
    """How many jobs of each name each version did."""
    sql = f"SELECT {name}, {result} ->> 'app', count(*) FROM {table} GROUP BY 1, 2"
    return {(one, version): count for one, version, count in conn.execute(sql)}


@pytest.mark.slow
def test_a_deploy_under_load_fails_nothing(qwf_dsn: str, conn: psycopg.Connection, tmp_path: Path) -> None:
    """Old workers go on while the schema moves and new ones come; then they are drained, and end."""
    migrate(qwf_dsn, tmp_path, "0001", None, THINGS)
    with ExitStack() as deployed:

        def worker(app: str, host: str, *options: str) -> Any:
            return deployed.enter_context(running_worker(qwf_dsn, *options, QWF_APP=app, QWF_HOST_LABEL=host))

        deployed.enter_context(running_orchestrator(qwf_dsn, QWF_APP=OLD))
        old = [worker(OLD, "one", "--concurrency", "4"), worker(OLD, "one", "--queue", "cpu")]
        enqueue(conn, 100, "both", "dropped")
        start(conn, 10, "both", "dropped")
        migrate(qwf_dsn, tmp_path, "0002", "0001", COLOURS)
        # A producer of the new version comes before its workers.
        enqueue(conn, 50, "added", "both")
        start(conn, 5, "added")
        worker(NEW, "two", "--concurrency", "4")
        worker(NEW, "two", "--queue", "cpu")
        enqueue(conn, 100, "both", "dropped", "added")
        start(conn, 10, "both", "dropped", "added")
        until(lambda: is_all_done(conn), within_s=240)
        enqueue(conn, 50, "both", "added")
        said = qwf_here("--db", qwf_dsn, "workers", "drain", "one", "--wait").stdout
        assert said.splitlines()[-1].startswith("one is empty")
        held = "SELECT count(*) FROM ingest_jobs WHERE status = 'running' AND claimed_by LIKE 'one:%'"
        assert conn.execute(held).fetchone() == (0,)
        for process in old:
            process.terminate()
            assert process.wait(150) == 0
        start(conn, 5, "both", "added")
        until(lambda: is_all_done(conn), within_s=240)
        assert {beat.host_label for beat in HeartbeatRepository(conn).list()} == {"two"}

    for table, name, result in (
        ("ingest_jobs", "task_name", "result"),
        ("workflow_node_jobs", "node_module", "context_delta"),
    ):
        counts = f"SELECT sum(failures), sum(crash_count), bool_or(suspect) FROM {table}"
        assert conn.execute(counts).fetchone() == (0, 0, False)
        by_version = done(conn, table, name, result)
        assert {version for one, version in by_version if one == "dropped"} == {"1.8"}
        assert {version for one, version in by_version if one == "added"} == {"1.9"}
    colours = "SELECT DISTINCT result ->> 'colour' FROM ingest_jobs WHERE task_name = 'added'"
    assert conn.execute(colours).fetchall() == [("red",)]
    # Each worker met the task that it lacks once, with as much as it claims at a time.
    met = "SELECT count(*) FROM ingest_jobs WHERE attempt > 1"
    (again,) = conn.execute(met).fetchone() or (None,)
    assert again is not None
    assert again < 150
