"""`run_workflow`: a document taken to its end in the test's process, over waits, retries and answers."""

from __future__ import annotations

from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from queue_workflows import (
    ConfigurationError,
    JobContext,
    ModelSpec,
    PayloadError,
    on_run_finished,
    set_model_registrar,
)
from queue_workflows.config import reset_config
from queue_workflows.repositories import NodeJobRepository
from queue_workflows.testing import run_workflow

FILM = {
    "name": "film",
    "inputs": {"brief": {"type": "string"}},
    "nodes": [
        {"id": "plan", "module": "plan", "inputs": {"brief": {"$from": "inputs.brief"}}},
        {
            "id": "draw",
            "module": "draw",
            "queue": "gpu",
            "for_each": {"$from": "plan.scenes"},
            "inputs": {"scene": {"$from": "item"}},
            "retry": {"max_attempts": 3, "backoff_s": 3600},
        },
        {"id": "rest", "type": "wait", "seconds": 86400, "depends_on": ["draw"]},
        {"id": "approve", "type": "input", "depends_on": ["rest"], "schema": {"ok": {"type": "boolean"}}},
        {"id": "publish", "module": "publish", "inputs": {"ok": {"$from": "approve.ok"}}},
    ],
    "outputs": {"url": {"$from": "publish.url"}},
}


def plan(inputs: dict[str, Any]) -> dict[str, Any]:
    return {"scenes": inputs["brief"].split()}


async def draw(inputs: dict[str, Any], *, ctx: JobContext) -> dict[str, Any]:
    if inputs["scene"] == "b" and ctx.attempt < 3:
        raise RuntimeError(f"no light, attempt {ctx.attempt}")
    return {"drawn": inputs["scene"]}


def publish(inputs: dict[str, Any]) -> dict[str, Any]:
    return {"url": f"film/{inputs['ok']}"}


MODULES = {"plan": SimpleNamespace(run=plan), "draw": draw, "publish": publish}


def test_a_run_goes_to_its_end_over_waits_and_retries(qwf_jobs) -> None:
    """With the engine's own dispatcher, claims, executor and ends; the clock is moved by what had to pass."""
    run = qwf_jobs.run_workflow(FILM, {"brief": "a b"}, MODULES, answers={"approve": {"ok": True}})
    assert (run.status, run.outputs) == ("completed", {"url": "film/True"})
    assert run.nodes == dict.fromkeys(("plan", "draw", "rest", "approve", "publish"), "completed")
    assert [(job.name, job.attempt, job.status) for job in run.jobs] == [
        ("plan", 1, "completed"),
        ("draw[0]", 1, "completed"),
        ("draw[1]", 1, "scheduled"),
        ("draw[1]", 2, "scheduled"),
        ("draw[1]", 3, "completed"),
        ("publish", 1, "completed"),
    ]
    assert run.results("draw") == [{"drawn": "a"}, {"drawn": "b"}]
    assert run.jobs[2].error["message"] == "no light, attempt 1"
    assert timedelta(hours=26) < run.waited < timedelta(days=2)


def test_a_run_that_waits_for_an_answer_says_so(qwf_jobs) -> None:
    """It is not over, and names the node."""
    run = qwf_jobs.run_workflow(FILM, {"brief": "a"}, MODULES)
    assert (run.status, run.waits_for, run.nodes["publish"]) == ("running", ("approve",), "waiting")


def test_a_clock_that_is_moved_by_hand(qwf_jobs) -> None:
    """The run stands at its wait until the test lets the time pass."""
    run = qwf_jobs.run_workflow(FILM, {"brief": "a"}, MODULES, moves_clock=False)
    assert (run.nodes["rest"], run.waited) == ("awaiting_input", timedelta())
    nodes = NodeJobRepository(qwf_jobs.conn)
    (rest,) = nodes.list(node_id="rest")
    qwf_jobs.advance(timedelta(hours=23))
    qwf_jobs.drain(modules=MODULES)
    assert nodes.fetch(rest.id).status == "awaiting_input"
    qwf_jobs.advance(timedelta(hours=2))
    qwf_jobs.drain(modules=MODULES)
    assert nodes.fetch(rest.id).status == "completed"


