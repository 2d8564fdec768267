"""A node of a workflow may be a durable function: its job parks, and keeps what it did."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest
from click.testing import CliRunner

from queue_workflows import cancel_run, emit_event, retry_run, start_run
from queue_workflows.cli.main import cli
from queue_workflows.engine.registry.node_modules import ModuleResolver
from queue_workflows.engine.registry.tasks import ingest_task
from queue_workflows.engine.upkeep.retention import Pruning
from queue_workflows.engine.watch.run_reader import RunReader
from queue_workflows.errors import ConfigurationError
from queue_workflows.settings import Settings
from queue_workflows.testing import drain, run_workflow

DONE: list[str] = []
BROKEN: set[str] = set()


@ingest_task("halved", queue="load")
def halved(reason: str | None, args: dict[str, Any]) -> float:
    """A child."""
    return args["n"] / 2


def do(what: str) -> str:
    """A step that counts, and fails while it is broken."""
    if what in BROKEN:
        raise ValueError(f"{what} is broken")
    DONE.append(what)
    return what


def parks(inputs: dict[str, Any], *, ctx: Any) -> dict[str, Any]:
    """A step, a sleep, an event, two children and a step."""
    one = inputs["one"]
    ctx.step("before", do, f"before {one}")
    ctx.sleep(days=1)
    answer = ctx.wait_event(f"go {one}")
    halves = ctx.gather(*[ctx.spawn(halved, {"n": n}) for n in (2, 4)])
    ctx.step("after", do, f"after {one}", retries=0)
    return {"answer": answer, "halves": halves}


async def parks_async(inputs: dict[str, Any], *, ctx: Any) -> dict[str, Any]:
    """`parks`, awaited."""
    one = inputs["one"]
    await ctx.step("before", do, f"before {one}")
    await ctx.sleep(days=1)
    answer = await ctx.wait_event(f"go {one}")
    halves = await ctx.gather(*[ctx.spawn(halved, {"n": n}) for n in (2, 4)])
    await ctx.step("after", do, f"after {one}", retries=0)
    return {"answer": answer, "halves": halves}


def rounds(inputs: dict[str, Any], *, ctx: Any) -> dict[str, Any]:
    """Three rounds, each with other inputs."""
    ctx.step("count", do, f"round {inputs['one']}")
    if inputs["one"] < 3:
        ctx.continue_as_new({"one": inputs["one"] + 1})
    return {"answer": inputs["one"]}


def node(**said: Any) -> dict[str, Any]:
    """A document of one durable node, and one that reads what it came to."""
    return {
        "name": "parks",
        "inputs": {"one": {}},
        "nodes": [
            {"id": "first", "module": "plain", "queue": "cpu", "inputs": {"one": {"$from": "inputs.one"}}},
            {
                "id": "long",
                "module": "long",
                "queue": "cpu",
                "inputs": {"one": {"$from": "first.one"}},
                "retry": {"max_attempts": 1},
                **said,
            },
        ],
        "outputs": {"long": {"$from": "long"}},
    }


def modules(run: Any = parks, **said: Any) -> dict[str, Any]:
    """The two modules."""
    return {
        "plain": lambda inputs: {"one": inputs["one"], "list": [1, 2]},
        "long": SimpleNamespace(run=run, DURABLE=True, **said),
    }


@pytest.fixture
def conn(qwf_configured: str) -> Iterator[psycopg.Connection]:
    """Nothing is stored, done or broken."""
    DONE.clear()
    BROKEN.clear()
    with psycopg.connect(qwf_configured, autocommit=True) as connection:
        connection.execute(
            "TRUNCATE workflow_runs, ingest_jobs, durable_steps, durable_events, retention_marks CASCADE"
        )
        yield connection


def asked(*words: str) -> str:
    """What a command prints."""
    found = CliRunner().invoke(cli, list(words), catch_exceptions=False)
    assert found.exit_code == 0, found.output
    return found.output


@pytest.mark.parametrize("run", [parks, parks_async], ids=["sync", "async"])
def test_its_job_parks_and_goes_on(conn: psycopg.Connection, run: Any):
    """Each step once, over a day, an event and children; it is told what the node waits for."""
    found = run_workflow(node(), {"one": 1}, modules(run), conn=conn)
    assert (found.status, found.nodes, DONE) == (
        "running",
        {"first": "completed", "long": "scheduled"},
        ["before 1"],
    )
    assert "waits for the event 'go 1' since" in asked("explain", str(found.id), "long")
    assert "waits for the event 'go 1' since" in asked("explain", str(found.id))
    assert "held: event" in asked("run", "show", str(found.id))
    ((job,),) = conn.execute("SELECT id FROM workflow_node_jobs WHERE node_id = 'long'").fetchall()
    assert "step 1 before: done" in asked("job", "show", f"node:{job}")
    emit_event("go 1", {"yes": True}, conn=conn)
    drain(conn=conn, modules=modules(run), with_scheduled=True)
    ended = RunReader(found.id).look(conn)
    assert ended.outputs == {"long": {"answer": {"yes": True}, "halves": [1.0, 2.0]}}
    assert DONE == ["before 1", "after 1"]
    assert conn.execute("SELECT DISTINCT job_family, job_id FROM durable_steps").fetchall() == [("node", job)]
    # What it did goes with its run.
    conn.execute("UPDATE workflow_runs SET finished_at = now() - interval '33 days'")
    Pruning(Settings()).prune(conn)
    assert conn.execute("SELECT FROM durable_steps").fetchall() == []


def test_a_retry_goes_on_where_it_failed(conn: psycopg.Connection):
    """With what it did before; but from its start where a node before it runs again, or it is named."""
    emit_event("go 1", conn=conn)
    BROKEN.add("after 1")
    found = run_workflow(node(), {"one": 1}, modules(), conn=conn)
    assert (found.status, DONE) == ("failed", ["before 1"])
    BROKEN.clear()
    retry_run(found.id, conn=conn)
    drain(conn=conn, modules=modules(), with_scheduled=True)
    assert (RunReader(found.id).look(conn).status, DONE) == ("completed", ["before 1", "after 1"])
    for again in ("first", "long"):
        DONE.clear()
        emit_event("go 1", conn=conn)
        retry_run(found.id, conn=conn, from_node=again)
        drain(conn=conn, modules=modules(), with_scheduled=True)
        assert (RunReader(found.id).look(conn).status, DONE) == ("completed", ["before 1", "after 1"])


@pytest.mark.parametrize("by", ["run", "job"])
def test_a_cancel_reaches_the_children_of_each_element(conn: psycopg.Connection, by: str):
    """Of a list each element is a function; those that are over keep their children's results."""
    many = node(for_each={"$from": "first.list"}, inputs={"one": {"$from": "item"}})
    for one in (1, 2):
        emit_event(f"go {one}", conn=conn)
    run = start_run(many, {"one": 1}, conn=conn)
    drain(conn=conn, modules=modules(), queues=["cpu"], with_scheduled=True)
    count = "SELECT count(*) FROM ingest_jobs WHERE status = 'queued' AND spawned_by LIKE 'node:%'"
    assert conn.execute(count).fetchall() == [(4,)]
    if by == "run":
        cancel_run(run.id, conn=conn)
    else:
        for (job,) in conn.execute("SELECT id FROM workflow_node_jobs WHERE map_index >= 0").fetchall():
            asked("job", "cancel", f"node:{job}")
    drain(conn=conn, modules=modules(), queues=["cpu"])
    assert RunReader(run.id).look(conn).status == "cancelled" if by == "run" else True
    assert conn.execute("SELECT DISTINCT status FROM ingest_jobs").fetchall() == [("cancelled",)]


