"""A verb without a connection: a transaction of its own on the configured database, which joins nothing."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict
from sqlalchemy.orm import Session
from support.processes.workers import running_worker

import queue_workflows as qwf
from queue_workflows import IngestJobRepository, NewIngestJob, UnusableConnection, ingest_task
from queue_workflows.config import reset_config
from queue_workflows.db.connections.own import close_own
from queue_workflows.errors import DatabaseUnreachable, SchemaError
from queue_workflows.testing import configured_database

DOCUMENT = {"name": "small", "nodes": [{"id": "ask", "type": "input"}]}


@ingest_task("connections.plain", queue="fetch")
def plain(reason: str | None) -> None:
    """A task."""


@pytest.fixture(autouse=True)
def configured(qwf_dsn: str) -> Iterator[None]:
    """The file's own database is the configured one."""
    with psycopg.connect(qwf_dsn) as connection:
        connection.execute("TRUNCATE ingest_jobs, workflow_runs CASCADE")
    qwf.configure(db_url=qwf_dsn)
    yield
    reset_config()
    close_own()


def tasks(dsn: str) -> list[str]:
    """What is committed."""
    with psycopg.connect(dsn) as connection:
        return [name for (name,) in connection.execute("SELECT task_name FROM ingest_jobs ORDER BY position")]


@pytest.mark.parametrize("concurrency", ["1", "4"])
def test_in_a_running_job_it_joins_nothing(qwf_dsn: str, concurrency: str) -> None:
    """What a job has enqueued stays though the job fails, sync or async, and runs."""
    for name in ("enqueues and fails", "enqueues and fails, async"):
        qwf.enqueue_ingest_job(name, queue="fetch", max_attempts=1)
    with running_worker(qwf_dsn, "--drain", "--concurrency", concurrency) as worker:
        assert worker.wait(150) == 0
    with psycopg.connect(qwf_dsn) as connection:
        rows = connection.execute("SELECT task_name, reason, status FROM ingest_jobs").fetchall()
    assert sorted(rows, key=str) == [
        ("enqueues and fails", None, "failed"),
        ("enqueues and fails, async", None, "failed"),
        ("note", "async", "completed"),
        ("note", "sync", "completed"),
    ]


def test_each_verb_commits_by_itself(qwf_dsn: str) -> None:
    """One, many and by task; a run is started, answered and cancelled."""
    assert qwf.enqueue_ingest_job("one", queue="fetch").created
    qwf.enqueue_many([NewIngestJob(task_name=name, queue="fetch") for name in ("a", "b")])
    plain.enqueue()
    assert tasks(qwf_dsn) == ["one", "a", "b", "connections.plain"]
    run = qwf.start_run(DOCUMENT)
    assert qwf.submit_input(run, "ask", {"ok": True}) > 0
    assert qwf.cancel_run(run) is True
    with pytest.raises(qwf.RunRefused):
        qwf.retry_run(run)


def test_awaited_they_commit_by_themselves_too(qwf_dsn: str) -> None:
    """Many callers at once share the pool."""

    async def scene() -> None:
        await asyncio.gather(*(qwf.aenqueue_ingest_job("one", queue="fetch") for _ in range(20)))
        await qwf.aenqueue_many([NewIngestJob(task_name="a", queue="fetch")])
        await plain.aenqueue()
        run = await qwf.astart_run(DOCUMENT)
        assert await qwf.acancel_run(run) is True

    asyncio.run(scene())
    assert sorted(tasks(qwf_dsn)) == ["a", "connections.plain", *["one"] * 20]


def test_it_joins_no_transaction_that_is_open(qwf_dsn: str, qwf_session: Session) -> None:
    """What is rolled back elsewhere takes nothing of it along."""
    IngestJobRepository(qwf_session).enqueue("theirs", queue="fetch")
    qwf.enqueue_ingest_job("ours", queue="fetch")
    qwf_session.rollback()
    assert tasks(qwf_dsn) == ["ours"]


def test_a_refused_call_leaves_nothing(qwf_dsn: str) -> None:
    """A node that is not there, after statements that were good."""
    run = qwf.start_run(DOCUMENT)
    with pytest.raises(qwf.UnknownNode):
        qwf.submit_input(run, "nobody", {})
    with pytest.raises(qwf.PayloadError):
        qwf.enqueue_many(
            [NewIngestJob(task_name="a", queue="fetch"), NewIngestJob(task_name="", queue="fetch")]
        )
    assert tasks(qwf_dsn) == []


def test_a_lost_server_session_is_replaced(qwf_dsn: str) -> None:
    """What ended in the pool is found out before anything is sent on it."""
    qwf.enqueue_ingest_job("before", queue="fetch")
    with psycopg.connect(qwf_dsn, autocommit=True) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
    qwf.enqueue_ingest_job("after", queue="fetch")
    assert tasks(qwf_dsn) == ["before", "after"]


