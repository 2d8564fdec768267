"""One job after the other on a connection: from the sixth on it is prepared, and nothing else differs."""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum

import psycopg
import pytest
from support.connections.kept import own_connection

from queue_workflows import NewIngestJob, enqueue_ingest_job, enqueue_many
from queue_workflows.errors import ConfigurationError, DatabaseError, PayloadError
from queue_workflows.repositories import IngestJobRepository

OURS = "SELECT count(*) FROM pg_prepared_statements WHERE name LIKE 'qwf%'"
# Psycopg prepares what is asked the sixth time, and so is this.
ENOUGH = 7


class Name(str, Enum):  # noqa: UP042 - a StrEnum is its value in `str()` too
    """Names as many apps keep them."""

    PAGE = "page"
    QUEUE = "fetch"


class Level(int, Enum):
    """And numbers."""

    HIGH = 8


@pytest.fixture
def conn(qwf_dsn: str) -> Iterator[psycopg.Connection]:
    """In autocommit, on an empty table."""
    with own_connection(qwf_dsn) as connection:
        connection.execute("TRUNCATE ingest_jobs")
        yield connection
        connection.execute("DROP TRIGGER IF EXISTS meddle ON ingest_jobs")


def enqueue(conn: psycopg.Connection, count: int = ENOUGH, **options: object) -> list[int]:
    """So many jobs; their ids."""
    made = [
        enqueue_ingest_job("page", queue="fetch", args={"n": n}, conn=conn, **options)  # type: ignore[arg-type]
        for n in range(count)
    ]
    assert all(each.created for each in made)
    return [each.id for each in made]


def prepared(conn: psycopg.Connection) -> int:
    """How many statements of ours the server has prepared here."""
    row = conn.execute(OURS).fetchone()
    assert row is not None
    return int(row[0])


def test_each_is_the_row_that_it_would_be_otherwise(conn: psycopg.Connection):
    """The first five go by a cursor, the others do not; all but args and time is alike."""
    ids = enqueue(conn, 12, priority=7)
    assert prepared(conn) == 1
    rows = conn.execute(
        "SELECT id, args, to_jsonb(job) - '{id,position,args,run_at,created_at}'::text[],"
        " run_at = created_at, row_number() OVER (ORDER BY position) FROM ingest_jobs AS job ORDER BY id"
    ).fetchall()
    assert [(row[0], row[1]["n"], row[4]) for row in rows] == [(i, n, n + 1) for n, i in enumerate(ids)]
    assert all(row[2:4] == rows[0][2:4] for row in rows)
    for args in ({"ü": '\\ " \n \U0001f600'}, None):
        made = enqueue_ingest_job("ä\\b", queue="load", args=args, conn=conn)
        row = IngestJobRepository(conn).fetch(made.id)
        assert row is not None
        assert (row.task_name, row.queue, row.args, row.priority) == ("ä\\b", "load", args or {}, 5)
    with pytest.raises(PayloadError, match="priority must be"):
        enqueue_ingest_job("page", queue="fetch", priority=True, conn=conn)


def test_an_enums_member_is_its_value(conn: psycopg.Connection):
    """Whoever else says the same in plain words, before or after."""
    for name, queue, priority in ((Name.PAGE, Name.QUEUE, Level.HIGH), ("page", "fetch", 8)) * 2:
        for _ in range(ENOUGH):
            enqueue_ingest_job(name, queue=queue, priority=priority, conn=conn)
        jobs = [NewIngestJob(task_name=name, queue=queue, priority=priority) for _ in range(2)]
        enqueue_many([*jobs, NewIngestJob(task_name="page", queue="fetch", priority=8)], conn=conn)
    rows = conn.execute("SELECT DISTINCT task_name, queue, priority FROM ingest_jobs").fetchall()
    assert rows == [("page", "fetch", 8)]
    assert IngestJobRepository(conn).counts() == {"fetch": {"queued": 4 * (ENOUGH + 3)}}


