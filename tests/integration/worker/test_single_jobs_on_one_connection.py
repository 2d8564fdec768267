"""What the enqueueing of single jobs keeps with a psycopg connection, and what it must not cost."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Iterator

import psycopg
import pytest
from psycopg.rows import dict_row

from queue_workflows.config import configure, reset_config
from queue_workflows.errors import ConfigurationError, FailedTransaction, PayloadError
from queue_workflows.repositories import IngestJobRepository, enqueue_ingest_job

PREPARED = "SELECT count(*) FROM pg_prepared_statements WHERE statement LIKE '%INSERT INTO ingest_jobs%'"


@pytest.fixture(autouse=True)
def plain_config() -> Iterator[None]:
    """Each test configures on its own."""
    yield
    reset_config()


def test_many_single_jobs_share_a_prepared_statement(qwf_dsn: str) -> None:
    """A producer that enqueues one by one has its statement planned once."""
    with psycopg.connect(qwf_dsn) as connection:
        ids = []
        for number in range(20):
            ids.append(enqueue_ingest_job("one", queue="fetch", args={"n": number}, conn=connection).id)
            connection.commit()
        assert connection.execute(PREPARED).fetchone() == (1,)
        stored = [
            job.args for job in IngestJobRepository(connection).list(task_name="one", newest_first=False)
        ]
    assert ids == sorted(set(ids))
    assert stored == [{"n": number} for number in range(20)]


def _drop(held: list[psycopg.Connection], gone: weakref.ref[psycopg.Connection]) -> bool:
    held.clear()
    gc.collect()
    return gone() is None


def test_a_forgotten_connection_is_let_go(qwf_dsn: str) -> None:
    """What is kept belongs to the connection: nothing of ours holds one that its owner dropped."""
    connection = psycopg.connect(qwf_dsn, autocommit=True)
    enqueue_ingest_job("one", queue="fetch", conn=connection)
    held = [connection]
    gone = weakref.ref(connection)
    del connection
    with pytest.warns(ResourceWarning, match="was deleted while still open"):
        assert _drop(held, gone)


def test_configure_counts_from_the_next_job_on(qwf_dsn: str) -> None:
    """A connection that enqueued before obeys what is configured now."""
    with psycopg.connect(qwf_dsn, autocommit=True) as connection:
        enqueue_ingest_job("one", queue="fetch", args={"text": "x" * 2000}, conn=connection)
        configure(payload_max_bytes=1024, max_attempts=7, ingest_queues={"render"})
        with pytest.raises(PayloadError, match="1,024"):
            enqueue_ingest_job("one", queue="render", args={"text": "x" * 2000}, conn=connection)
        with pytest.raises(ConfigurationError, match="ingest queues"):
            enqueue_ingest_job("one", queue="fetch", conn=connection)
        made = enqueue_ingest_job("one", queue="render", conn=connection)
        job = IngestJobRepository(connection).fetch(made.id)
    assert job is not None
    assert (job.queue, job.max_attempts) == ("render", 7)


def test_threads_on_one_connection_get_their_own_answers(qwf_dsn: str) -> None:
    """psycopg lets threads share a connection; each learns the id of its own job."""
    with psycopg.connect(qwf_dsn, autocommit=True) as connection:
        together = threading.Barrier(4)
        seen: dict[int, str] = {}

        def produce(name: str) -> None:
            together.wait(150)
            for _ in range(25):
                seen[enqueue_ingest_job(name, queue="fetch", conn=connection).id] = name

        threads = [threading.Thread(target=produce, args=(f"thread-{n}",)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(150)
        assert len(seen) == 100
        rows = connection.execute("SELECT id, task_name FROM ingest_jobs WHERE task_name LIKE 'thread-%'")
        assert dict(rows) == seen


def test_a_callers_row_factory_does_not_matter(qwf_dsn: str) -> None:
    """Nor does one that is set between two jobs."""
    with psycopg.connect(qwf_dsn) as connection:
        first = enqueue_ingest_job("one", queue="fetch", conn=connection)
        connection.row_factory = dict_row  # type: ignore[assignment]
        second = enqueue_ingest_job("one", queue="fetch", conn=connection)
        connection.rollback()
    assert first.id < second.id


def test_a_rolled_back_or_broken_transaction_spoils_nothing(qwf_dsn: str) -> None:
    """After an error of the caller's and a rollback the same connection enqueues again."""
    with psycopg.connect(qwf_dsn) as connection:
        enqueue_ingest_job("one", queue="fetch", conn=connection)
        with pytest.raises(psycopg.errors.DivisionByZero):
            connection.execute("SELECT 1 / 0")
        with pytest.raises(FailedTransaction):
            enqueue_ingest_job("one", queue="fetch", conn=connection)
        connection.rollback()
        again = enqueue_ingest_job("one", queue="fetch", dedupe_key="again", conn=connection)
        connection.execute("DISCARD PLANS")
        connection.commit()
        found = enqueue_ingest_job("one", queue="fetch", dedupe_key="again", conn=connection)
    assert (found.id, found.created) == (again.id, False)