def test_another_configuration_is_another_database(qwf_dsn: str, qwf_new_database: Any) -> None:
    """After `configure()` the next call goes where that says."""
    qwf.enqueue_ingest_job("here", queue="fetch")
    other = qwf_new_database()
    qwf.configure(db_url=other)
    qwf.enqueue_ingest_job("there", queue="fetch")
    assert (tasks(qwf_dsn), tasks(other)) == (["here"], ["there"])


def test_a_forked_child_has_a_pool_of_its_own(qwf_dsn: str) -> None:
    """It enqueues, and the parent goes on."""
    qwf.enqueue_ingest_job("parent", queue="fetch")
    child = os.fork()
    if child == 0:
        try:
            qwf.enqueue_ingest_job("child", queue="fetch")
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    qwf.enqueue_ingest_job("parent again", queue="fetch")
    assert tasks(qwf_dsn) == ["parent", "child", "parent again"]


def test_a_connection_of_connect_is_its_callers(qwf_dsn: str, qwf_new_database: Any) -> None:
    """What is wrong is said as of a connection that it has made, and it may throw away what was prepared."""
    with qwf.connect(autocommit=True) as connection:
        for _ in range(12):
            qwf.enqueue_ingest_job("kept", queue="fetch", conn=connection)
        connection.execute("DISCARD ALL")
        qwf.enqueue_ingest_job("discarded", queue="fetch", conn=connection)
    assert tasks(qwf_dsn) == [*["kept"] * 12, "discarded"]
    qwf.configure(db_url=qwf_new_database(template=False))
    with qwf.connect() as connection:
        with pytest.raises(SchemaError, match="run `qwf db upgrade`"):
            qwf.enqueue_ingest_job("t", queue="fetch", conn=connection)
        with pytest.raises(UnusableConnection, match="roll it back"):
            qwf.start_run(DOCUMENT, conn=connection)
        connection.rollback()


def test_what_is_wrong_with_the_database_is_said(qwf_new_database: Any) -> None:
    """Without the schema, or without a server."""
    qwf.configure(db_url=qwf_new_database(template=False))
    with pytest.raises(SchemaError, match="run `qwf db upgrade`"):
        qwf.enqueue_ingest_job("t", queue="fetch")
    qwf.configure(db_url="postgresql://nobody@127.0.0.1:1/nothing")
    with pytest.raises(DatabaseUnreachable):
        qwf.enqueue_ingest_job("t", queue="fetch")
    with pytest.raises(DatabaseUnreachable):
        asyncio.run(qwf.astart_run(DOCUMENT))


def test_connections_to_the_configured_database(qwf_dsn: str) -> None:
    """`connect` and `aconnect` give the caller one to close, of either kind."""
    with qwf.connect() as connection:
        qwf.enqueue_ingest_job("sync", queue="fetch", conn=connection)

    async def scene() -> None:
        async with await qwf.aconnect() as connection:
            await qwf.aenqueue_ingest_job("async", queue="fetch", conn=connection)
        async with await qwf.aconnect(autocommit=True) as connection:
            await qwf.aenqueue_ingest_job("at once", queue="fetch", conn=connection)

    asyncio.run(scene())
    assert tasks(qwf_dsn) == ["sync", "async", "at once"]


def test_a_function_that_names_another_database(qwf_dsn: str, qwf_new_database: Any) -> None:
    """As where a test suite has put its own in the place of the app's: the pool follows."""
    other = qwf_new_database()
    asked = [qwf_dsn]
    qwf.configure(db_url=lambda: asked[0])
    qwf.enqueue_ingest_job("here", queue="fetch")
    asked[0] = other
    qwf.enqueue_ingest_job("there", queue="fetch")
    with qwf.connect() as own:
        assert own.info.dbname == conninfo_to_dict(other)["dbname"]
    assert (tasks(qwf_dsn), tasks(other)) == (["here"], ["there"])


def test_the_database_of_a_test(qwf_dsn: str, qwf_new_database: Any) -> None:
    """Within the block it is the configured one, and after it what was before, though the block raised."""
    other = qwf_new_database()
    with suppress(LookupError), configured_database(other):
        qwf.enqueue_ingest_job("there", queue="fetch")
        raise LookupError
    qwf.enqueue_ingest_job("here", queue="fetch")
    assert (tasks(qwf_dsn), tasks(other)) == (["here"], ["there"])


def test_the_fixture_for_code_without_a_connection(qwf_configured: str, qwf_jobs: Any) -> None:
    """What it enqueues is where the helpers look."""
    qwf.enqueue_ingest_job("here", queue="fetch")
    assert qwf_jobs.assert_enqueued("here").queue == "fetch"
