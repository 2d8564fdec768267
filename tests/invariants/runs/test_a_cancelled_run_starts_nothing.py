"""A cancel reaches everything that a run has started, wherever it is, and nothing of it starts any more."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from support.apps.film import FILM, task
from support.processes.workers import running_orchestrator, until
from support.stages.floor import Floor

from queue_workflows import RunRepository, cancel_node, cancel_run, start_run
from queue_workflows.repositories import NodeJobRepository

APP = {"QWF_APP": "support.apps.film_app", "QWF_CANCEL_GRACE_S": "0.2"}


class Studio:
    """An orchestrator, workers of the queue `cpu` and none of `gpu`, and what their nodes write down."""

    def __init__(self, floor: Floor, directory: Path) -> None:
        self.connection = floor.connection
        self.directory = directory
        self.runs = RunRepository(floor.connection)

    def start(self, document: dict[str, Any]) -> uuid.UUID:
        return start_run(document, {"directory": str(self.directory)}, conn=self.connection).id

    def has_written(self, *names: str) -> bool:
        return all((self.directory / name).exists() for name in names)

    def written(self) -> set[str]:
        return {path.name for path in self.directory.iterdir()}

    def status(self, run_id: uuid.UUID) -> str:
        row = self.runs.fetch(run_id)
        assert row is not None
        return row.status

    def child(self, run_id: uuid.UUID) -> uuid.UUID:
        (child,) = self.runs.list(parent_run_id=run_id)
        return child.id

    def jobs(self, run_id: uuid.UUID) -> dict[str, list[Any]]:
        """The jobs of a run by node."""
        found: dict[str, list[Any]] = {}
        for job in NodeJobRepository(self.connection).list(run_id=run_id):
            found.setdefault(job.node_id, []).append(job)
        return found

    def ends(self, run_id: uuid.UUID) -> dict[str, set[str]]:
        return {node: {job.status for job in jobs} for node, jobs in self.jobs(run_id).items()}

    def until_nothing_is_left_to_do(self) -> None:
        """Wait until the orchestrators have acted on all that there was."""
        left = "SELECT count(*) FROM workflow_dispatch_events WHERE kind <> 'run_finished'"
        until(lambda: self.connection.execute(left).fetchone() == (0,))


@contextmanager
def working(floor: Floor, workers: int) -> Iterator[None]:
    with ExitStack() as stack:
        stack.enter_context(running_orchestrator(floor.dsn, **APP))
        for _ in range(workers):
            stack.enter_context(floor.worker("--queue", "cpu", **APP))
        yield


@pytest.fixture
def studio(floor: Floor, tmp_path: Path) -> Studio:
    directory = tmp_path / "written"
    directory.mkdir()
    return Studio(floor, directory)


def test_running_queued_and_parked_nodes_of_it_and_of_its_children(floor: Floor, studio: Studio) -> None:
    """Who runs is told, and stopped if it does not listen; who waits ends with the very request."""
    with working(floor, 3):
        run_id = studio.start(FILM)
        until(lambda: studio.has_written("write.begun", "build.begun", "shoot.begun"))
        child = studio.child(run_id)
        until(lambda: len(studio.jobs(run_id)) == 6 and len(studio.jobs(child)) == 2)
        assert cancel_run(run_id, conn=studio.connection, reason="no money", actor="ann")
        until(lambda: studio.status(run_id) == studio.status(child) == "cancelled")
        studio.until_nothing_is_left_to_do()
    cancelled = {"cancelled"}
    assert studio.ends(run_id) == dict.fromkeys(
        ["write", "build", "scene", "draw", "approve", "nap"], cancelled
    )
    assert studio.ends(child) == dict.fromkeys(["shoot", "colour"], cancelled)
    assert studio.written() == {"write.begun", "build.begun", "shoot.begun", "write.told", "shoot.told"}
    jobs = studio.jobs(run_id)
    (told,) = jobs["write"]
    for node in ("draw", "approve", "nap", "scene"):
        assert {job.finished_at for job in jobs[node]} == {told.cancel_requested_at}
    row = studio.runs.fetch(run_id)
    assert row is not None
    assert (row.cancel_reason, row.error) == ("no money", {"kind": "cancelled", "message": "no money"})


def test_a_queued_run_never_begins(floor: Floor, studio: Studio) -> None:
    """Cancelled before any orchestrator has seen it."""
    run_id = studio.start(FILM)
    cancel_run(run_id, conn=studio.connection)
    with working(floor, 1):
        until(lambda: studio.status(run_id) == "cancelled")
        studio.until_nothing_is_left_to_do()
    assert (studio.jobs(run_id), studio.written()) == ({}, set())


def test_a_child_that_is_cancelled_takes_only_its_node_with_it(floor: Floor, studio: Studio) -> None:
    """What needs that node is cancelled, and the rest of the parent goes on."""
    document = {
        "name": "film",
        "inputs": FILM["inputs"],
        "nodes": [
            {
                "id": "scene",
                "type": "workflow",
                "workflow": "scene",
                "inputs": {"directory": {"$from": "inputs.directory"}},
            },
            task("print", "echo", depends_on=["scene"]),
            {"id": "approve", "type": "input"},
        ],
    }
    with working(floor, 1):
        run_id = studio.start(document)
        until(lambda: studio.has_written("shoot.begun"))
        child = studio.child(run_id)
        cancel_run(child, conn=studio.connection)
        until(lambda: studio.ends(run_id).get("scene") == {"cancelled"})
        studio.until_nothing_is_left_to_do()
        assert (studio.status(run_id), studio.status(child)) == ("running", "cancelled")
        assert studio.ends(run_id)["approve"] == {"awaiting_input"}
        cancel_node(run_id, "approve", conn=studio.connection)
        until(lambda: studio.status(run_id) == "completed")
    assert set(studio.jobs(run_id)) == {"scene", "approve"}
    assert studio.written() == {"shoot.begun", "shoot.told"}


@pytest.mark.slow
def test_a_child_that_fails_fails_its_node(floor: Floor, studio: Studio) -> None:
    """And with it, as any failure, the run: what else it has started is told to stop."""
    flop = {"id": "scene", "type": "workflow", "workflow": "flop", "inputs": {"ok": False}}
    document = {"name": "film", "inputs": FILM["inputs"], "nodes": [task("write", "polite"), flop]}
    with working(floor, 2):
        run_id = studio.start(document)
        until(lambda: studio.status(run_id) == "failed")
    assert studio.ends(run_id) == {"write": {"cancelled"}, "scene": {"failed"}}
    row = studio.runs.fetch(run_id)
    assert row is not None
    assert row.error is not None
    assert row.error["node"] == "scene"
    assert "not yet" in row.error["message"]