def test_what_the_server_forgot_is_done_all_the_same(conn: psycopg.Connection):
    """As a pool has it done that resets its connections."""
    enqueue(conn)
    conn.execute("DISCARD ALL")
    enqueue(conn)
    assert prepared(conn) == 1
    assert IngestJobRepository(conn).counts() == {"fetch": {"queued": 2 * ENOUGH}}


def test_nothing_is_prepared_where_the_connection_must_not(conn: psycopg.Connection):
    """Behind a transaction-pooling proxy a statement may meet another session every time."""
    conn.prepare_threshold = None
    enqueue(conn, 2 * ENOUGH)
    assert prepared(conn) == 0


def test_a_transaction_and_a_pipeline_of_the_caller_stay_whole(conn: psycopg.Connection):
    """What is rolled back is gone, whatever was prepared before."""
    enqueue(conn)
    with conn.transaction(force_rollback=True):
        enqueue(conn)
    with conn.transaction(), conn.pipeline():
        enqueue(conn)
    assert IngestJobRepository(conn).counts() == {"fetch": {"queued": 2 * ENOUGH}}


class Overtaken:
    """A connection's lock that another thread had until now, which has begun a transaction."""

    def __init__(self, conn: psycopg.Connection) -> None:
        self._conn, self._lock = conn, conn.lock

    def __enter__(self) -> None:
        self._lock.acquire()
        self._conn.lock = self._lock
        self._conn.pgconn.exec_(b"DEALLOCATE ALL; BEGIN")

    def __exit__(self, *_: object) -> None:
        self._lock.release()


def test_a_transaction_that_another_thread_has_just_begun_stays_whole(conn: psycopg.Connection):
    """The job goes with it, by a cursor: what the server refused there would end it."""
    enqueue(conn)
    conn.lock = Overtaken(conn)  # type: ignore[assignment]
    enqueue(conn, 1)
    conn.rollback()
    assert IngestJobRepository(conn).counts() == {"fetch": {"queued": ENOUGH}}


def test_texts_are_the_same_in_another_encoding(conn: psycopg.Connection):
    """The client's encoding is the caller's choice."""
    conn.execute("SET client_encoding TO latin1")
    enqueue(conn)
    assert prepared(conn) == 0
    made = enqueue_ingest_job("päge", queue="fetch", args={"a": "ö"}, conn=conn)
    row = IngestJobRepository(conn).fetch(made.id)
    assert row is not None
    assert (row.task_name, row.args) == ("päge", {"a": "ö"})


def test_the_servers_errors_pass_as_they_are(conn: psycopg.Connection, qwf_dsn: str):
    """A lock that is not to be had, a trigger that raises, a row that is swallowed; then all goes on."""
    enqueue(conn)
    conn.execute("SET lock_timeout = '20ms'")
    with psycopg.connect(qwf_dsn) as other:
        other.execute("LOCK TABLE ingest_jobs")
        with pytest.raises(psycopg.errors.LockNotAvailable):
            enqueue(conn, 1)
    for body, error in (("RAISE no_data_found", psycopg.errors.NoDataFound), ("RETURN NULL", DatabaseError)):
        conn.execute(
            f"""
            CREATE OR REPLACE FUNCTION meddle() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN {body}; END';
            CREATE OR REPLACE TRIGGER meddle BEFORE INSERT ON ingest_jobs
            FOR EACH ROW EXECUTE FUNCTION meddle()
            """
        )
        with pytest.raises(error):
            enqueue(conn, 1)
    conn.execute("DROP TRIGGER meddle ON ingest_jobs")
    enqueue(conn, 1)
    assert IngestJobRepository(conn).counts() == {"fetch": {"queued": ENOUGH + 1}}


def test_a_closed_connection_is_said_to_be_closed(conn: psycopg.Connection, qwf_dsn: str):
    """As before its first job."""
    with psycopg.connect(qwf_dsn, autocommit=True) as another:
        enqueue(another)
    with pytest.raises(ConfigurationError, match="closed"):
        enqueue(another, 1)
