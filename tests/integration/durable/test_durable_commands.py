"""What operators see of durable functions, and do about them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from click.testing import CliRunner

from queue_workflows.cli.main import cli
from queue_workflows.engine.registry.tasks import ingest_task
from queue_workflows.repositories import IngestJobRepository
from queue_workflows.testing import drain

CALLS: list[str] = []


def note(name: str) -> str:
    """What a step does."""
    CALLS.append(name)
    return name


@ingest_task("seen", queue="fetch", durable=True)
def seen(reason: str | None, args: dict[str, Any], *, ctx: Any) -> Any:
    """Two steps, a nap, an event."""
    ctx.step("one", note, "one")
    ctx.sleep(hours=2)
    ctx.step("two", note, "two")
    children = [ctx.spawn("nobody knows it", {"n": n}) for n in range(3)]
    payload = ctx.wait_event("go", timeout=3600)
    ctx.gather(*children)
    return payload


@pytest.fixture
def conn(qwf_configured: str) -> Iterator[psycopg.Connection]:
    """An empty queue."""
    CALLS.clear()
    with psycopg.connect(qwf_configured, autocommit=True) as connection:
        connection.execute("TRUNCATE ingest_jobs, durable_steps, durable_events")
        yield connection


def qwf(*words: str) -> str:
    """What a command prints."""
    result = CliRunner().invoke(cli, words, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def awake(conn: psycopg.Connection) -> None:
    """Let two hours pass."""
    conn.execute("UPDATE durable_steps SET wake_at = wake_at - interval '2 h' WHERE kind = 'sleep'")
    conn.execute("UPDATE ingest_jobs SET run_at = now() WHERE hold_reason = 'asleep'")


def test_what_it_waits_for_is_explained(conn: psycopg.Connection):
    """Until when, for which event since when, and for how many of its children."""
    job = f"ingest:{seen.enqueue({}, conn=conn).id}"
    drain(conn=conn, queues=["fetch"])
    assert "it is asleep until" in qwf("explain", job)
    awake(conn)
    drain(conn=conn, queues=["load"])
    drain(conn=conn, queues=["fetch"])
    assert "it waits for the event 'go' since" in qwf("explain", job)
    assert '"event": "go"' in qwf("event", "emit", "go", "--payload", '{"n": 1}', "--json")
    drain(conn=conn, queues=["fetch"])
    conn.execute(
        "UPDATE ingest_jobs SET status = 'completed', finished_at = now(), hold_reason = NULL,"
        " hold_key = NULL WHERE id = ("
        "SELECT min(id) FROM ingest_jobs WHERE spawned_by IS NOT NULL)"
    )
    assert "it waits for 2 of 3 children" in qwf("explain", job)


def test_its_steps_are_shown(conn: psycopg.Connection):
    """With their times and what they came to, for people and for programs."""
    job = f"ingest:{seen.enqueue({}, conn=conn).id}"
    drain(conn=conn, queues=["fetch"])
    shown = qwf("job", "show", job)
    assert "step 1 one: done at" in shown
    assert "step 2 sleep (sleep): waiting at" in shown
    steps = json.loads(qwf("job", "show", job, "--json"))["steps"]
    assert [(one["position"], one["name"], one["status"], one["result"]) for one in steps] == [
        (1, "one", "done", "one"),
        (2, "sleep", "waiting", None),
    ]


def test_a_fork_begins_at_a_step(conn: psycopg.Connection):
    """A job of its own, which takes what is stored of the steps before, and does the others anew."""
    origin = seen.enqueue({}, conn=conn).id
    drain(conn=conn, queues=["fetch"])
    awake(conn)
    drain(conn=conn, queues=["fetch"])
    made = qwf("job", "fork", f"ingest:{origin}", "--from", "two").strip()
    assert CALLS == ["one", "two"]
    drain(conn=conn, queues=["fetch"])
    assert CALLS == ["one", "two", "two"]
    row = IngestJobRepository(conn).fetch(int(made.removeprefix("ingest:")))
    assert row is not None
    assert (row.task_name, row.hold_reason, row.hold_key) == ("seen", "event", "go")
    refused = CliRunner().invoke(cli, ["job", "fork", f"ingest:{origin}", "--from", "three"])
    assert refused.exit_code != 0


def test_events_that_nobody_took_are_listed(conn: psycopg.Connection):
    """The oldest first, a page at a time."""
    for number in range(3):
        qwf("event", "emit", f"e{number}", "--payload", str(number))
    listed = json.loads(qwf("event", "list", "--json", "--limit", "2"))
    assert [(one["event"], one["payload"]) for one in listed] == [("e0", 0), ("e1", 1)]
    (last,) = json.loads(qwf("event", "list", "--json", "--after", str(listed[-1]["id"])))
    assert last["event"] == "e2"
    assert "e1" in qwf("event", "list", "--name", "e1")