@pytest.mark.parametrize("how", ["cancel", "neighbour"])
def test_a_retry_goes_on_with_children_that_the_stop_cancelled(conn: psycopg.Connection, how: str):
    """After a cancel of the run, or the failure of a neighbour; the node's own steps are not done again."""
    document = node()
    document["nodes"].append({"id": "bad", "module": "bad", "queue": "gpu", "retry": {"max_attempts": 1}})
    emit_event("go 1", conn=conn)
    run = start_run(document, {"one": 1}, conn=conn)
    found = modules() | {"bad": lambda inputs: {"did": do("bad")}}
    drain(conn=conn, modules=found, queues=["cpu"], with_scheduled=True)
    if how == "cancel":
        cancel_run(run.id, conn=conn)
    BROKEN.add("bad")
    drain(conn=conn, modules=found, queues=["gpu"])
    assert conn.execute("SELECT DISTINCT status FROM ingest_jobs").fetchall() == [("cancelled",)]
    BROKEN.clear()
    retry_run(run.id, conn=conn)
    drain(conn=conn, modules=found, with_scheduled=True)
    assert RunReader(run.id).look(conn).status == "completed"
    assert sorted(DONE) == ["after 1", "bad", "before 1"]


def test_each_element_goes_on_by_itself(conn: psycopg.Connection):
    """The list of their results is in its order, whichever was woken first."""
    many = node(for_each={"$from": "first.list"}, inputs={"one": {"$from": "item"}})
    emit_event("go 2", 2, conn=conn)
    found = run_workflow(many, {"one": 1}, modules(), conn=conn)
    emit_event("go 1", 1, conn=conn)
    drain(conn=conn, modules=modules(), with_scheduled=True)
    ended = RunReader(found.id).look(conn)
    assert [one["answer"] for one in ended.outputs["long"]] == [1, 2]
    assert sorted(DONE) == ["after 1", "after 2", "before 1", "before 2"]