def test_a_node_that_fails_fails_the_run(qwf_jobs) -> None:
    """The outcome has the error; the exception is raised for a test that wants it."""

    def broken(inputs: dict[str, Any]) -> None:
        raise KeyError("brief")

    once = {**FILM, "nodes": [{**FILM["nodes"][0], "retry": {"max_attempts": 1}}], "outputs": {}}
    run = qwf_jobs.run_workflow(once, {"brief": "a"}, {"plan": broken})
    assert (run.status, run.nodes) == ("failed", {"plan": "failed"})
    assert "KeyError" in (run.error or "")
    with pytest.raises(KeyError):
        qwf_jobs.run_workflow(once, {"brief": "a"}, {"plan": broken}, raises=True)


def test_children_and_the_hooks_of_ended_runs(qwf_jobs) -> None:
    """A child workflow is found among the test's documents, and `on_run_finished` is told of both."""
    told: list[tuple[str, str]] = []
    on_run_finished(lambda run: told.append((run.workflow, run.status)))
    try:
        parent = {
            "name": "parent",
            "nodes": [{"id": "child", "type": "workflow", "workflow": "child", "inputs": {"n": 2}}],
            "outputs": {"twice": {"$from": "child.twice"}},
        }
        child = {
            "name": "child",
            "nodes": [{"id": "double", "module": "double", "inputs": {"n": {"$from": "inputs.n"}}}],
            "outputs": {"twice": {"$from": "double.twice"}},
        }
        modules = {"double": lambda inputs: {"twice": inputs["n"] * 2}}
        run = qwf_jobs.run_workflow(parent, None, modules, documents={"child": child})
        assert (run.status, run.outputs) == ("completed", {"twice": 4})
        assert sorted(told) == [("child", "completed"), ("parent", "completed")]
    finally:
        reset_config()


DRAW = {
    "name": "drawing",
    "nodes": [{"id": "draw", "module": "draw", "queue": "gpu", "model": "sdxl"}],
    "outputs": {"by": {"$from": "draw.by"}},
}


def draw_by(inputs: dict[str, Any], *, model: Any) -> dict[str, Any]:
    return {"by": str(model)}


def test_nodes_get_their_models(qwf_jobs) -> None:
    """Those of the test, else those of the application, which are let go of in the end."""
    modules, let_go = {"draw": draw_by}, []
    run = qwf_jobs.run_workflow(DRAW, None, modules, models={"sdxl": "a double"})
    assert (run.status, run.outputs) == ("completed", {"by": "a double"})
    set_model_registrar(lambda: [ModelSpec("sdxl", load=lambda: "the real one", unload=let_go.append)])
    try:
        run = qwf_jobs.run_workflow(DRAW, None, modules)
        assert (run.outputs, let_go) == ({"by": "the real one"}, ["the real one"])
    finally:
        reset_config()


def test_what_cannot_be_run_here_is_said(qwf_jobs) -> None:
    """A model that nobody knows, and hooks."""
    with pytest.raises(ConfigurationError, match=r"draw wants the model 'sdxl'.*") as refused:
        qwf_jobs.run_workflow(DRAW, None, {"draw": draw_by})
    assert "models={name: object}" in str(refused.value.advice)
    qwf_jobs.clear()
    hook = {"name": "hook", "nodes": [{"id": "h", "module": "on_x__01_y", "queue": "hooks"}]}
    with pytest.raises(ConfigurationError, match="1 jobs of hooks are queued"):
        qwf_jobs.run_workflow(hook)
    assert qwf_jobs.drain(queues=["fetch", "cpu"]) == []


def test_wrong_use_is_refused(qwf_jobs, qwf_conn) -> None:
    """In a transaction, or with inputs that the document does not allow; nothing is written."""
    with pytest.raises(ConfigurationError, match="takes a psycopg connection in autocommit"):
        run_workflow(FILM, {"brief": "a"}, MODULES, conn=qwf_conn)
    with pytest.raises(PayloadError):
        qwf_jobs.run_workflow(FILM, {"brief": 7}, MODULES)
    assert qwf_jobs.conn.execute("SELECT count(*) FROM workflow_runs").fetchone() == (0,)
