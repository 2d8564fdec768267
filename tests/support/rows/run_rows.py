"""A run and its nodes as rows, written by hand where a test is about who reads them."""

from __future__ import annotations

from typing import Any

import psycopg
from psycopg.types.json import Jsonb

from queue_workflows.repositories import NewNodeJob, NodeJobRepository, RunRepository


class RunRows:
    """A run whose nodes stand as the dispatcher would leave them."""

    def __init__(self, connection: psycopg.Connection, **run: Any) -> None:
        self.connection = connection
        self.run_id = RunRepository(connection).insert("film", spec={}, spec_hash="h", **run).id

    def node(
        self, node_id: str, state: str, *, total: int | None = None, failed: int = 0, cancelled: int = 0
    ) -> None:
        """A node that somebody has touched; with a total, one that goes through a list."""
        self.connection.execute(
            "INSERT INTO workflow_nodes (run_id, node_id, state, mapped, jobs_total, jobs_failed,"
            " jobs_cancelled) VALUES (%s, %s, %s, %s, %s, %s, %s)",
            [
                self.run_id,
                node_id,
                state,
                total is not None,
                1 if total is None else total,
                failed,
                cancelled,
            ],
        )

    def ended(self, node_id: str, result: Any, *, place: int = -1, status: str = "completed") -> None:
        """A job of a node that is over."""
        self.connection.execute(
            "INSERT INTO workflow_node_jobs (run_id, node_id, map_index, queue, status, finished_at,"
            " context_delta) VALUES (%s, %s, %s, 'cpu', %s, now(), %s)",
            [self.run_id, node_id, place, status, None if result is None else Jsonb(result)],
        )

    def completed(self, node_id: str, result: Any) -> None:
        """A node that is over, and its job."""
        self.node(node_id, "completed")
        self.ended(node_id, result)

    def now_has(self, node_id: str, result: Any) -> None:
        """What a node has stored, from now on."""
        self.connection.execute(
            "UPDATE workflow_node_jobs SET context_delta = %s WHERE run_id = %s AND node_id = %s",
            [Jsonb(result), self.run_id, node_id],
        )

    def job(self, node_id: str, module: str, inputs: dict[str, Any], **more: Any) -> int:
        """A job for a worker of the queue `cpu`."""
        new = NewNodeJob(
            run_id=self.run_id, node_id=node_id, queue="cpu", node_module=module, inputs=inputs, **more
        )
        return NodeJobRepository(self.connection).insert_many([new])[0].id
