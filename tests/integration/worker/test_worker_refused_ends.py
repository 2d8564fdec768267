"""A worker whose server refuses what it says of a job: the job bears that, the worker goes on."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest
from support.processes.workers import running_worker, until
from support.rows.jobs import jobs_of

from queue_workflows.repositories import IngestJobRepository


@pytest.fixture
def refusing(conn: psycopg.Connection) -> Iterator[None]:
    """A trigger of the host app's that lets no `note` become completed; its reason says by which SQLSTATE."""
    conn.execute("""
        CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
            RAISE EXCEPTION 'not like this' USING ERRCODE = NEW.reason;
        END $$;
        CREATE TRIGGER refuse BEFORE UPDATE ON ingest_jobs FOR EACH ROW
            WHEN (NEW.task_name = 'note' AND NEW.status = 'completed') EXECUTE FUNCTION refuse()
    """)
    yield
    conn.execute("DROP TRIGGER refuse ON ingest_jobs; DROP FUNCTION refuse()")


@pytest.mark.parametrize("drain", [True, False])
def test_last_words_longer_than_a_payload_are_stored(
    qwf_dsn: str, jobs: IngestJobRepository, drain: bool
) -> None:
    """Progress has a limit of its own: what `ctx.progress` took is written, also with the end of the job."""
    talk = jobs.enqueue("talks", queue="fetch", args={"size": 3000}).id
    options = ("--drain",) if drain else ()
    with running_worker(qwf_dsn, *options, QWF_PAYLOAD_MAX_BYTES="1024") as worker:
        until(lambda: jobs.fetch(talk).status == "completed")
        if drain:
            assert worker.wait(150) == 0
    row = jobs.fetch(talk)
    assert (row.crash_count, row.progress["message"]) == (0, "x" * 3000)


@pytest.mark.usefixtures("refusing")
@pytest.mark.parametrize(
    ("code", "becomes"),
    [
        ("22000", ("failed", 1)),
        ("23514", ("failed", 1)),
        ("XX000", ("scheduled", 0)),
        ("42501", ("scheduled", 0)),
    ],
)
def test_an_end_that_is_refused_ends_no_worker(
    qwf_dsn: str, jobs: IngestJobRepository, code: str, becomes: tuple[str, int]
) -> None:
    """Data that the server refuses fails the job for good; anything else puts it aside, uncounted."""
    refused = jobs.enqueue("note", reason=code, queue="fetch", priority=9).id
    other = jobs.enqueue("wait", queue="fetch", args={"s": 0}).id
    with running_worker(qwf_dsn, "--drain") as worker:
        assert worker.wait(150) == 0
    row = jobs.fetch(refused)
    assert (row.status, row.failures) == becomes
    assert (row.crash_count, row.attempt) == (0, 1)
    assert "not like this" in row.errors[-1]["message"]
    assert jobs.fetch(other).status == "completed"


@pytest.mark.slow
def test_a_run_that_cannot_be_read_ends_no_worker(qwf_dsn: str, conn: psycopg.Connection) -> None:
    """A node whose run the server does not show has not begun: it is put aside with the reason, uncounted."""
    wrapped = {"QWF_APP": "support.tasks.wrapped_tasks"}
    with jobs_of("node", qwf_dsn) as nodes:
        (refused,) = nodes.enqueue(node_module="echo")
        conn.execute("ALTER TABLE workflow_runs RENAME COLUMN parcel_id TO parcel_id_away")
        try:
            with running_worker(qwf_dsn, "--queue", "cpu", "--drain", **wrapped) as worker:
                assert worker.wait(150) == 0
        finally:
            conn.execute("ALTER TABLE workflow_runs RENAME COLUMN parcel_id_away TO parcel_id")
        assert nodes.seen(refused, "status", "failures", "crash_count", "attempt") == ("scheduled", 0, 0, 1)
        assert "parcel_id" in nodes.seen(refused, "errors")[0][-1]["message"]
        (shown,) = nodes.enqueue(node_module="echo")
        with running_worker(qwf_dsn, "--queue", "cpu", "--drain", **wrapped) as worker:
            assert worker.wait(150) == 0
        assert nodes.seen(shown, "status", "result") == ("completed", {"n": 0, "workflow": "film"})


def test_a_listener_that_is_refused_costs_no_job(
    qwf_dsn: str, conn: psycopg.Connection, jobs: IngestJobRepository
) -> None:
    """A worker that cannot take its advertisement back keeps the job that it has just claimed."""
    advertised = (
        "SELECT FROM pg_locks WHERE locktype = 'advisory' AND classid = 7714"
        " AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
    )
    with running_worker(qwf_dsn, "--max-jobs", "2") as worker:
        until(lambda: conn.execute(advertised).fetchone() is not None)
        # Without the triggers, which would miss the function as well: the worker finds the jobs by its poll.
        conn.execute("ALTER TABLE ingest_jobs DISABLE TRIGGER qwf_wake_waiting")
        conn.execute("ALTER FUNCTION qwf_wake_class() RENAME TO qwf_wake_class_away")
        try:
            with conn.transaction():
                conn.execute("SET LOCAL session_replication_role = replica")
                both = [jobs.enqueue("note", queue="fetch").id for _ in range(2)]
            assert worker.wait(150) == 0
        finally:
            conn.execute("ALTER FUNCTION qwf_wake_class_away() RENAME TO qwf_wake_class")
            conn.execute("ALTER TABLE ingest_jobs ENABLE TRIGGER qwf_wake_waiting")
    assert [(jobs.fetch(job).status, jobs.fetch(job).attempt) for job in both] == [("completed", 1)] * 2
