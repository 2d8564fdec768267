"""Whoever enqueues a job, and however: it has the key and the lock of its task, and runs within its limit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from support.connections.kept import own_connection
from support.rows.claim_sessions import cap, hand
from support.stages.declaring import EMPTY_LIMITS

from queue_workflows import NewIngestJob, enqueue_ingest_job, enqueue_many
from queue_workflows.engine.registry.declared import LimitDeclaring
from queue_workflows.engine.registry.tasks import TaskRegistry

Job = tuple[str | None, str | None]


@pytest.fixture
def conn(qwf_dsn: str) -> Iterator[psycopg.Connection]:
    """A connection in autocommit; nothing is declared or set."""
    with own_connection(qwf_dsn) as connection:
        connection.execute(EMPTY_LIMITS)
        yield connection


@pytest.fixture
def tasks() -> TaskRegistry:
    """Tasks that no producer here has imported: it knows their names."""
    registry = TaskRegistry()

    def work(reason: str | None, args: dict[str, Any]) -> None:
        """What is done does not matter here."""

    def key_of(args: dict[str, Any]) -> str | None:
        return None if args["host"] is None else f"host:{args['host']}"

    registry.register("fetch", work, queue="fetch", limit_key="host:a")
    registry.register("settle", work, queue="fetch", exclusive="ledger")
    registry.register("scan", work, queue="fetch", host_lock="scanner", limit_key="scans")
    registry.register("reckoned", work, queue="fetch", limit_key=key_of)
    registry.register("plain", work, queue="fetch")
    return registry


def declare(conn: psycopg.Connection, tasks: TaskRegistry, owner: str = "shop") -> None:
    LimitDeclaring(owner, {}, tasks).keep(conn)


def by_name(conn: psycopg.Connection, task: str) -> None:
    enqueue_ingest_job(task, queue="fetch", conn=conn)


def by_name_with_a_dedupe_key(conn: psycopg.Connection, task: str) -> None:
    enqueue_ingest_job(task, queue="fetch", dedupe_key="k", conn=conn)


def in_bulk(conn: psycopg.Connection, task: str) -> None:
    enqueue_many([NewIngestJob(task_name=task, queue="fetch")], conn=conn)


def by_the_function(conn: psycopg.Connection, task: str) -> None:
    conn.execute("SELECT qwf_enqueue(%s, 'fetch')", [task])


def by_a_plain_insert(conn: psycopg.Connection, task: str) -> None:
    conn.execute("INSERT INTO ingest_jobs (task_name, queue) VALUES (%s, 'fetch')", [task])


WAYS = [
    by_name,
    by_name_with_a_dedupe_key,
    in_bulk,
    by_the_function,
    by_a_plain_insert,
]


def there(conn: psycopg.Connection) -> dict[str, Job]:
    """The key and the lock of each task's job."""
    rows = conn.execute("SELECT task_name, limit_key, host_lock FROM ingest_jobs").fetchall()
    return {task: (key, lock) for task, key, lock in rows}


@pytest.mark.parametrize("enqueue", WAYS, ids=lambda way: way.__name__)
def test_a_declared_task_gives_its_jobs_their_keys(
    conn: psycopg.Connection, tasks: TaskRegistry, enqueue: Callable[[psycopg.Connection, str], None]
) -> None:
    """By a process that does not import it; a task without a key, and an unknown one, stay as they are."""
    declare(conn, tasks)
    for task in ("fetch", "settle", "scan", "plain", "unknown"):
        enqueue(conn, task)
    assert there(conn) == {
        "fetch": ("host:a", None),
        "settle": ("exclusive:ledger", None),
        "scan": ("scans", "scanner"),
        "plain": (None, None),
        "unknown": (None, None),
    }


def test_what_a_job_says_itself_is_its_own(conn: psycopg.Connection, tasks: TaskRegistry) -> None:
    """Each option for itself."""
    declare(conn, tasks)
    enqueue_ingest_job("scan", queue="fetch", limit_key="mine", conn=conn)
    enqueue_ingest_job("fetch", queue="fetch", host_lock="mine", conn=conn)
    assert there(conn) == {"scan": ("mine", "scanner"), "fetch": ("host:a", "mine")}


def test_a_crowd_waits_in_the_lane_of_its_key(conn: psycopg.Connection, tasks: TaskRegistry) -> None:
    """From the start, as if the producer had known the key: few stand in front of others."""
    declare(conn, tasks)
    enqueue_many((NewIngestJob(task_name="fetch", queue="fetch") for _ in range(40)), conn=conn)
    by_name(conn, "fetch")
    counted = conn.execute(
        "SELECT status, hold_reason, hold_key, count(*) FROM ingest_jobs GROUP BY 1, 2, 3 ORDER BY 1"
    ).fetchall()
    assert counted == [("queued", None, None, 16), ("scheduled", "limit_full", "host:a", 25)]


