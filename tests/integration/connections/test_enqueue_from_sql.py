"""`qwf_enqueue`: what plain SQL enqueues is what the verb enqueues, under the same checks."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import psycopg
import pytest
from support.connections.kinds import waiting_for_lock
from support.rows.roles import Roles
from support.stages.wakes import Ear

from queue_workflows import enqueue_ingest_job
from queue_workflows.db.migrations import bootstrap, downgrade

CALL = "SELECT id, created FROM qwf_enqueue(%s::text, %s::text, %s::jsonb, %s::jsonb)"
# What differs between two jobs that say the same.
OWN = {"id", "position", "created_at", "updated_at", "run_at", "dedupe_key"}


@pytest.fixture
def conn(qwf_dsn: str) -> Iterator[psycopg.Connection[Any]]:
    """A connection in a transaction, on empty tables."""
    with psycopg.connect(qwf_dsn) as connection:
        connection.execute("TRUNCATE ingest_jobs CASCADE")
        connection.commit()
        yield connection
        connection.rollback()


def call(conn: psycopg.Connection[Any], task: str, args: Any = None, **options: Any) -> tuple[int, bool]:
    """What the function returns."""
    row = conn.execute(CALL, (task, "fetch", json.dumps(args or {}), json.dumps(options))).fetchone()
    assert row is not None
    return row


def row(conn: psycopg.Connection[Any], job_id: int) -> dict[str, Any]:
    """All that is stored of a job, but for what is its own."""
    cursor = conn.execute("SELECT * FROM ingest_jobs WHERE id = %s", (job_id,))
    assert cursor.description is not None
    values = cursor.fetchone()
    assert values is not None
    named = dict(zip([column.name for column in cursor.description], values, strict=True))
    return {name: value for name, value in named.items() if name not in OWN}


FULL: dict[str, Any] = {
    "reason": "why",
    "priority": 9,
    "delay": 3600,
    "limit_key": "host:x",
    "max_attempts": 2,
    "backoff_s": 1.5,
    "timeout_s": 2.5,
    "stall_timeout_s": 3,
    "host_lock": "lock",
    "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    "max_crashes": 4,
}


@pytest.mark.parametrize(
    "options",
    [{}, FULL, {"limit_key": "k"}, {"exclusive": "press"}, {"at_most_once": True}, {"delay": 0}],
    ids=lambda options: ",".join(options) or "plain",
)
def test_it_stores_what_the_verb_stores(conn: psycopg.Connection[Any], options: dict[str, Any]) -> None:
    """The whole row, whatever is said."""
    job_id, created = call(conn, "t", {"a": [1, "é"]}, **options)
    by_verb = enqueue_ingest_job("t", queue="fetch", args={"a": [1, "é"]}, conn=conn, **options)
    assert created is True
    assert row(conn, job_id) == row(conn, by_verb.id)


def test_a_moment_and_nulls(conn: psycopg.Connection[Any]) -> None:
    """`run_at` as a text with its zone; what is null is not given."""
    job_id, _ = call(conn, "t", run_at="2040-01-31T12:00:00Z", reason=None, priority=None)
    found = conn.execute("SELECT run_at, status, priority FROM ingest_jobs WHERE id = %s", (job_id,))
    assert found.fetchone() == (datetime(2040, 1, 31, 12, tzinfo=UTC), "scheduled", 5)
    (plain,) = conn.execute("SELECT created FROM qwf_enqueue('t', 'fetch')").fetchall()
    assert plain == (True,)


def test_a_key_is_found(conn: psycopg.Connection[Any]) -> None:
    """The second call finds the row of the first, and so does the verb."""
    first = call(conn, "t", dedupe_key="k")
    assert call(conn, "t", dedupe_key="k") == (first[0], False)
    assert enqueue_ingest_job("t", queue="fetch", dedupe_key="k", conn=conn) == (first[0], False)
    assert call(conn, "other", dedupe_key="k")[1] is True


@pytest.mark.parametrize("ends", ["commit", "rollback"])
def test_a_key_that_is_held_open_is_waited_for(qwf_dsn: str, conn: Any, ends: str) -> None:
    """The row of the other transaction if that commits, a row of its own if it rolls back."""

    async def scene() -> None:
        held = call(conn, "t", dedupe_key="k")
        async with await psycopg.AsyncConnection.connect(qwf_dsn) as other:
            asked = other.execute(CALL, ("t", "fetch", "{}", '{"dedupe_key": "k"}'))
            async with waiting_for_lock(qwf_dsn, asked) as task:
                getattr(conn, ends)()
            found = await task.result().fetchone()
            assert found is not None
            assert found[1] is (ends == "rollback")
            assert (found[0] == held[0]) is (ends == "commit")

    asyncio.run(scene())


def test_many_of_a_key_go_into_its_lane(conn: psycopg.Connection[Any]) -> None:
    """As many are queued as the verb queues, and the rest waits in the lane."""
    for _ in range(20):
        call(conn, "sql", limit_key="a")
        enqueue_ingest_job("verb", queue="fetch", limit_key="b", conn=conn)
    counts = conn.execute(
        "SELECT task_name, status, hold_reason, count(*) FROM ingest_jobs GROUP BY 1, 2, 3 ORDER BY 1, 2"
    ).fetchall()
    assert [found[1:] for found in counts[:2]] == [found[1:] for found in counts[2:]]
    assert counts[1] == ("sql", "scheduled", "limit_full", 4)


def test_it_wakes_at_the_commit(qwf_dsn: str, conn: psycopg.Connection[Any]) -> None:
    """Nobody before, and nobody for what is rolled back."""
    with Ear(qwf_dsn) as ear:
        call(conn, "t")
        conn.rollback()
        call(conn, "t")
        assert ear.heard() == []
        conn.commit()
        assert ear.heard() == ["fetch"]


@pytest.mark.parametrize(
    ("options", "state", "said"),
    [
        ({"prio": 1}, "22023", "option prio is not known"),
        ({"priority": "high"}, "22023", "option priority is a number"),
        ({"at_most_once": 1}, "22023", "option at_most_once is a boolean"),
        ({"run_at": "2040-01-01T00:00Z", "delay": 1}, "22023", "run_at and delay"),
        ({"exclusive": "a", "limit_key": "b"}, "22023", "exclusive"),
        ({"exclusive": ""}, "22023", "exclusive"),
        ({"at_most_once": True, "max_attempts": 2}, "22023", "at_most_once"),
        ({"priority": 10}, "23514", "priority"),
        ({"limit_key": "a*"}, "23514", "limit_key"),
        ({"timeout_s": -1}, "23514", "timeout_s"),
        ({"dedupe_key": ""}, "23514", "dedupe_key"),
    ],
)
def test_what_is_wrong_is_refused(conn: Any, options: dict[str, Any], state: str, said: str) -> None:
    """By name, and nothing is stored."""
    with pytest.raises(psycopg.Error, match=said) as refused, conn.transaction():
        call(conn, "t", **options)
    assert refused.value.sqlstate == state
    assert conn.execute("SELECT count(*) FROM ingest_jobs").fetchone() == (0,)


@pytest.mark.parametrize(
    ("task", "queue", "args"),
    [("", "fetch", "{}"), ("t", "gpu", "{}"), ("t", "fetch", "[]"), (None, "fetch", "{}")],
)
def test_task_queue_and_args_are_the_tables_to_refuse(conn: Any, task: Any, queue: str, args: str) -> None:
    """An empty name, a reserved queue, a list."""
    with pytest.raises(psycopg.IntegrityError):
        conn.execute(CALL, (task, queue, args, "{}"))


def test_options_that_are_no_object(conn: psycopg.Connection[Any]) -> None:
    """A list is refused in words."""
    with pytest.raises(psycopg.Error, match="options is a JSON object"):
        conn.execute(CALL, ("t", "fetch", "{}", "[1]"))


def test_a_producer_may_call_it_and_a_reader_may_not(roles: Roles) -> None:
    """With the grants of the docs, from whatever search path the caller has."""
    with roles.connect("producer") as producer:
        producer.execute("SET search_path = pg_catalog")
        found = producer.execute(
            "SELECT created FROM public.qwf_enqueue('t', 'fetch', '{}', '{\"limit_key\": \"k\"}')"
        )
        assert found.fetchone() == (True,)
    with roles.connect("reader") as reader, pytest.raises(psycopg.errors.InsufficientPrivilege):
        call(reader, "t")


def test_the_downgrade_takes_it_away(qwf_new_database: Any) -> None:
    """And the upgrade brings it back."""
    dsn = qwf_new_database()
    there = "SELECT count(*) FROM pg_proc WHERE proname = 'qwf_enqueue'"
    downgrade(dsn, chain="engine", revision="0038")
    with psycopg.connect(dsn) as connection:
        assert connection.execute(there).fetchone() == (0,)
    bootstrap(dsn)
    with psycopg.connect(dsn) as connection:
        assert connection.execute(there).fetchone() == (1,)
