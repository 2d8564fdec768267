"""What a node's or a task's jobs hold, by a name that is written or comes from the run's data."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psycopg
import pytest
from support.processes.workers import patiently, running_orchestrator, running_worker
from support.rows.claim_sessions import CLEAR_LIMITS, Hand
from support.rows.jobs import CLEAR

from queue_workflows import start_run
from queue_workflows.engine.registry.tasks import TaskRegistry
from queue_workflows.engine.runs.named_locks import Names, names_of
from queue_workflows.errors import DocumentError, PayloadError, RefError
from queue_workflows.repositories import LimitRepository, RunRepository, enqueue_ingest_job
from queue_workflows.workflow.document.load import TaskNode, load_document

INPUTS: dict[str, Any] = {
    "device": "camera",
    "none": None,
    "flag": True,
    "empty": "elsewhere:",
    "away": "elsewhere:a",
}
SCOPE: dict[str, Any] = {"inputs": INPUTS, "run": {}}


def node(**fields: Any) -> TaskNode:
    found = load_document({"name": "w", "nodes": [{"id": "n", "module": "m", **fields}]}).nodes[0]
    assert isinstance(found, TaskNode)
    return found


def names(**fields: Any) -> Names:
    (found,) = names_of(node(**fields), None, [None], SCOPE, None).values()
    return found


def test_a_nodes_lock_and_key_come_from_words_or_data() -> None:
    """Literals, references, whole numbers such as ports; null is no lock; the policy is part of the name."""
    assert names(host_lock="camera") == Names("camera", None)
    assert names(host_lock={"$from": "inputs.device"}) == Names("camera", None)
    assert names(host_lock={"$value": 8080}) == Names("8080", None)
    assert names(host_lock={"$from": "inputs.none"}) == Names(None, None)
    elsewhere = {"name": {"$from": "inputs.device"}, "when_held": "elsewhere"}
    assert names(host_lock=elsewhere) == Names("elsewhere:camera", None)
    assert names(host_lock={"name": "camera", "when_held": "wait"}) == Names("camera", None)
    assert names(exclusive={"$from": "inputs.device"}) == Names(None, "exclusive:camera")
    assert names_of(node(limit_key="k"), None, [None], SCOPE, None) == {}
    with pytest.raises(RefError, match=r"n\.host_lock: it is no name: it must be a text, or a whole number"):
        names(host_lock={"$from": "inputs.flag"})
    with pytest.raises(RefError, match=r"n\.host_lock: it is no name: it must be a name"):
        names(host_lock={"$from": "inputs.empty"})
    assert names(host_lock={"$from": "inputs.away"}) == Names("elsewhere:a", None)
    with pytest.raises(RefError, match=r"n\.host_lock: it is no name: .* does not begin with `elsewhere:`"):
        names(host_lock={"name": {"$from": "inputs.away"}, "when_held": "elsewhere"})


def test_each_element_has_its_own() -> None:
    """One lock for each port of a list."""
    each = node(for_each={"$value": [{"port": 1}, {"port": 2}]}, host_lock={"$from": "item.port"})
    elements = [{"port": 1}, {"port": 2}]
    assert names_of(each, elements, range(2), SCOPE, None) == {0: Names("1"), 1: Names("2")}


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"host_lock": {"$from": "nobody.x"}}, "there is no node 'nobody'"),
        ({"host_lock": 7}, "must be a name, or a reference"),
        ({"host_lock": {"name": "a", "when_held": "never"}}, "neither wait nor elsewhere"),
        ({"host_lock": {"name": "a", "policy": "wait"}}, "no 'policy'"),
        ({"host_lock": "elsewhere:"}, "must be a name"),
        ({"host_lock": {"name": "elsewhere:", "when_held": "elsewhere"}}, "must be a name"),
        ({"host_lock": {"name": "elsewhere:a", "when_held": "elsewhere"}}, "does not begin with `elsewhere"),
        ({"host_lock": {"name": "elsewhere:a", "when_held": "wait"}}, "does not begin with `elsewhere"),
        ({"host_lock": "elsewhere:elsewhere:a"}, "does not begin with `elsewhere"),
        ({"host_lock": {"name": {"name": "a"}}}, "must be a name, or a reference"),
        ({"host_lock": {}}, "must be a name, or a reference"),
        ({"exclusive": {"from": "inputs.device"}}, "must be a name, or a reference"),
        ({"exclusive": "a*"}, "must name one key"),
        ({"exclusive": "a\nb"}, "must be a name"),
        ({"exclusive": "a", "limit_key": "b"}, "a job takes one key"),
    ],
)
def test_what_a_document_may_not_say(fields: dict[str, Any], said: str) -> None:
    """It is refused when the document is loaded."""
    with pytest.raises(DocumentError, match=said):
        node(**fields)


def test_a_node_waits_for_what_its_lock_is_named_after() -> None:
    """As for any other reference."""
    document = load_document(
        {
            "name": "w",
            "nodes": [
                {"id": "find", "module": "m"},
                {"id": "n", "module": "m", "host_lock": {"$from": "find.device"}},
            ],
        }
    )
    assert document.parents["n"] == ("find",)


def test_a_task_says_what_its_jobs_hold() -> None:
    """Once, where it is registered; a job may say otherwise, in either word."""
    registry = TaskRegistry()
    scan = registry.register(
        "scan", lambda reason: None, queue="fetch", host_lock="scanner", exclusive="account"
    )
    assert (scan.job().host_lock, scan.job().limit_key) == ("scanner", "exclusive:account")
    assert scan.job(limit_key="api").limit_key == "api"
    assert scan.job(exclusive="other").limit_key == "exclusive:other"
    with pytest.raises(PayloadError, match="takes a slot of one key"):
        scan.job(exclusive="other", limit_key="api")


def test_what_is_exclusive_has_one_job_at_a_time_whatever_is_set(qwf_dsn: str) -> None:
    """Its cap cannot be raised by a limit of its own, by a pattern, or by hand; it can be closed."""
    with psycopg.connect(qwf_dsn, autocommit=True) as conn:
        conn.execute(f"{CLEAR}; {CLEAR_LIMITS}")
        limits = LimitRepository(conn)
        with pytest.raises(PayloadError, match="the cap of 'exclusive:account' is one"):
            limits.set("exclusive:account", 2, actor="ann")
        limits.set("*", 5, actor="ann")
        found = limits.effective("exclusive:account")
        assert found is not None
        assert found.max_slots == 1
        for queue in ("fetch", "load", "load"):
            enqueue_ingest_job("task", queue=queue, exclusive="account", conn=conn)
        with pytest.raises(PayloadError, match=r"both exclusive and limit_key .* by ctx\.limit"):
            enqueue_ingest_job("task", queue="fetch", exclusive="account", limit_key="api", conn=conn)
        conn.execute("UPDATE concurrency_limits SET max_slots = 9")
        one, two = Hand(conn, "ingest", "a:fetch:1", "fetch"), Hand(conn, "ingest", "b:load:1", "load")
        assert (len(one.claim(3)), len(two.claim(3))) == (1, 0)
        one.end()
        assert len(two.claim(3)) == 1
        two.end()
        limits.set("exclusive:account", 0, actor="ann")
        assert two.claim(3) == []


@pytest.mark.slow
def test_a_lock_that_a_run_names_is_held_in_a_real_worker(qwf_dsn: str, tmp_path: Path) -> None:
    """Through an orchestrator into the rows, and from there to workers of one host: each port by itself."""
    each = {
        "id": "deploy",
        "module": "alone",
        "for_each": {"$from": "plan.ports"},
        "host_lock": {"$from": "item.port"},
        "inputs": {"port": {"$from": "item.port"}, "place": {"$from": "inputs.place"}},
        "retry": {"max_attempts": 1},
    }
    ports = [{"port": 7001}, {"port": 7001}, {"port": 7002}]
    plan = {"id": "plan", "module": "echo", "inputs": {"ports": {"$value": ports}}}
    lock_dir = {"QWF_LOCK_DIR": str(tmp_path / "locks")}
    with psycopg.connect(qwf_dsn, autocommit=True) as connection, ExitStack() as stack:
        connection.execute(f"{CLEAR}; {CLEAR_LIMITS}")
        stack.enter_context(running_orchestrator(qwf_dsn))
        for _ in range(2):
            stack.enter_context(running_worker(qwf_dsn, "--queue", "cpu", **lock_dir))
        document = {"name": "w", "nodes": [plan, each]}
        run = start_run(document, {"place": str(tmp_path)}, conn=connection)
        jobs = "SELECT host_lock, status, hold_key FROM workflow_node_jobs WHERE node_id = 'deploy'"
        running = [("7001", "running", None), ("7001", "scheduled", "7001"), ("7002", "running", None)]
        patiently(lambda: sorted(connection.execute(jobs).fetchall()) == running)
        (tmp_path / "go").touch()
        ended = patiently(lambda: (found := RunRepository(connection).fetch(run.id)).finished_at and found)
        assert ended.status == "completed", ended.error
