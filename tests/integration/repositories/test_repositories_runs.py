"""Runs, their node jobs, dispatch events and input submissions."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime
from typing import Any

import psycopg
import pytest

from queue_workflows.repositories import (
    DispatchEventRepository,
    EventCounts,
    InputSubmissionRepository,
    NewNodeJob,
    NodeJobRepository,
    ParentNode,
    RunRepository,
)

RUN: dict[str, Any] = {
    "workflow_name": "film",
    "mode": "node",
    "spec": {"nodes": [{"id": "plan"}]},
    "spec_hash": "abc",
    "inputs": {"brief": "x"},
    "priority": 8,
    "dedupe_key": "k",
    "labels": {"team": "red", "n": 1},
    "parcel_id": "parcel-7",
    "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
}
NODE: dict[str, Any] = {
    "node_id": "draw",
    "queue": "gpu",
    "map_index": 4,
    "kind": "task",
    "node_module": "draw",
    "plugin": "plug",
    "inputs": {"scene": {"$from": "item"}},
    "priority": 2,
    "host_priority": -3,
    "required_model": "sdxl",
    "step": 1,
    "background": True,
    "limit_key": "host:a",
    "max_attempts": 4,
    "backoff_s": 1.5,
    "timeout_s": 600.0,
    "stall_timeout_s": 120.0,
    "host_lock": "lock",
    "traceparent": "00-0",
}


@pytest.fixture
def runs(qwf_conn: psycopg.Connection) -> RunRepository:
    """The repository on empty tables."""
    qwf_conn.execute("DELETE FROM workflow_runs")
    return RunRepository(qwf_conn)


def start(runs: RunRepository, name: str = "film", **more: Any) -> uuid.UUID:
    """A run of no consequence."""
    return runs.insert(name, spec={}, spec_hash="h", **more).id


def test_run_is_stored_whole(runs: RunRepository) -> None:
    """Each value goes to its own column, and the run waits to be expanded."""
    made = runs.insert(**RUN)
    row = runs.fetch(made.id)
    assert made.created
    assert row is not None
    assert {name: getattr(row, name) for name in RUN} == RUN
    assert (row.status, row.depth, row.parent_run_id, row.parent_node_job_id) == ("queued", 0, None, None)
    assert made.id.version == 7


def test_the_document_of_a_run_comes_once(runs: RunRepository, qwf_conn: psycopg.Connection) -> None:
    """Who knows the run already reads all else anew; another run, or another document, is read whole."""
    one, other = runs.insert(**RUN).id, runs.insert(**RUN | {"dedupe_key": None, "spec": {"nodes": []}}).id
    known = runs.fetch(one)
    assert known is not None
    qwf_conn.execute("UPDATE workflow_runs SET status = 'running' WHERE id = %s", (one,))
    again, another = runs.fetch(one, known=known), runs.fetch(other, known=known)
    assert again is not None
    assert another is not None
    assert (again.status, again.spec is known.spec, another.spec) == ("running", True, {"nodes": []})
    retried = "UPDATE workflow_runs SET spec = '{\"v\": 2}', spec_hash = 'another' WHERE id = %s"
    qwf_conn.execute(retried, (one,))
    with_another = runs.fetch(one, known=known)
    assert with_another is not None
    assert (with_another.spec, with_another.spec_hash) == ({"v": 2}, "another")
    qwf_conn.execute("DELETE FROM workflow_runs WHERE id = %s", (one,))
    assert runs.fetch(one, known=known) is None


def test_run_of_a_key_is_one_per_workflow(runs: RunRepository) -> None:
    """A taken key answers with the run that has it; another workflow's key is another run."""
    made = runs.insert(**RUN)
    assert runs.insert(**RUN | {"inputs": {}}) == (made.id, False)
    assert runs.insert(**RUN | {"workflow_name": "other"}).created
    assert runs.insert(**RUN | {"dedupe_key": None}).created


def test_child_run(runs: RunRepository) -> None:
    """A child names the node job that it belongs to, and how deep it is."""
    parent = start(runs)
    child = start(runs, parent=ParentNode(parent, 17, 2))
    row = runs.fetch(child)
    assert row is not None
    assert (row.parent_run_id, row.parent_node_job_id, row.depth) == (parent, 17, 2)
    assert [run.id for run in runs.list(parent_run_id=parent)] == [child]