def test_a_node_without_an_end_begins_anew(conn: psycopg.Connection):
    """With other inputs each time, which are those of the function alone."""
    found = run_workflow(node(), {"one": 1}, modules(rounds), conn=conn)
    assert (found.outputs, DONE) == ({"long": {"answer": 3}}, ["round 1", "round 2", "round 3"])


def test_it_goes_on_with_its_version(conn: psycopg.Connection):
    """Where a worker has none of that, the job waits for one that does."""
    found = run_workflow(node(), {"one": 1}, modules(VERSION="1"), conn=conn)
    emit_event("go 1", conn=conn)
    newer = modules(lambda inputs, *, ctx: {"new": True}, VERSION="2")
    drain(conn=conn, modules=newer, with_scheduled=True)
    assert conn.execute(
        "SELECT hold_reason, hold_key FROM workflow_node_jobs WHERE node_id = 'long'"
    ).fetchall() == [("unknown_module", "long@1")]
    newer["long"].VERSIONS = {"1": parks}
    assert ModuleResolver(resolver=newer.get).knows("long@1")
    assert not ModuleResolver(resolver=newer.get).knows("long@3")
    assert not ModuleResolver(resolver=newer.__getitem__).knows("long@3")
    conn.execute("UPDATE workflow_node_jobs SET run_at = now() WHERE status = 'scheduled'")
    drain(conn=conn, modules=newer, with_scheduled=True)
    assert RunReader(found.id).look(conn).outputs["long"]["halves"] == [1.0, 2.0]


def test_what_may_begin_once_is_not_durable(conn: psycopg.Connection):
    """Said by the module, or by the document."""
    with pytest.raises(ConfigurationError, match="at_most_once forbids that"):
        ModuleResolver(resolver=lambda _: SimpleNamespace(run=parks, DURABLE=True, AT_MOST_ONCE=True)).look(
            "x"
        )
    found = run_workflow(node(at_most_once=True, retry=None), {"one": 1}, modules(), conn=conn)
    assert (found.status, DONE) == ("failed", [])
    assert "at_most_once forbids that" in str(found.error)
