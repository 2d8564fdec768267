"""What `qwf deploy check` says of durable functions that are in the middle of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from click.testing import CliRunner

from queue_workflows.cli.main import cli
from queue_workflows.engine.deploy.durable import functions_in_flight
from queue_workflows.engine.registry.tasks import TaskRegistry, current_tasks
from queue_workflows.repositories import IngestJobRepository
from queue_workflows.repositories.reports.open_work import OpenWorkRepository
from queue_workflows.testing import drain


def code(reason: str | None, args: dict[str, Any], *, ctx: Any) -> None:
    """A step, and a day's sleep."""
    ctx.step("one", lambda: 1)
    ctx.sleep(days=1)


def _forget() -> None:
    tasks = current_tasks()
    tasks._known.pop("in_flight", None)
    for name in [one for one in tasks.names() if one.startswith("in_flight")]:
        tasks._names.pop(name)


@pytest.fixture(autouse=True)
def conn(qwf_configured: str) -> Iterator[psycopg.Connection]:
    """Nothing is stored."""
    _forget()
    with psycopg.connect(qwf_configured, autocommit=True) as connection:
        connection.execute("TRUNCATE ingest_jobs, durable_steps, durable_events")
        yield connection
    _forget()


def begun(conn: psycopg.Connection, **said: Any) -> int:
    """A job that sleeps in the middle of it, of code about which this was said."""
    _forget()
    task = current_tasks().register("in_flight", code, queue="fetch", durable=True, **said)
    job = task.enqueue({}, conn=conn)
    drain(conn=conn)
    return job.id


def told(conn: psycopg.Connection, fn: Callable[..., Any] = code, **said: Any) -> list[tuple[Any, ...]]:
    """What a deploy of code comes to about which this is said."""
    tasks = TaskRegistry()
    tasks.register("in_flight", fn, queue="fetch", **said)
    found = functions_in_flight(OpenWorkRepository(conn).durable(), tasks, {"fetch"})
    return [(one.level.value, one.name, one.rows, one.example) for one in found]


@pytest.mark.parametrize(
    ("before", "after", "found"),
    [
        ("1", {"version": "1"}, None),
        ("1", {"version": "2", "versions": {"1": code}}, None),
        ("1", {"version": "2"}, ("breaks", "in_flight@1")),
        ("1", {}, ("breaks", "in_flight@1")),
        (None, {}, None),
        (None, {"version": "1"}, ("changes", "in_flight")),
        (None, {"version": "2", "versions": {"1": code}}, None),
        (None, {"version": "3", "versions": {"1": code, "2": code}}, ("breaks", "in_flight@")),
        (None, {"version": "3", "versions": {"": code, "2": code}}, None),
    ],
)
def test_a_version_that_jobs_are_in_the_middle_of(
    conn: psycopg.Connection, before: str | None, after: dict[str, Any], found: tuple[str, str] | None
):
    """Is there, or its jobs would wait; what had none is told of where other code would go on with it."""
    job = begun(conn, version=before)
    expected = [] if found is None else [(*found, 1, f"ingest:{job}")]
    assert told(conn, durable=True, **after) == expected


def test_a_task_that_stores_no_steps_any_more(conn: psycopg.Connection):
    """It would do all of them again; jobs that are over or never began do not matter."""
    job = begun(conn)
    IngestJobRepository(conn).cancel(begun(conn))
    current_tasks().task_named("in_flight").enqueue({}, conn=conn)
    assert told(conn, lambda reason, args: None) == [("breaks", "in_flight", 1, f"ingest:{job}")]


def test_a_copy_is_of_whatever_code_comes_next(conn: psycopg.Connection):
    """Until that has stored a step."""
    job = begun(conn, version="1")
    made = CliRunner().invoke(
        cli, ["job", "fork", f"ingest:{job}", "--from", "sleep"], catch_exceptions=False
    )
    assert made.exit_code == 0
    IngestJobRepository(conn).cancel(job)
    assert told(conn, durable=True, version="2") == []
    drain(conn=conn)
    assert told(conn, durable=True, version="2") == [("breaks", "in_flight@1", 1, made.stdout.strip())]
