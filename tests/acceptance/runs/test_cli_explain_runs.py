"""`qwf explain` of runs and nodes: for each way in which one can wait or end, the reason and its code."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from support.connections.kept import own_connection
from support.processes.commands import qwf_here
from support.processes.workers import running_orchestrator, until
from support.rows.jobs import CLEAR_WITH_WORKERS, ending
from support.rows.runs import dispatcher, run_through, settle, start, work

from queue_workflows import cancel_run
from queue_workflows.repositories import HeartbeatRepository, NodeJobRepository, RunRepository

FILM: dict[str, Any] = {
    "name": "film",
    "nodes": [
        {"id": "plan", "module": "plan"},
        {"id": "draw", "module": "draw", "queue": "gpu", "for_each": {"$from": "plan.scenes"}},
        {"id": "approve", "type": "input", "depends_on": ["plan"], "expires_s": 3600},
        {"id": "cut", "module": "cut", "depends_on": ["draw", "approve"]},
    ],
}


class Asker:
    """Asks about one run after the other."""

    def __init__(self, connection: psycopg.Connection, dsn: str) -> None:
        self.connection, self.dsn = connection, dsn
        self.dispatcher = dispatcher(connection)

    def start(self, document: dict[str, Any] = FILM) -> uuid.UUID:
        return start(self.connection, document)

    def ask(self, *what: object) -> dict[str, dict[str, Any]]:
        """The reasons by their codes, without who is missing in every test."""
        told = self.told(*what)
        return {one["code"]: one for one in told["reasons"] if one["code"] != "no_orchestrator"}

    def told(self, *what: object) -> dict[str, Any]:
        said = qwf_here("--db", self.dsn, "explain", *map(str, what), "--json")
        return json.loads(said.stdout)

    def work(self, **results: Any) -> None:
        """Do what is queued, and act upon it."""
        work(self.connection, lambda job: results.get(job.node_id, {}))
        settle(self.dispatcher)


@pytest.fixture
def asker(qwf_dsn: str) -> Iterator[Asker]:
    """Empty tables, no worker and no orchestrator."""
    with own_connection(qwf_dsn) as connection:
        connection.execute(CLEAR_WITH_WORKERS)
        yield Asker(connection, qwf_dsn)


def test_nobody_has_begun_it(asker: Asker) -> None:
    """And why: no orchestrator is connected; with one, that is no reason any more."""
    run_id = asker.start({"name": "film", "nodes": [{"id": "approve", "type": "input"}]})
    told = asker.told(run_id)
    assert (told["run"], told["status"]) == (str(run_id), "queued")
    assert [one["code"] for one in told["reasons"]] == ["not_begun", "no_orchestrator"]
    with running_orchestrator(asker.dsn):
        until(lambda: [one["code"] for one in asker.told(run_id)["reasons"]] == ["awaiting_input"])


def test_what_its_open_jobs_wait_for(asker: Asker) -> None:
    """The claim's own reasons for the first of each kind, who is asked, and how many wait behind them."""
    run_id = asker.start()
    settle(asker.dispatcher)
    told = asker.ask(run_id)
    assert list(told) == ["jobs_queued", "no_worker", "nodes_waiting"]
    assert told["no_worker"]["data"] == {"queue": "cpu", "node": "plan"}
    assert told["nodes_waiting"]["data"] == {"nodes": 3}
    asker.work(plan={"scenes": ["a", "b", "c"]})
    told = asker.ask(run_id)
    assert told.keys() == {"jobs_queued", "no_worker", "awaiting_input", "nodes_waiting"}
    assert told["jobs_queued"]["data"] | {"first": None} == {
        "node": "draw", "jobs": 3, "queue": "gpu", "first": None
    }  # fmt: skip
    assert f"qwf run submit-input {run_id} approve" in told["awaiting_input"]["text"]
    HeartbeatRepository(asker.connection).beat("w", host_label="h", queue="gpu", pid=7, state="idle")
    assert "no_worker" not in asker.ask(run_id)


def test_one_node(asker: Asker) -> None:
    """Which of its parents it waits for; once they are over, what its own jobs wait for."""
    run_id = asker.start()
    settle(asker.dispatcher)
    told = asker.ask(run_id, "cut")
    assert told["parents"]["data"] == {"waits_for": ["draw", "approve"], "when": "all_success"}
    assert "draw (waiting), approve (waiting)" in told["parents"]["text"]
    assert list(asker.ask(run_id, "plan")) == ["jobs_queued", "no_worker"]
    asker.work(plan={"scenes": []})
    assert "approve (active); 1 of 2 are over" in asker.ask(run_id, "cut")["parents"]["text"]
    assert list(asker.ask(run_id, "approve")) == ["awaiting_input"]
    assert asker.told(run_id, "plan")["headline"] == f"node plan of run:{run_id} is completed"
    assert "there is no" in qwf_here("--db", asker.dsn, "explain", str(uuid.uuid4()), status=2).stderr
    assert "has no node" in qwf_here("--db", asker.dsn, "explain", str(run_id), "x", status=2).stderr
    assert "goes with a run" in qwf_here("--db", asker.dsn, "explain", "7", "x", status=2).stderr


