"""What people ask of runs: cancel them, answer their parked nodes, run them again.

A request is an event in the run's outbox, and whoever advances the run acts on it. Nothing here waits for a
run's row lock but a retry, whose run nobody advances.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Final

from queue_workflows.models import WorkflowRun
from queue_workflows.repositories import fields as check
from queue_workflows.repositories.connection import Handle, Statements
from queue_workflows.states import JobStatus, NodeState, RunStatus

CANCEL_EVENT: Final = "cancel"
REOPEN_EVENT: Final = "reopen"
# What the engine's own dispatcher expands; a run in another mode is the host app's.
ENGINE_MODE: Final = "node"

# found: the runs as they are. asked: one event for each that is not over; none, if one of them is not there
# or not ours to ask. logged: who did it, if anybody did.
CANCEL: Final = """
WITH found AS MATERIALIZED (
    SELECT id, status, mode FROM workflow_runs WHERE id = ANY (%(ids)s::uuid[])
), asked AS (
    INSERT INTO workflow_dispatch_events (run_id, generation, attempt, kind, payload)
    SELECT id, 1, 0, 'cancel', %(payload)s::jsonb FROM found
    WHERE status IN ('queued', 'running')
        AND (SELECT count(*) FROM found WHERE mode = 'node') = cardinality(%(ids)s::uuid[])
    ORDER BY id
    RETURNING run_id
), logged AS (
    INSERT INTO audit_log (actor, action, subject_kind, subject_id, reason, details)
    SELECT %(actor)s::text, 'run.cancel', 'run', run_id::text, %(why)s::text, %(details)s::jsonb
    FROM asked WHERE %(actor)s::text IS NOT NULL
)
SELECT id, status, mode, id IN (SELECT run_id FROM asked) FROM found
"""
# declared: the node as the run's own document has it, read by the server, as the document may be large.
NODE: Final = """
SELECT run.status, run.mode, declared.node::text, node.state, job.status,
    job.expires_at <= statement_timestamp()
FROM workflow_runs AS run
CROSS JOIN LATERAL (
    SELECT jsonb_path_query_first(
        run.spec, '$.nodes[*] ? (@.id == $id)', jsonb_build_object('id', %(node_id)s::text)
    ) AS node
) AS declared
LEFT JOIN workflow_nodes AS node ON node.run_id = run.id AND node.node_id = %(node_id)s::text
LEFT JOIN workflow_node_jobs AS job
    ON job.run_id = run.id AND job.node_id = %(node_id)s::text AND job.map_index = -1
WHERE run.id = %(run_id)s::uuid
"""


@dataclass(frozen=True, slots=True)
class Asked:
    """A run that was to be cancelled: how it stood, and whether it was asked to."""

    status: RunStatus
    mode: str
    asked: bool


@dataclass(frozen=True, slots=True)
class NodeStanding:
    """A node of a run: what its document says of it, None if it has no such node, and how far it is.

    `job` is that of a node without a `for_each`; `expired` is its time to be answered.
    """

    run_status: RunStatus
    mode: str
    declared: dict[str, Any] | None
    state: NodeState | None
    job: JobStatus | None
    expired: bool


class SteeringRepository:
    """Requests on the caller's connection."""

    def __init__(self, conn: Handle) -> None:
        self._sql = Statements(conn, WorkflowRun)

    def cancel(
        self, run_ids: Collection[uuid.UUID], *, node_id: str | None, actor: str | None, reason: str | None
    ) -> dict[uuid.UUID, Asked]:
        """Ask runs, or a node of each, to be cancelled; what was found of them."""
        payload = {
            name: value
            for name, value in (("reason", reason), ("actor", actor), ("node_id", node_id))
            if value is not None
        }
        params = {
            "ids": list(run_ids),
            "payload": json.dumps(payload),
            "actor": check.text_or_none("actor", actor),
            "why": check.text_or_none("reason", reason, max_bytes=check.TEXT_BYTES),
            "details": json.dumps({} if node_id is None else {"node_id": node_id}),
        }
        rows = self._sql.rows(CANCEL, params)
        return {run_id: Asked(RunStatus(status), mode, asked) for run_id, status, mode, asked in rows}

    def node(self, run_id: uuid.UUID, node_id: str) -> NodeStanding | None:
        """How a node stands; None if there is no such run."""
        params = {"run_id": run_id, "node_id": check.text("node_id", node_id)}
        return _standing(self._sql.rows(NODE, params))


def _standing(rows: Sequence[Sequence[Any]]) -> NodeStanding | None:
    if not rows:
        return None
    status, mode, declared, state, job, expired = rows[0]
    return NodeStanding(
        RunStatus(status),
        mode,
        None if declared is None else json.loads(declared),
        None if state is None else NodeState(state),
        None if job is None else JobStatus(job),
        bool(expired),
    )