def test_a_job_for_later_has_its_key_and_its_time(conn: psycopg.Connection, tasks: TaskRegistry) -> None:
    """It waits for its time, and not in a lane."""
    declare(conn, tasks)
    enqueue_ingest_job("fetch", queue="fetch", delay=3600, conn=conn)
    seen = conn.execute(
        "SELECT status, hold_reason, limit_key, run_at > now() + interval '50 min' FROM ingest_jobs"
    ).fetchone()
    assert seen == ("scheduled", None, "host:a", True)


def test_what_is_declared_no_more_gives_no_key(conn: psycopg.Connection, tasks: TaskRegistry) -> None:
    """A new version of the app without the task's key."""
    declare(conn, tasks)
    declare(conn, TaskRegistry())
    by_name(conn, "fetch")
    assert there(conn) == {"fetch": (None, None)}


def test_the_worker_that_claims_fills_in_what_was_not_known(
    conn: psycopg.Connection, tasks: TaskRegistry, qwf_dsn: str
) -> None:
    """Nothing had been declared when the jobs came: they run within their limit all the same."""
    cap(conn, "host:*", 2)
    for _ in range(5):
        by_name(conn, "fetch")
    by_name(conn, "plain")
    with hand(qwf_dsn, "h:fetch:1", tasks=tasks) as worker:
        claimed = [(job.task_name, job.limit_key) for job in worker.claim(10)]
    assert claimed == [("fetch", "host:a")] * 2 + [("plain", None)]
    counted = conn.execute(
        "SELECT task_name, status, hold_reason, limit_key, count(*) FROM ingest_jobs"
        " GROUP BY 1, 2, 3, 4 ORDER BY 1, 2"
    ).fetchall()
    assert counted == [
        ("fetch", "running", None, "host:a", 2),
        ("fetch", "scheduled", "limit_full", "host:a", 3),
        ("plain", "running", None, None, 1),
    ]


def test_a_serializable_producer_depends_on_nothing(
    conn: psycopg.Connection, tasks: TaskRegistry, qwf_dsn: str
) -> None:
    """It does not read what is declared; the worker fills the key in."""
    declare(conn, tasks)
    with conn.transaction():
        conn.execute("SET TRANSACTION ISOLATION LEVEL SERIALIZABLE")
        by_name(conn, "fetch")
        locks = conn.execute(
            "SELECT relation::regclass::text FROM pg_locks"
            " WHERE mode = 'SIReadLock' AND pid = pg_backend_pid()"
        )
        assert "task_declarations" not in {name for (name,) in locks}
    assert there(conn) == {"fetch": (None, None)}
    with hand(qwf_dsn, "h:fetch:1", tasks=tasks) as worker:
        assert [job.limit_key for job in worker.claim(1)] == ["host:a"]


def test_a_key_of_the_arguments_is_made_by_the_worker(
    conn: psycopg.Connection, tasks: TaskRegistry, qwf_dsn: str
) -> None:
    """Before the job runs, and it holds a slot; None is no key."""
    declare(conn, tasks)
    cap(conn, "host:*", 1)
    for host in ("a", "a", "b", None):
        enqueue_ingest_job("reckoned", queue="fetch", args={"host": host}, conn=conn)
    with hand(qwf_dsn, "h:fetch:1", tasks=tasks) as worker:
        claimed = [(job.args["host"], job.limit_key) for job in worker.claim(10)]
    assert claimed == [("a", "host:a"), ("b", "host:b"), (None, None)]
    held = conn.execute(
        "SELECT limit_key FROM limit_slots WHERE lease_expires_at > now() ORDER BY 1"
    ).fetchall()
    assert held == [("host:a",), ("host:b",)]


def test_a_key_that_cannot_be_made_fails_its_job(
    conn: psycopg.Connection, tasks: TaskRegistry, qwf_dsn: str
) -> None:
    """It may not run outside of its limit, and says why; the others go on."""
    enqueue_ingest_job("reckoned", queue="fetch", args={}, conn=conn)
    enqueue_ingest_job("reckoned", queue="fetch", args={"host": "a"}, conn=conn)
    with hand(qwf_dsn, "h:fetch:1", tasks=tasks) as worker:
        assert [job.limit_key for job in worker.claim(10)] == ["host:a"]
    status, message = conn.execute(
        "SELECT status, errors -> 0 ->> 'message' FROM ingest_jobs ORDER BY id LIMIT 1"
    ).fetchone() or (None, "")
    assert status == "failed"
    assert "the limit_key of 'reckoned' cannot be made of these args: KeyError" in message


def test_an_end_and_claim_fills_in_as_well(
    conn: psycopg.Connection,
    tasks: TaskRegistry,
    qwf_dsn: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The claim that comes with an end, and the lock of the machine."""
    monkeypatch.setenv("QWF_LOCK_DIR", str(tmp_path))
    by_name(conn, "plain")
    by_name(conn, "scan")
    with hand(qwf_dsn, "h:fetch:1", tasks=tasks) as worker:
        worker.claim(1)
        assert [(job.limit_key, job.host_lock) for job in worker.end_and_claim(1)] == [("scans", "scanner")]
