"""What `qwf deploy check` says of durable functions that are in the middle of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest
from click.testing import CliRunner

from queue_workflows.cli.main import cli
from queue_workflows.config import EngineConfig, current_config
from queue_workflows.engine.deploy.durable import functions_in_flight
from queue_workflows.engine.registry.tasks import TaskRegistry, current_tasks
from queue_workflows.repositories import IngestJobRepository
from queue_workflows.repositories.reports.open_work import OpenWorkRepository
from queue_workflows.repositories.workers.code import WorkerCodeRepository
from queue_workflows.testing import drain, run_workflow


def code(reason: str | None, args: dict[str, Any], *, ctx: Any) -> None:
    """A step, and a day's sleep."""
    ctx.step("one", lambda: 1)
    ctx.sleep(days=1)


def code_with_comments(reason: str | None, args: dict[str, Any], *, ctx: Any) -> None:
    # What this says is the same.
    ctx.step("one", lambda: 1)
    ctx.sleep(days=1)


def other_code(reason: str | None, args: dict[str, Any], *, ctx: Any) -> None:
    """Another step."""
    ctx.step("two", lambda: 1)
    ctx.sleep(days=1)


def of_a_node(inputs: dict[str, Any], *, ctx: Any) -> None:
    """As a node."""
    ctx.spawn("gone", {}, queue="load")
    ctx.sleep(days=1)


NODE = {"name": "one", "nodes": [{"id": "one", "module": "one", "queue": "cpu"}]}


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
        connection.execute(
            "TRUNCATE ingest_jobs, workflow_runs, durable_steps, durable_events, worker_code CASCADE"
        )
        yield connection
    _forget()


def begun(conn: psycopg.Connection, **said: Any) -> int:
    """A job that sleeps in the middle of it, of code about which this was said."""
    _forget()
    task = current_tasks().register("in_flight", code, queue="fetch", durable=True, **said)
    job = task.enqueue({}, conn=conn)
    drain(conn=conn)
    return job.id


def told(
    conn: psycopg.Connection,
    fn: Callable[..., Any] = code,
    *,
    config: EngineConfig | None = None,
    **said: Any,
) -> list[tuple[Any, ...]]:
    """What a deploy of code comes to about which this is said."""
    tasks = TaskRegistry()
    tasks.register("in_flight", fn, queue="fetch", **said)
    found = functions_in_flight(
        OpenWorkRepository(conn), tasks, config or current_config(), {"fetch", "load"}
    )
    return [(one.level.value, one.name, one.rows, one.example) for one in found]


@pytest.mark.parametrize(
    ("before", "after", "found"),
    [
        ("1", {"version": "1"}, None),
        ("1", {"version": "2", "versions": {"1": code}}, None),
        ("1", {"version": "2"}, ("breaks", "in_flight@1")),
        ("2", {"version": "1"}, ("breaks", "in_flight@2")),
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


@pytest.mark.parametrize(
    ("version", "fn", "after", "found"),
    [
        ("1", code, {"version": "1"}, None),
        ("1", other_code, {"version": "1"}, "in_flight@1"),
        ("1", other_code, {"version": "2", "versions": {"1": code}}, None),
        ("1", code, {"version": "2", "versions": {"1": other_code}}, "in_flight@1"),
        (None, other_code, {}, "in_flight"),
        (None, other_code, {"version": "2", "versions": {"1": code}}, None),
    ],
)
def test_other_code_under_the_same_version(
    conn: psycopg.Connection,
    version: str | None,
    fn: Callable[..., Any],
    after: dict[str, Any],
    found: str | None,
):
    """By what workers last said of it, while jobs are in the middle of it; comments are no code."""
    job = begun(conn, version=version)
    publish(conn, "older", fn=other_code, version=version)
    publish(conn, "before", fn=code_with_comments, version=version)
    expected = [] if found is None else [("changes", found, 1, f"ingest:{job}")]
    assert told(conn, fn, durable=True, **after) == expected


def publish(conn: psycopg.Connection, digest: str, *, fn: Callable[..., Any], version: str | None) -> None:
    """What a worker says of its code."""
    tasks = TaskRegistry()
    tasks.register("in_flight", fn, queue="fetch", durable=True, version=version)
    names = [*tasks.names(), *tasks.code_names()]
    WorkerCodeRepository(conn).publish(digest, queue="fetch", app_version=None, names=names, is_open=False)


@dataclass
class CodeObject:
    """Code that is an object, which has no hash."""

    label: str = "one"

    def __call__(self, reason: str | None, args: dict[str, Any], *, ctx: Any) -> None:
        ctx.step(self.label, lambda: 1)


def test_of_code_without_a_hash_nothing_is_said(conn: psycopg.Connection):
    """A worker tells of it by its name alone, and a deploy with it can be checked."""
    tasks = TaskRegistry()
    tasks.register("in_flight", CodeObject(), queue="fetch", durable=True)
    assert (tasks.names(), tasks.code_names()) == (["in_flight"], [])


def test_nodes_in_flight_and_children_that_nobody_would_run(conn: psycopg.Connection):
    """Versions of node modules are compared as those of tasks; what they have spawned needs its task."""
    module = SimpleNamespace(run=of_a_node, DURABLE=True, VERSION="1")
    run_workflow(NODE, conn=conn, modules={"one": module}, moves_clock=False)
    ((job,),) = conn.execute("SELECT id FROM workflow_node_jobs").fetchall()
    ((child,),) = conn.execute("SELECT id FROM ingest_jobs").fetchall()
    gone = ("breaks", "gone", 1, f"ingest:{child}")
    for said, found in [
        ({"VERSION": "1"}, []),
        ({"VERSION": "2"}, [("breaks", "one@1", 1, f"node:{job}")]),
        ({"VERSION": "2", "VERSIONS": {"1": of_a_node}}, []),
    ]:
        newer = SimpleNamespace(run=of_a_node, DURABLE=True, **said)
        config = replace(current_config(), node_resolver={"one": newer}.get)
        assert told(conn, config=config) == [*found, gone]
    plain = replace(current_config(), node_resolver={"one": of_a_node}.get)
    assert told(conn, config=plain) == [("breaks", "one", 1, f"node:{job}"), gone]
    # What cannot be run at all is told of elsewhere, and does no step again.
    broken = replace(current_config(), node_resolver={"one": SimpleNamespace(run=1, DURABLE=True)}.get)
    assert told(conn, config=broken) == [gone]