def test_run_filters(runs: RunRepository, qwf_conn: psycopg.Connection) -> None:
    """By workflow, status, labels that are all there, parcel, key and age."""
    plain, full, other = start(runs), runs.insert(**RUN).id, start(runs, "other", labels={"team": "red"})
    qwf_conn.execute("UPDATE workflow_runs SET created_at = '2020-01-01Z' WHERE id = %s", (plain,))
    qwf_conn.execute("UPDATE workflow_runs SET status = 'running' WHERE id = %s", (other,))

    def found(**filters: Any) -> set[uuid.UUID]:
        return {run.id for run in runs.list(**filters)}

    assert found() == {plain, full, other}
    assert found(workflow_name="film") == {plain, full}
    assert found(status="running") == {other}
    assert found(labels={"team": "red"}) == {full, other}
    assert found(labels={"team": "red", "n": 1}) == {full}
    assert found(labels={}) == {plain, full, other}
    assert found(parcel_id="parcel-7") == {full}
    assert found(dedupe_key="k") == {full}
    assert found(created_before=datetime(2021, 1, 1, tzinfo=UTC)) == {plain}
    assert found(created_from=datetime(2021, 1, 1, tzinfo=UTC)) == {full, other}
    assert found(workflow_name="film", labels={"n": 1}, status=["queued", "failed"]) == {full}


def test_run_pages_and_counts(runs: RunRepository) -> None:
    """Newest first by id, which is age; counted by workflow and status."""
    ids = [start(runs) for _ in range(5)]
    start(runs, "other")
    first = runs.list(workflow_name="film", limit=2)
    second = runs.list(workflow_name="film", limit=10, after=first[-1].id)
    assert {run.id for run in first + second} == set(ids)
    assert len(first + second) == 5
    oldest = runs.list(workflow_name="film", newest_first=False)
    assert [run.id for run in oldest] == [run.id for run in reversed(first + second)]
    assert runs.counts() == {"film": {"queued": 5}, "other": {"queued": 1}}


def test_node_job_is_stored_whole(runs: RunRepository, qwf_conn: psycopg.Connection) -> None:
    """Each value goes to its own column, alone and among others."""
    jobs = NodeJobRepository(qwf_conn)
    run_id = start(runs)
    plain = NewNodeJob(run_id=run_id, node_id="plan", queue="cpu")
    made = jobs.insert_many([plain, NewNodeJob(run_id=run_id, **NODE)])
    row = jobs.fetch(made[1].id)
    assert row is not None
    assert {name: getattr(row, name) for name in NODE} == NODE
    row = jobs.fetch(made[0].id)
    assert row is not None
    assert (row.run_id, row.map_index, row.kind, row.status, row.inputs) == (run_id, -1, "task", "queued", {})
    assert (row.priority, row.max_attempts, row.background, row.step) == (5, 3, False, None)


def test_node_job_of_a_key_is_inserted_once(runs: RunRepository, qwf_conn: psycopg.Connection) -> None:
    """Expanding a run twice adds nothing: a (run, node, element) that is there stays as it is."""
    jobs = NodeJobRepository(qwf_conn)
    run_id, other = start(runs), start(runs)
    elements = [NewNodeJob(run_id=run_id, node_id="draw", queue="gpu", map_index=n) for n in range(5)]
    first = jobs.insert_many(elements[:3])
    again = jobs.insert_many([*reversed(elements), elements[0]])
    assert [each.created for each in again] == [True, True, False, False, False, False]
    assert [each.id for each in again[2:]] == [first[2].id, first[1].id, first[0].id, first[0].id]
    assert jobs.insert_many([NewNodeJob(run_id=other, node_id="draw", queue="gpu", map_index=0)])[0].created


def test_node_job_due_later(runs: RunRepository, qwf_conn: psycopg.Connection) -> None:
    """A durable sleep is a scheduled row."""
    jobs = NodeJobRepository(qwf_conn)
    (made,) = jobs.insert_many([NewNodeJob(run_id=start(runs), node_id="nap", queue="cpu", delay=60)])
    row = jobs.fetch(made.id)
    assert row is not None
    assert row.status == "scheduled"


