"""Enqueueing through a task: the row says what the task and the call said, in the caller's transaction."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest
from sqlalchemy.orm import Session

from queue_workflows.errors import ConfigurationError, PayloadError
from queue_workflows.jobs.tasks import IngestTask, TaskRegistry
from queue_workflows.repositories import IngestJobRepository

registry = TaskRegistry()


@registry.task("fetch_page", queue="fetch", max_attempts=5, backoff_s=2, limit_key="host:example.org")
def fetch_page(reason: str | None, args: dict[str, str]) -> str:
    return args["url"]


other = registry.register("other", lambda reason: None, queue="load")
homeless = registry.register("homeless", lambda reason: None)


@pytest.fixture
def jobs(qwf_conn: psycopg.Connection) -> Iterator[IngestJobRepository]:
    """The repository on an empty table."""
    qwf_conn.execute("DELETE FROM ingest_jobs")
    return IngestJobRepository(qwf_conn)


def test_one_job(jobs: IngestJobRepository, qwf_conn: psycopg.Connection):
    """With the task's options, those of the call before them, and a key that is asked for once."""
    made = fetch_page.enqueue({"url": "a"}, conn=qwf_conn, reason="new", dedupe_key="a", max_attempts=7)
    row = jobs.fetch(made.id)
    assert row is not None
    assert (row.task_name, row.queue, row.args, row.reason) == ("fetch_page", "fetch", {"url": "a"}, "new")
    assert (row.max_attempts, row.backoff_s, row.limit_key) == (7, 2.0, "host:example.org")
    assert fetch_page.enqueue({"url": "a"}, conn=qwf_conn, dedupe_key="a") == (made.id, False)


def test_many_jobs(jobs: IngestJobRepository, qwf_conn: psycopg.Connection):
    """From args, for which the call's options are, and from jobs with options of their own; in order."""
    made = fetch_page.enqueue_many(
        ({"url": "a"} if n else fetch_page.job({"url": "b"}, priority=9) for n in range(2)),
        conn=qwf_conn,
        reason="nightly",
    )
    rows = [jobs.fetch(each.id) for each in made]
    assert [(row.args["url"], row.priority, row.reason, row.max_attempts) for row in rows if row] == [
        ("b", 9, None, 5),
        ("a", 5, "nightly", 5),
    ]


def test_a_rollback_takes_it_back(qwf_session: Session):
    """As any enqueueing: the transaction is the caller's."""
    made = other.enqueue(conn=qwf_session)
    qwf_session.rollback()
    assert IngestJobRepository(qwf_session).fetch(made.id) is None


@pytest.mark.parametrize(
    ("task", "items", "says"),
    [
        (fetch_page, [{}, other.job()], r"jobs\[1\] is for the task 'other'"),
        (fetch_page, [{}, {"a": {1}}], r"jobs\[1\]: payload at \$.a"),
        (fetch_page, [{}, ["a"]], r"jobs\[1\]: args must be a dict"),
        (homeless, [{}], "has no queue of its own"),
    ],
)
def test_a_refused_job_among_many_means_that_none_is_written(
    jobs: IngestJobRepository, qwf_conn: psycopg.Connection, task: IngestTask, items: list, says: str
):
    """And says which one it was."""
    with pytest.raises((PayloadError, ConfigurationError), match=says):
        task.enqueue_many(items, conn=qwf_conn)
    assert jobs.counts() == {}


def test_a_queue_that_no_worker_of_this_application_has(qwf_conn: psycopg.Connection):
    """Is refused, as by enqueue_ingest_job."""
    with pytest.raises(ConfigurationError, match="none of this application's ingest queues"):
        other.enqueue(conn=qwf_conn, queue="elsewhere")
