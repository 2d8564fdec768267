"""Trees of runs of hooks for tests, and hands that end their jobs as they are told."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import psycopg
from support.rows.runs import dispatcher, settle, start

from queue_workflows.repositories import NodeJobRepository
from queue_workflows.repositories.claims.end import Ending
from queue_workflows.repositories.runs.runs import ParentNode
from queue_workflows.repositories.sql.claimed_job import ClaimedNodeJob
from queue_workflows.states import JobStatus


def hook(name: str, step: int, *after: str) -> dict[str, Any]:
    return {"id": name, "module": "m", "step": step, "depends_on": list(after), "when": "all_done"}


def page(*, waits: bool = True, always: bool = False) -> dict[str, Any]:
    """A run with a hook, a wait for what is below it, and what tidies up then."""
    last = hook("save", 0)
    wait = {
        "id": "descendants",
        "type": "descendants",
        "step": 11,
        "depends_on": ["save"],
        "when": "all_done",
    }
    wait |= {"always": True} if always else {}
    tidy = hook("tidy", 20, "descendants" if waits else "save")
    return {"on_failure": "continue", "nodes": [last, *([wait] if waits else []), tidy]}


class Tree:
    """Runs of pages, a dispatcher, and hands that end jobs as they are told."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self.connection = connection
        self.jobs = NodeJobRepository(connection)
        self.dispatcher = dispatcher(connection)
        self.held: dict[tuple[UUID, str], ClaimedNodeJob] = {}

    def start(self, parent: UUID | None = None, **more: Any) -> UUID:
        below = {} if parent is None else {"parent": ParentNode(parent, None, 1)}
        run_id = start(self.connection, page(**more), **below)
        self.settle()
        return run_id

    def settle(self) -> None:
        settle(self.dispatcher)
        claimed = self.jobs.claim("cpu", worker_id="w", lease_s=60, limit=100)
        self.held.update(((job.run_id, job.node_id), job) for job in claimed)

    def end(self, run_id: UUID, node: str, status: JobStatus = JobStatus.COMPLETED, **more: Any) -> None:
        error = '{"kind": "exit"}' if status is not JobStatus.COMPLETED else None
        self.jobs.end(Ending(self.held.pop((run_id, node)).fence, status, error=error, **more))
        self.settle()

    def end_all(self, run_id: UUID) -> None:
        """End the jobs of a run that has nothing below it, and so the run."""
        self.end(run_id, "save")
        self.end(run_id, "tidy")

    def end_unseen(self, *runs: UUID) -> None:
        """As `end_all`, for runs of which no dispatcher has heard yet that their last job is over."""
        for run_id in runs:
            self.end(run_id, "save")
        for run_id in runs:
            self.jobs.end(Ending(self.held.pop((run_id, "tidy")).fence, JobStatus.COMPLETED))

    def begun(self, run_id: UUID) -> set[str]:
        return {node for run, node in self.held if run == run_id}

    def status(self, run_id: UUID) -> str:
        row = self.connection.execute("SELECT status FROM workflow_runs WHERE id = %s", [run_id]).fetchone()
        assert row is not None
        return str(row[0])