def test_node_job_filters_and_counts(runs: RunRepository, qwf_conn: psycopg.Connection) -> None:
    """By run, node, queue, status, holder and limit; counted by queue and status, of a run or of all."""
    jobs = NodeJobRepository(qwf_conn)
    run_id, other = start(runs), start(runs)
    plan, draw, elsewhere = (
        jobs.insert_many([job])[0].id
        for job in (
            NewNodeJob(run_id=run_id, node_id="plan", queue="cpu"),
            NewNodeJob(run_id=run_id, **NODE),
            NewNodeJob(run_id=other, node_id="plan", queue="cpu"),
        )
    )
    qwf_conn.execute(
        "UPDATE workflow_node_jobs"
        " SET status = 'running', attempt = 1, claimed_by = 'w', lease_expires_at = now() WHERE id = %s",
        (plan,),
    )

    def found(**filters: Any) -> list[int]:
        return [job.id for job in jobs.list(newest_first=False, **filters)]

    assert found() == [plan, draw, elsewhere]
    assert found(run_id=run_id) == [plan, draw]
    assert found(run_id=run_id, after=plan) == [draw]
    assert found(node_id="plan") == [plan, elsewhere]
    assert found(queue="gpu") == [draw]
    assert found(status="queued") == [draw, elsewhere]
    assert found(claimed_by="w") == [plan]
    assert found(limit_key="host:a") == [draw]
    assert jobs.counts(run_id=run_id) == {"cpu": {"running": 1}, "gpu": {"queued": 1}}
    assert jobs.counts() == {"cpu": {"queued": 1, "running": 1}, "gpu": {"queued": 1}}


def test_events(runs: RunRepository, qwf_conn: psycopg.Connection) -> None:
    """One event per end of an attempt; a replay finds it; the run's own events are all new."""
    events = DispatchEventRepository(qwf_conn)
    run_id = start(runs)
    (job,) = NodeJobRepository(qwf_conn).insert_many([NewNodeJob(run_id=run_id, node_id="n", queue="cpu")])
    end: dict[str, Any] = {"node_job_id": job.id, "generation": 1}
    first = events.insert(run_id, "completed", attempt=1, payload={"a": 1}, **end)
    assert first.created
    assert events.insert(run_id, "completed", attempt=1, payload={"a": 2}, **end) == (first.id, False)
    second = events.insert(run_id, "completed", attempt=2, **end)
    of_run = [events.insert(run_id, "cancelled", node_job_id=None, generation=1, attempt=0) for _ in range(2)]
    assert second.created
    assert [each.created for each in of_run] == [True, True]
    row = events.fetch(first.id)
    assert row is not None
    assert (row.run_id, row.kind, row.payload, row.tries) == (run_id, "completed", {"a": 1}, 0)

    qwf_conn.execute("UPDATE workflow_dispatch_events SET poisoned_at = now() WHERE id = %s", (second.id,))
    assert [event.id for event in events.poisoned()] == [second.id]
    assert events.counts() == EventCounts(pending=3, poisoned=1)
    ids = [first.id, second.id, *(each.id for each in of_run)]
    assert [event.id for event in events.list(run_id=run_id)] == ids
    assert [event.id for event in events.list(run_id=run_id, after=ids[1], limit=1)] == [ids[2]]
    assert [event.id for event in events.list(node_job_id=job.id, kind="completed")] == ids[:2]
    assert events.list(run_id=uuid.uuid4()) == []


def test_submissions(runs: RunRepository, qwf_conn: psycopg.Connection) -> None:
    """Answers wait in the order in which they came, until they are processed."""
    submissions = InputSubmissionRepository(qwf_conn)
    run_id = start(runs)
    first = submissions.insert(run_id, "approve", {"ok": True}, submitted_by="ann")
    second = submissions.insert(run_id, "approve", {"ok": False})
    assert [each.id for each in submissions.pending()] == [first, second]
    assert [each.id for each in submissions.pending(after=first)] == [second]
    row = submissions.fetch(first)
    assert row is not None
    assert (row.payload, row.submitted_by, row.status) == ({"ok": True}, "ann", "pending")
    qwf_conn.execute(
        "UPDATE workflow_input_submissions SET status = 'rejected', processed_at = now() WHERE id = %s",
        (first,),
    )
    assert [each.id for each in submissions.pending()] == [second]
    assert [each.id for each in submissions.list(run_id=run_id, node_id="approve", status="rejected")] == [
        first
    ]
    assert submissions.counts(run_id) == {"approve": {"pending": 1, "rejected": 1}}