def test_an_answer_that_comes_too_late_is_not_asked_for(asker: Asker) -> None:
    """Where no orchestrator has ended the node yet, its time is over all the same."""
    run_id = asker.start({"name": "film", "nodes": [{"id": "approve", "type": "input", "expires_s": 3600}]})
    settle(asker.dispatcher)
    assert list(asker.ask(run_id)) == ["awaiting_input"]
    asker.connection.execute("UPDATE workflow_node_jobs SET expires_at = now() - interval '1 s'")
    (told,) = asker.ask(run_id, "approve").values()
    assert told["code"] == "expired"
    assert "submit-input" not in told["text"]


def test_a_run_of_its_own_and_a_wait(asker: Asker) -> None:
    """By the child's id, to ask on; and until when."""
    scene = {"name": "scene", "nodes": [{"id": "ask", "type": "input"}]}
    asker.dispatcher = dispatcher(asker.connection, scene)
    nodes = [
        {"id": "scene", "type": "workflow", "workflow": "scene"},
        {"id": "nap", "type": "wait", "seconds": 3600},
    ]
    run_id = asker.start({"name": "film", "nodes": nodes})
    settle(asker.dispatcher)
    told = asker.ask(run_id)
    (child,) = RunRepository(asker.connection).list(parent_run_id=run_id)
    assert told.keys() == {"child_run", "wait"}
    assert told["child_run"]["data"]["run_id"] == str(child.id)
    assert list(asker.ask(child.id)) == ["awaiting_input"]
    jobs = {job.node_id: job.id for job in NodeJobRepository(asker.connection).list(run_id=run_id)}
    assert list(asker.ask(f"node:{jobs['scene']}")) == ["child_run"]
    assert list(asker.ask(f"node:{jobs['nap']}")) == ["wait"]


def test_what_has_happened_and_nobody_has_acted_upon(asker: Asker) -> None:
    """An end, a cancel; and an event that fails, until it is given up."""
    run_id = asker.start()
    settle(asker.dispatcher)
    work(asker.connection, lambda job: {"scenes": []})
    assert asker.ask(run_id)["events_due"]["data"]["events"] == 1
    cancel_run(run_id, conn=asker.connection)
    assert {"cancelling", "events_due"} <= asker.ask(run_id).keys()
    asker.connection.execute("DELETE FROM workflow_dispatch_events WHERE kind = 'cancel'")
    change = "UPDATE workflow_dispatch_events SET tries = 2, last_error = 'KeyError: plan', next_try_at = %s"
    asker.connection.execute(change, ["2040-01-01Z"])
    told = asker.ask(run_id)
    assert "events_due" not in told
    assert "completed of plan) failed, 2 tries: KeyError: plan" in told["event_failing"]["text"]
    asker.connection.execute("UPDATE workflow_dispatch_events SET poisoned_at = now()")
    told = asker.ask(run_id)
    assert "events_due" not in told
    assert f"qwf run unpoison {run_id}" in told["poisoned"]["text"]


def test_how_it_ended(asker: Asker) -> None:
    """Which node failed and what it said; who cancelled it and why; how to run it again."""
    failed = asker.start(
        {"name": "film", "nodes": [{"id": "plan", "module": "m", "retry": {"max_attempts": 1}}]}
    )
    settle(asker.dispatcher)
    (job,) = NodeJobRepository(asker.connection).claim("cpu", worker_id="w", lease_s=60)
    error = {"kind": "exception", "type": "ValueError", "message": "no use"}
    NodeJobRepository(asker.connection).end_many([ending(job, "failed", error=error, counts=True)])
    settle(asker.dispatcher)
    told = asker.ask(failed)
    assert list(told) == ["run_over", "took"]
    assert "node plan: ValueError: no use" in told["run_over"]["text"]
    assert f"qwf run retry {failed}" in told["run_over"]["text"]
    assert list(asker.ask(failed, "plan")) == ["run_over", "node_error"]

    cancelled = asker.start()
    cancel_run(cancelled, conn=asker.connection, actor="ann", reason="too dear")
    run_through(asker.connection, asker.dispatcher, lambda job: {})
    told = asker.told(cancelled)
    assert "too dear" in told["reasons"][0]["text"]
    assert "run.cancel by ann: too dear" in [event["text"] for event in told["history"]]
    said = qwf_here("--db", asker.dsn, "explain", f"run:{cancelled}", "cut").stdout
    assert said.startswith(f"node cut of run:{cancelled} is cancelled\n")


def test_a_run_of_the_host_apps_own(asker: Asker) -> None:
    """No orchestrator of ours would go on with it, so none is asked for."""
    run_id = RunRepository(asker.connection).insert("film", spec={}, spec_hash="h", mode="shop").id
    told = asker.told(run_id)
    assert [one["code"] for one in told["reasons"]] == ["foreign_mode"]
