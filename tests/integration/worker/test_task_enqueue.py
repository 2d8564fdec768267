"""Enqueueing through a task: the row says what the task and the call said, in the caller's transaction."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest
from sqlalchemy.orm import Session

from queue_workflows.engine.execution.backoff import Backoff
from queue_workflows.engine.execution.ending import ending_of
from queue_workflows.engine.outcomes import Failed
from queue_workflows.engine.registry.ingest_task import IngestTask
from queue_workflows.engine.registry.tasks import TaskRegistry
from queue_workflows.errors import ConfigurationError, PayloadError
from queue_workflows.repositories import IngestJobRepository, error_entry

registry = TaskRegistry()


@registry.task("fetch_page", queue="fetch", max_attempts=5, backoff=2, limit_key="host:example.org")
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


def test_a_limit_key_of_the_args(jobs: IngestJobRepository, qwf_conn: psycopg.Connection):
    """Reckoned for each job when it is enqueued; one that is given comes before it, and None is no limit."""
    own = TaskRegistry()

    @own.task("page", queue="fetch", limit_key=lambda args: f"host:{args['host']}" if args["host"] else None)
    def page(reason: str | None, args: dict[str, str]) -> None:
        """Nothing."""

    one = page.enqueue({"host": "a"}, conn=qwf_conn)
    made = page.enqueue_many([{"host": "b"}, {"host": ""}, page.job({}, limit_key="x")], conn=qwf_conn)
    rows = [jobs.fetch(job.id) for job in (one, *made)]
    assert [row and row.limit_key for row in rows] == ["host:a", "host:b", None, "x"]
    with pytest.raises(
        PayloadError, match="limit_key of 'page' cannot be made of these args: KeyError: 'host'"
    ):
        page.enqueue({}, conn=qwf_conn)
    with pytest.raises(PayloadError, match=r"contains `\*`"):
        page.enqueue({"host": "*"}, conn=qwf_conn)


def test_a_list_of_delays_is_what_a_failed_job_waits(jobs: IngestJobRepository, qwf_conn: psycopg.Connection):
    """The worker asks the task; the row has nothing of it, and a row that says its own is not asked about."""
    own = TaskRegistry()
    page = own.register("page", lambda reason: None, queue="fetch", backoff=[300, 900])
    page.enqueue_many([None, page.job(backoff_s=7)], conn=qwf_conn)
    backoff = Backoff(60, 0, own.delay_rule)
    claimed = jobs.claim("fetch", worker_id="w", lease_s=30, limit=2)
    endings = [ending_of(Failed(error_entry("x", "y"), retryable=True), job, backoff, 0) for job in claimed]
    assert [
        (job.backoff_s, ending and ending.delay_s) for job, ending in zip(claimed, endings, strict=True)
    ] == [
        (None, 300),
        (7, 7),
    ]
