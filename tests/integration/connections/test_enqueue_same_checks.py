"""What the verb refuses, `qwf_enqueue` refuses: one table of bad input, handed to both."""

from __future__ import annotations

import json
import reprlib
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import psycopg
import pytest

from queue_workflows import IngestJobRepository, NewIngestJob, QwfError, Unique
from queue_workflows.payload import MAX_BYTES, MAX_DEPTH

CALL = "SELECT id, created FROM qwf_enqueue(%s::text, %s::text, %s::jsonb, %s::jsonb)"
GOOD: dict[str, Any] = {"task": "t", "queue": "fetch", "args": {}}
LONG = "é" * 300


def nested(levels: int) -> Any:
    """Lists in one another."""
    found: Any = []
    for _ in range(levels - 1):
        found = [found]
    return found


def objects(levels: int) -> Any:
    """Objects in one another."""
    found: Any = {}
    for _ in range(levels - 1):
        found = {"a": found}
    return found


# What is said, and in words of both what is wrong with it.
SAME: tuple[tuple[dict[str, Any], str], ...] = (
    ({"task": ""}, "task_name is empty"),
    ({"task": "t" * 513}, "task_name has 513 bytes, more than 512"),
    ({"queue": ""}, "queue is empty"),
    ({"queue": "q" * 513}, "queue has 513 bytes, more than 512"),
    ({"queue": "a b"}, "'a b' is no queue name"),
    ({"queue": "q" * 64}, f"'{'q' * 64}' is no queue name"),
    ({"queue": "GPU"}, "the queue 'GPU' is reserved for node jobs"),
    ({"queue": "cpu"}, "the queue 'cpu' is reserved for node jobs"),
    ({"queue": "hooks"}, "the queue 'hooks' is reserved for node jobs"),
    ({"args": {str(n): "x" * (MAX_BYTES // 4) for n in range(4)}}, "larger than 16,777,216 bytes of JSON"),
    ({"args": {"a": "x" * MAX_BYTES}}, "larger than 16,777,216 bytes of JSON"),
    ({"args": {f"{n:01000}": None for n in range(17_000)}}, "larger than 16,777,216 bytes of JSON"),
    ({"args": {"a": nested(MAX_DEPTH)}}, "nested deeper than 100 levels"),
    ({"args": {"a": nested(MAX_DEPTH + 50)}}, "nested deeper than 100 levels"),
    ({"args": objects(MAX_DEPTH + 1)}, "nested deeper than 100 levels"),
    ({"reason": ""}, "reason is empty"),
    ({"reason": "x" * 65_537}, "reason has 65,537 bytes, more than 65,536"),
    ({"dedupe_key": ""}, "dedupe_key is empty"),
    ({"dedupe_key": "x" * 1025}, "dedupe_key has 1,025 bytes, more than 1,024"),
    ({"traceparent": ""}, "traceparent is empty"),
    ({"traceparent": "x" * 1025}, "traceparent has 1,025 bytes, more than 1,024"),
    ({"limit_key": ""}, "limit_key is empty"),
    ({"limit_key": LONG}, "limit_key has 600 bytes, more than 512"),
    ({"limit_key": "a*"}, "limit_key 'a*' contains `*`"),
    ({"host_lock": ""}, "host_lock is empty"),
    ({"host_lock": LONG}, "host_lock has 600 bytes, more than 512"),
    ({"host_lock": "elsewhere:"}, "host_lock 'elsewhere:' names no lock"),
    ({"host_lock": "elsewhere:elsewhere:a"}, "host_lock 'elsewhere:elsewhere:a' names no lock"),
    ({"host_lock": " a"}, "host_lock ' a' has blanks around it or characters that cannot be seen"),
    ({"host_lock": "elsewhere:a "}, "host_lock 'a ' has blanks around it or characters that cannot be seen"),
    ({"priority": 10}, "priority must be a whole number from 0 to 9, not 10"),
    ({"priority": -1}, "priority must be a whole number from 0 to 9, not -1"),
    ({"priority": 5.5}, "priority must be a whole number from 0 to 9, not 5.5"),
    ({"max_attempts": 0}, "max_attempts must be a whole number from 1 to 32767, not 0"),
    ({"max_attempts": 32_768}, "max_attempts must be a whole number from 1 to 32767, not 32768"),
    ({"max_crashes": 0}, "max_crashes must be a whole number from 1 to 32767, not 0"),
    ({"max_crashes": 10**20}, f"max_crashes must be a whole number from 1 to 32767, not {10**20}"),
    ({"delay": -1}, "delay must be a number of seconds, not -1"),
    ({"delay": 3_153_600_001}, "delay must be a number of seconds, not 3153600001"),
    ({"backoff_s": -0.5}, "backoff_s must be a number of seconds, not -0.5"),
    ({"backoff_s": 3_153_600_001}, "backoff_s must be a number of seconds, not 3153600001"),
    ({"timeout_s": 0}, "timeout_s must be a number of seconds, not 0"),
    ({"timeout_s": 3_153_600_001}, "timeout_s must be a number of seconds, not 3153600001"),
    ({"stall_timeout_s": 0}, "stall_timeout_s must be a number of seconds, not 0"),
    ({"stall_timeout_s": -2}, "stall_timeout_s must be a number of seconds, not -2"),
    ({"stall_timeout_s": 3_153_600_001}, "stall_timeout_s must be a number of seconds, not 3153600001"),
    ({"at_most_once": True, "max_attempts": 2}, "at_most_once and max_attempts=2 contradict each other"),
    ({"run_at": "2040-01-31T12:00:00"}, "run_at 2040-01-31T12:00:00 has no time zone"),
    ({"run_at": "2040-01-31"}, "has no time zone"),
    ({"run_at": "9999-06-01T00:00:00+00:00"}, "run_at 9999-06-01T00:00:00+00:00 is beyond the calendar"),
    ({"run_at": "0001-06-01T00:00:00+00:00"}, "run_at 0001-06-01T00:00:00+00:00 is beyond the calendar"),
    ({"run_at": "2040-01-31T12:00:00+00:00", "delay": 1}, "both run_at and delay are given"),
    ({"exclusive": ""}, "exclusive is empty"),
    ({"exclusive": "a*"}, "exclusive 'a*' contains `*`"),
    ({"exclusive": " a"}, "exclusive ' a' has blanks around it or characters that cannot be seen"),
    (
        {"exclusive": "a", "limit_key": "b"},
        "both exclusive and limit_key are given, and a job takes a slot of one key",
    ),
    ({"dedupe_key": "a", "unique": {}}, "both dedupe_key and unique are given"),
    ({"unique": {"key": ""}}, "key is empty"),
    ({"unique": {"key": LONG}}, "key has 600 bytes, more than 512"),
)
# What either refuses in words of its own, as their types differ: what of it is named.
NAMED: tuple[tuple[dict[str, Any], str], ...] = (
    ({"args": [1]}, "args"),
    ({"args": "x"}, "args"),
    ({"priority": "high"}, "priority"),
    ({"reason": 7}, "reason"),
    ({"timeout_s": "1"}, "timeout_s"),
    ({"at_most_once": 1}, "at_most_once"),
    ({"prio": 1}, "prio"),
    ({"unique": {"by": []}}, "unique"),
    ({"unique": {"by": ["task"]}}, "unique"),
    ({"unique": {"states": []}}, ""),
    ({"unique": {"states": ["done"]}}, ""),
    ({"unique": {"replace": ["queue"]}}, ""),
    ({"unique": {"period": 0}}, ""),
    ({"exclusive": "a" * 510}, "limit_key"),
    ({"host_lock": "a\tb"}, "host_lock"),
    ({"exclusive": "a\x7fb"}, "exclusive"),
)
# What only JSON can say, or Python shows in another way, in the function's words.
OF_SQL: tuple[tuple[dict[str, Any], str], ...] = (
    ({"args": [1]}, "args must be a JSON object, not array"),
    ({"args": "x"}, "args must be a JSON object, not string"),
    ({"prio": 1}, "the option prio is not known"),
    ({"priority": "high"}, "the option priority is a number"),
    ({"reason": 7}, "the option reason is a string"),
    ({"at_most_once": 1}, "the option at_most_once is a boolean"),
    ({"unique": True}, "the option unique is a object"),
    ({"run_at": ""}, "run_at is empty"),
    ({"host_lock": "a\tb"}, "host_lock 'a\tb' has blanks around it or characters that cannot be seen"),
    ({"exclusive": "a\x7fb"}, "exclusive 'a\x7fb' has blanks around it or characters that cannot be seen"),
)
LONGEST_S = 3_153_600_000
GOOD_ONES: tuple[dict[str, Any], ...] = (
    {"args": {"a": nested(MAX_DEPTH - 1)}},
    {"args": objects(MAX_DEPTH)},
    {"args": {"a": [None, "x" * (MAX_BYTES - 20)]}},
    {"args": {"n": [None, "a: null", {"b": None}] * 600_000}},
    {"task": "t" * 512, "queue": "q" * 63},
    {"run_at": "2040-01-31T12:00:00+05:30"},
    {"priority": 0, "delay": 0, "backoff_s": 0, "timeout_s": 0.001, "max_attempts": 32_767},
    {"delay": LONGEST_S, "backoff_s": LONGEST_S, "timeout_s": LONGEST_S, "stall_timeout_s": LONGEST_S},
    {"reason": "r", "traceparent": "t", "host_lock": "h", "limit_key": "l", "dedupe_key": "d"},
    {"host_lock": "elsewhere:a b", "limit_key": "a:b c", "exclusive": None},
    {"exclusive": "ä b"},
    {"unique": {"key": "x" * 512}},
)


@pytest.fixture
def conn(qwf_dsn: str) -> Iterator[psycopg.Connection[Any]]:
    """A connection in a transaction that is rolled back."""
    with psycopg.connect(qwf_dsn) as connection:
        connection.execute("DELETE FROM ingest_jobs")
        yield connection
        connection.rollback()


def by_verb(conn: psycopg.Connection[Any], said: dict[str, Any]) -> Any:
    """What the verb does with it, which takes a moment and a `Unique` of Python's own."""
    given = {**GOOD, **said}
    if "run_at" in given:
        given["run_at"] = datetime.fromisoformat(given["run_at"])
    if "unique" in given:
        given["unique"] = Unique(**given["unique"])
    (enqueued,) = IngestJobRepository(conn).enqueue_many([NewIngestJob(task_name=given.pop("task"), **given)])
    return enqueued


def by_sql(conn: psycopg.Connection[Any], said: dict[str, Any]) -> Any:
    """What the function does with it."""
    given = {**GOOD, **said}
    params = (given.pop("task"), given.pop("queue"), json.dumps(given.pop("args")), json.dumps(given))
    return conn.execute(CALL, params).fetchone()


def refusals(conn: psycopg.Connection[Any], said: dict[str, Any]) -> tuple[str, str]:
    """In the words of either; nothing is stored."""
    with pytest.raises((QwfError, TypeError)) as verbs:
        by_verb(conn, said)
    with pytest.raises(psycopg.Error) as functions, conn.transaction():
        by_sql(conn, said)
    assert conn.execute("SELECT count(*) FROM ingest_jobs").fetchone() == (0,)
    return str(verbs.value), functions.value.diag.message_primary or ""


def shown(value: Any) -> str:
    """What a case is called."""
    return reprlib.repr(value)[:40] if isinstance(value, dict) else ""


@pytest.mark.parametrize(("said", "words"), SAME, ids=shown)
def test_both_refuse_it_in_the_same_words(conn: Any, said: dict[str, Any], words: str) -> None:
    """But for the prefix, and for the place within the args, which only the verb names."""
    verbs, functions = refusals(conn, said)
    assert words in verbs
    assert functions.startswith("qwf_enqueue: ")
    assert words in functions
    if "args" not in said and "run_at" not in said:
        assert functions == f"qwf_enqueue: {words}"


@pytest.mark.parametrize(("said", "name"), NAMED, ids=shown)
def test_both_refuse_it(conn: Any, said: dict[str, Any], name: str) -> None:
    """And say what is wrong."""
    verbs, functions = refusals(conn, said)
    assert name in verbs
    assert name in functions


@pytest.mark.parametrize(("said", "words"), OF_SQL, ids=shown)
def test_sql_is_told_which_type_is_wanted(conn: Any, said: dict[str, Any], words: str) -> None:
    """And nothing is stored."""
    with pytest.raises(psycopg.Error) as refused, conn.transaction():
        by_sql(conn, said)
    assert refused.value.diag.message_primary == f"qwf_enqueue: {words}"
    assert conn.execute("SELECT count(*) FROM ingest_jobs").fetchone() == (0,)


@pytest.mark.parametrize(
    ("said", "state"),
    [
        ({"task": ""}, "23514"),
        ({"priority": 10}, "23514"),
        ({"host_lock": "elsewhere:"}, "23514"),
        ({"prio": 1}, "22023"),
        ({"priority": "high"}, "22023"),
        ({"run_at": "2040-01-31T12:00:00+00:00", "delay": 1}, "22023"),
    ],
    ids=shown,
)
def test_the_sqlstate_says_what_is_wrong(conn: Any, said: dict[str, Any], state: str) -> None:
    """One for a value that is out of bounds, as the table has it, and one for what makes no sense."""
    with pytest.raises(psycopg.Error) as refused, conn.transaction():
        by_sql(conn, said)
    assert refused.value.sqlstate == state


@pytest.mark.parametrize("said", GOOD_ONES, ids=shown)
def test_both_take_what_is_just_allowed(conn: Any, said: dict[str, Any]) -> None:
    """The largest and deepest, and the longest names."""
    assert by_sql(conn, {**said, "task": f"s{said.get('task', '')[1:]}"})[1] is True
    assert by_verb(conn, said).created is True


def test_a_database_may_allow_more(conn: psycopg.Connection[Any]) -> None:
    """Where the application's own settings do, the database's are to say so too."""
    deep, large = {"a": nested(120)}, {"a": "x" * MAX_BYTES}
    conn.execute("SET LOCAL qwf.payload_max_depth = 150")
    conn.execute("SET LOCAL qwf.payload_max_bytes = 20000000")
    assert by_sql(conn, {"args": deep})[1] is True
    assert by_sql(conn, {"args": large})[1] is True
    with pytest.raises(psycopg.Error, match="deeper than 150 levels"), conn.transaction():
        by_sql(conn, {"args": {"a": nested(151)}})
    with pytest.raises(psycopg.Error, match="larger than 20,000,000 bytes"), conn.transaction():
        by_sql(conn, {"args": {"a": "x" * 20_000_001}})


def test_what_a_table_keeps_small_is_as_large_as_it_is(conn: psycopg.Connection[Any]) -> None:
    """Args that come compressed from a table of the caller's are measured by what they say."""
    conn.execute("CREATE TEMP TABLE mine (args jsonb)")
    conn.execute("INSERT INTO mine SELECT jsonb_build_object('a', repeat('x', %s))", (MAX_BYTES,))
    with pytest.raises(psycopg.Error, match="larger than"), conn.transaction():
        conn.execute("SELECT created FROM mine, qwf_enqueue('t', 'fetch', args)")


def test_a_moment_with_the_name_of_a_zone(conn: psycopg.Connection[Any]) -> None:
    """As Postgres knows them, and with `Z`."""
    for text in ("2040-01-31T12:00:00Z", "2040-01-31 12:00 UTC", "2040-01-31 13:00 Europe/Berlin"):
        job_id, _ = by_sql(conn, {"run_at": text})
        found = conn.execute("SELECT run_at FROM ingest_jobs WHERE id = %s", (job_id,)).fetchone()
        assert found == (datetime(2040, 1, 31, 12, tzinfo=UTC),)
