"""`qwf queue enqueue`: a job from a command line, or many that are alike."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime

import psycopg
import pytest
from support.connections.kept import own_connection
from support.processes.commands import qwf_here

from queue_workflows.engine.registry.tasks import current_tasks, register_ingest_task
from queue_workflows.repositories.sql.columns import CHUNK_ROWS


@pytest.fixture
def conn(qwf_dsn: str) -> Iterator[psycopg.Connection]:
    with own_connection(qwf_dsn) as connection:
        connection.execute("TRUNCATE ingest_jobs")
        yield connection


def enqueued(dsn: str, *arguments: str) -> str:
    return qwf_here("--db", dsn, "queue", "enqueue", *arguments).stdout


def test_one_job_with_everything(qwf_dsn, conn):
    """Its name goes to stdout, for scripts."""
    said = enqueued(
        qwf_dsn,
        *("page", "--queue", "load", "--args", '{"url": "x", "n": 1}', "-a", "n:=2", "-a", "text=3"),
        *("--priority", "8", "--dedupe-key", "k", "--run-at", "2040-01-31T12:00:00Z", "--reason", "by hand"),
        *("--limit-key", "host:a", "--max-attempts", "7", "--timeout", "2m"),
    )
    ((row,),) = conn.execute("SELECT to_jsonb(j) FROM ingest_jobs j").fetchall()
    assert said == f"ingest:{row['id']}\n"
    assert row["args"] == {"url": "x", "n": 2, "text": "3"}
    assert {name: row[name] for name in ("task_name", "queue", "priority", "dedupe_key", "reason")} == {
        "task_name": "page",
        "queue": "load",
        "priority": 8,
        "dedupe_key": "k",
        "reason": "by hand",
    }
    assert (row["limit_key"], row["max_attempts"], row["timeout_s"]) == ("host:a", 7, 120)
    assert datetime.fromisoformat(row["run_at"]) == datetime(2040, 1, 31, 12, tzinfo=UTC)


def test_what_a_job_has_alone(qwf_dsn, conn):
    """On its machine, and among all of them."""
    enqueued(qwf_dsn, "page", "--queue", "fetch", "--host-lock", "disk", "--exclusive", "account-7")
    enqueued(qwf_dsn, "page", "--queue", "fetch", "--host-lock", "disk", "--when-held", "elsewhere")
    enqueued(qwf_dsn, "page", "--queue", "fetch", "--host-lock", "disk", "--when-held", "wait")
    assert conn.execute("SELECT host_lock, limit_key FROM ingest_jobs ORDER BY id").fetchall() == [
        ("disk", "exclusive:account-7"),
        ("elsewhere:disk", None),
        ("disk", None),
    ]
    for wrong, why in (
        (("--when-held", "wait"), "--when-held is about --host-lock"),
        (("--exclusive", "a", "--limit-key", "b"), "both exclusive and limit_key"),
    ):
        said = qwf_here("--db", qwf_dsn, "queue", "enqueue", "page", "--queue", "fetch", *wrong, status=2)
        assert why in said.stderr


def test_a_key_that_is_taken(qwf_dsn, conn):
    """The job that has it is named, and nothing enqueued."""
    options = ("page", "--queue", "fetch", "--dedupe-key", "k")
    first = enqueued(qwf_dsn, *options)
    again = qwf_here("--db", qwf_dsn, "queue", "enqueue", *options)
    assert (again.stdout, again.stderr) == (first, "it has this key already: nothing was enqueued\n")
    assert json.loads(enqueued(qwf_dsn, *options, "--json"))["created"] is False


def test_a_job_like_it_that_waits(qwf_dsn, conn):
    """Is named, and takes over what is to be replaced; by args, by a word, within a time, in a state."""
    alike = ("page", "--queue", "fetch", "--unique-by", "args.order", "--replace", "args", "-a", "order:=1")
    first = enqueued(qwf_dsn, *alike, "-a", "text=a")
    again = qwf_here("--db", qwf_dsn, "queue", "enqueue", *alike, "-a", "text=b")
    said = f"{first.strip()} is like it, and has this args if it still waits: nothing was enqueued\n"
    assert (again.stdout, again.stderr) == (first, said)
    assert conn.execute("SELECT args FROM ingest_jobs").fetchall() == [({"order": 1, "text": "b"},)]
    word = ("page", "--queue", "fetch", "--unique-key", "w", "--unique-for", "1h", "--unique-state", "queued")
    assert enqueued(qwf_dsn, *word) == enqueued(qwf_dsn, *word)
    conn.execute("UPDATE ingest_jobs SET created_at = created_at - interval '2 hours'")
    enqueued(qwf_dsn, *word)
    assert conn.execute("SELECT count(*) FROM ingest_jobs").fetchone() == (3,)


def test_many_that_are_alike(qwf_dsn, conn):
    """In order and in several batches."""
    count = 2 * CHUNK_ROWS + 1
    told = json.loads(enqueued(qwf_dsn, "page", "--queue", "fetch", "--count", str(count), "--json"))
    made, first, last = conn.execute("SELECT count(*), min(id), max(id) FROM ingest_jobs").fetchone()
    assert (told["count"], told["first"], told["last"]) == (made, f"ingest:{first}", f"ingest:{last}")
    assert made == count
    said = enqueued(qwf_dsn, "page", "--queue", "fetch", "--count", "2")
    assert said == f"2 jobs, ingest:{last + 1} to ingest:{last + 2}\n"


def test_a_registered_task_says_where(qwf_dsn, conn):
    """And how, as `enqueue` in code."""
    register_ingest_task(
        "told", lambda reason: None, queue="load", max_attempts=9, limit_key=lambda args: "x"
    )
    try:
        enqueued(qwf_dsn, "told")
    finally:
        current_tasks()._known.pop("told")
    assert conn.execute("SELECT queue, max_attempts, limit_key FROM ingest_jobs").fetchall() == [
        ("load", 9, "x")
    ]


@pytest.mark.parametrize(
    ("arguments", "status", "says"),
    [
        (("page",), 2, "it has no queue"),
        (("page", "--queue", "elsewhere"), 78, "'elsewhere' is none of this application's ingest queues"),
        (("page", "--queue", "fetch", "--args", "[1]"), 2, "must be an object"),
        (("page", "--queue", "fetch", "--args", "{"), 2, "--args"),
        (("page", "--queue", "fetch", "-a", "x"), 2, "write name=text"),
        (("page", "--queue", "fetch", "--run-at", "soon"), 2, "is no time"),
        (("page", "--queue", "fetch", "--run-at", "2040-01-01T00:00:00"), 2, "no time zone"),
        (
            ("page", "--queue", "fetch", "--run-at", "2040-01-01T00:00Z", "--delay", "1h"),
            2,
            "both run_at and delay",
        ),
        (("page", "--queue", "fetch", "--count", "2", "--dedupe-key", "k"), 2, "would be one job"),
        (("page", "--queue", "fetch", "--count", "2", "--unique-by", "args"), 2, "about one job"),
        (("page", "--queue", "fetch", "--dedupe-key", "k", "--unique-by", "args"), 2, "about one job"),
        (("page", "--queue", "fetch", "--unique-key", "k", "--unique-by", "args"), 2, "give one"),
        (("page", "--queue", "fetch", "--replace", "args"), 2, "say what is alike"),
        (("page", "--queue", "fetch", "--unique-by", "order"), 2, "none of args, args.NAME, queue"),
        (("page", "--queue", "fetch", "--unique-by", "args", "--unique-state", "on"), 2, "states ('on',)"),
        (("page", "--queue", "fetch", "--count", "0"), 2, "--count"),
        (("page", "--queue", "fetch", "--host-lock", "elsewhere:elsewhere:a"), 2, "names no lock"),
        (
            ("page", "--queue", "fetch", "--host-lock", "elsewhere:a", "--when-held", "wait"),
            2,
            "leave 'elsewhere:'",
        ),
        (("page", "--queue", "fetch", "--max-attempts", "0"), 2, "max_attempts must be a whole number"),
        (("a\0b", "--queue", "fetch"), 2, "NUL"),
    ],
)
def test_what_cannot_be_enqueued(qwf_dsn, conn, arguments, status, says):
    """One line, and no row."""
    said = qwf_here("--db", qwf_dsn, "queue", "enqueue", *arguments, status=status)
    assert (said.stdout, said.stderr.count("\n")) == ("", 1)
    assert says in said.stderr
    assert conn.execute("SELECT count(*) FROM ingest_jobs").fetchone() == (0,)
