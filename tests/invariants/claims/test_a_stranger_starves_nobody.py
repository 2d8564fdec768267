"""Workers that do not know a task leave its jobs to those that do, as in every deployment of a new one."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest
from support.connections.kept import own_connection
from support.processes.workers import running_worker, until
from support.rows.jobs import CLEAR

from queue_workflows.repositories import IngestJobRepository, NewIngestJob

STRANGER = "support.processes.programs"
LEFT = "SELECT count(*) FROM ingest_jobs WHERE task_name = 'note' AND status <> 'completed'"
ON_HOLD = "SELECT count(*) FROM ingest_jobs WHERE hold_key = 'note'"


@pytest.fixture
def jobs(qwf_dsn: str) -> Iterator[IngestJobRepository]:
    with own_connection(qwf_dsn) as connection:
        connection.execute(CLEAR)
        yield IngestJobRepository(connection)


def number(dsn: str, sql: str) -> int:
    with psycopg.connect(dsn, autocommit=True) as connection:
        row = connection.execute(sql).fetchone()
    assert row is not None
    return int(row[0])


def enqueue(jobs: IngestJobRepository, count: int) -> None:
    jobs.enqueue_many(NewIngestJob(task_name="note", queue="fetch") for _ in range(count))


@pytest.mark.parametrize(
    "concurrency",
    [
        pytest.param(("1", "1"), marks=pytest.mark.slow),
        ("4", "4"),
        pytest.param(("1", "4"), marks=pytest.mark.nightly),
    ],
)
def test_a_worker_that_knows_a_task_has_its_jobs_in_spite_of_one_that_does_not(
    qwf_dsn: str, jobs: IngestJobRepository, concurrency: tuple[str, str]
) -> None:
    """Though the stranger has put them all aside, at first, and meets each page that is fetched of them.

    The test's patience is less than what fetching by the minute would take.
    """
    knower, stranger = concurrency
    enqueue(jobs, 600)
    with running_worker(qwf_dsn, "--concurrency", stranger, QWF_APP=STRANGER):
        until(lambda: number(qwf_dsn, ON_HOLD) == 600)
        with running_worker(qwf_dsn, "--concurrency", knower):
            until(lambda: number(qwf_dsn, LEFT) < 300)
            enqueue(jobs, 600)
            until(lambda: number(qwf_dsn, LEFT) == 0, within_s=150)
