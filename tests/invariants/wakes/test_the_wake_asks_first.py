"""NOTIFY only while somebody waits, for claimable work, and with nothing left in the producer's session."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

CHANNEL = "ingest_job_ready"
INSERT = "INSERT INTO ingest_jobs (task_name, queue) VALUES ('t', %s)"
ADVERTISE = "SELECT pg_try_advisory_lock_shared(qwf_wake_class(), qwf_wake_key(%s))"
LOCKS = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()"

Connection = psycopg.Connection[Any]


@pytest.fixture
def connect(qwf_dsn: str) -> Iterator[Callable[[], Connection]]:
    """Autocommit connections, closed in the end."""
    opened: list[Connection] = []

    def open_one() -> Connection:
        opened.append(psycopg.connect(qwf_dsn, autocommit=True))
        return opened[-1]

    yield open_one
    for connection in opened:
        connection.close()


@pytest.fixture
def producer(connect: Callable[[], Connection]) -> Connection:
    return connect()


@pytest.fixture
def worker(connect: Callable[[], Connection]) -> Connection:
    """Listens, but does not advertise yet."""
    connection = connect()
    connection.execute(f"LISTEN {CHANNEL}")
    connection.execute("LISTEN over")
    return connection


def heard(worker: Connection, producer: Connection) -> list[str]:
    """The queues that the worker was woken for; a note of our own comes after all that were sent before."""
    producer.execute("NOTIFY over")
    found = []
    for note in worker.notifies(timeout=150):
        if note.channel == "over":
            return found
        found.append(note.payload)
    raise AssertionError("the sentinel did not arrive")


def copy(producer: Connection, rows: list[tuple[str, str]]) -> None:
    with producer.cursor() as cursor, cursor.copy("COPY ingest_jobs (task_name, queue) FROM STDIN") as lines:
        for row in rows:
            lines.write_row(row)


def test_nobody_waits_nobody_is_told(worker: Connection, producer: Connection) -> None:
    """Busy workers need no wake: neither an insert nor a requeue notifies."""
    producer.execute(INSERT, ["alone"])
    producer.execute("UPDATE ingest_jobs SET status = 'scheduled' WHERE queue = 'alone'")
    producer.execute("UPDATE ingest_jobs SET status = 'queued' WHERE queue = 'alone'")
    assert heard(worker, producer) == []


def test_who_waits_is_told_once_per_statement_and_queue(worker: Connection, producer: Connection) -> None:
    """Whichever way the rows come in, and only for the queues that somebody waits on."""
    worker.execute(ADVERTISE, ["fetch"])
    for queues in (["fetch"], ["fetch", "fetch", "load"]):
        with producer.cursor() as cursor:
            cursor.execute(
                "INSERT INTO ingest_jobs (task_name, queue) SELECT 't', unnest(%s::text[])", [queues]
            )
        assert heard(worker, producer) == ["fetch"]
    copy(producer, [("t", "fetch"), ("t", "load"), ("t", "fetch")])
    assert heard(worker, producer) == ["fetch"]
    producer.execute("UPDATE ingest_jobs SET status = 'scheduled' WHERE queue = 'fetch'")
    assert heard(worker, producer) == []
    producer.execute("UPDATE ingest_jobs SET status = 'queued' WHERE queue = 'fetch'")
    assert heard(worker, producer) == ["fetch"]


def test_work_for_later_wakes_nobody(worker: Connection, producer: Connection) -> None:
    """A scheduled row is nothing to claim yet."""
    worker.execute(ADVERTISE, ["later"])
    producer.execute(
        "INSERT INTO ingest_jobs (task_name, queue, status, run_at)"
        " VALUES ('t', 'later', 'scheduled', now() + interval '1 day')"
    )
    assert heard(worker, producer) == []


@pytest.mark.parametrize("waiting", [True, False])
def test_the_probe_leaves_no_lock(worker: Connection, producer: Connection, waiting: bool) -> None:
    """A lock left in a pooled session would keep every worker of the queue from advertising."""
    queue = f"probe{waiting}"
    if waiting:
        worker.execute(ADVERTISE, [queue])
    producer.execute(INSERT, [queue])
    copy(producer, [("t", queue)])
    producer.execute("UPDATE ingest_jobs SET status = 'scheduled' WHERE queue = %s", [queue])
    producer.execute("UPDATE ingest_jobs SET status = 'queued' WHERE queue = %s", [queue])
    assert producer.execute(LOCKS).fetchone() == (0,)


def test_the_trigger_finds_its_own_functions(worker: Connection, producer: Connection) -> None:
    """Whatever search_path the caller has, and whatever it put there."""
    worker.execute(ADVERTISE, ["path"])
    producer.execute("CREATE SCHEMA elsewhere")
    producer.execute(
        "CREATE FUNCTION elsewhere.qwf_wake_key(text) RETURNS integer LANGUAGE sql AS 'SELECT 1 / 0'"
    )
    producer.execute("SET search_path = elsewhere")
    producer.execute("INSERT INTO public.ingest_jobs (task_name, queue, position) VALUES ('t', 'path', 1)")
    assert heard(worker, producer) == ["path"]
