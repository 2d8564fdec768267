"""What people ask of runs: cancel them, answer their parked nodes, run them again.

A request is an event in the run's outbox, and the process that advances the run acts on it. Nothing here
waits for a run's row lock but a retry, as nobody advances its run.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Final

from queue_workflows.repositories.claims.operator_verbs import retry_below
from queue_workflows.repositories.sql import checks as check
from queue_workflows.repositories.sql.connection import Handle, Statements
from queue_workflows.repositories.sql.families import NODE as NODE_JOBS
from queue_workflows.states import NodeState, RunStatus

# What the engine's own dispatcher expands; a run in another mode is the host app's.
ENGINE_MODE: Final = "node"

# found: the runs as they are. asked: one event for each that is not over; none, if one of them is not there
# or not ours to ask. logged: the actor, if there is one.
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
# The last run that was started for each of some jobs.
CHILDREN: Final = """
SELECT DISTINCT ON (parent_node_job_id) parent_node_job_id, id, workflow_name, inputs::text FROM workflow_runs
WHERE parent_run_id = %(run_id)s::uuid AND parent_node_job_id = ANY (%(jobs)s::bigint[])
ORDER BY parent_node_job_id, created_at DESC
"""
# Asked before, as a refused SELECT would end the caller's transaction.
MAY_READ: Final = """
SELECT has_table_privilege('workflow_runs', 'SELECT') AND has_table_privilege('workflow_nodes', 'SELECT')
    AND has_table_privilege('workflow_node_jobs', 'SELECT')
"""
# declared: the node as the run's own document has it, read by the server, as the document may be large.
NODE: Final = """
SELECT run.status, run.mode, declared.node::text, node.state,
    job.status = 'awaiting_input' AND job.expires_at <= statement_timestamp()
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
# With its document, so a large answer; a retry needs all of it. A run that was found on the way is its own.
# Last the run that has set up its tree, if nothing of that is there any more.
LOOK: Final = """
SELECT status, mode, CASE WHEN parent_node_job_id IS NOT NULL THEN parent_run_id END, spec_hash, spec::text,
    error ->> 'kind', (
        SELECT root.id FROM workflow_runs AS root
        WHERE root.id = workflow_runs.set_up_by AND root.id <> workflow_runs.id
            AND (root.finished_at IS NOT NULL OR root.seal_requested_at IS NOT NULL)
        LIMIT 1
    )
FROM workflow_runs
WHERE id = %(run_id)s::uuid
"""
LOCK: Final = f"{LOOK} FOR NO KEY UPDATE"
LOCK_UNLESS_HELD: Final = f"{LOOK} FOR NO KEY UPDATE SKIP LOCKED"
# Results that a node has counted and that are gone: retention deletes a run's jobs before the run.
PRUNED: Final = """
SELECT EXISTS (
    SELECT FROM workflow_nodes AS node WHERE run_id = %(run_id)s::uuid AND jobs_completed > (
        SELECT count(*) FROM workflow_node_jobs AS job
        WHERE job.run_id = node.run_id AND job.node_id = node.node_id AND job.status = 'completed'
    )
)
"""
# Many runs as they stand, each that is over with whether results of it are gone, and without its document.
LOOK_AT_MANY: Final = """
SELECT id, status, mode, CASE WHEN parent_node_job_id IS NOT NULL THEN parent_run_id END, spec_hash,
    error ->> 'kind', (
        SELECT root.id FROM workflow_runs AS root
        WHERE root.id = run.set_up_by AND root.id <> run.id
            AND (root.finished_at IS NOT NULL OR root.seal_requested_at IS NOT NULL)
        LIMIT 1
    ), run.finished_at IS NOT NULL AND EXISTS (
        SELECT FROM workflow_nodes AS node WHERE node.run_id = run.id AND jobs_completed > (
            SELECT count(*) FROM workflow_node_jobs AS job
            WHERE job.run_id = node.run_id AND job.node_id = node.node_id AND job.status = 'completed'
        )
    )
FROM workflow_runs AS run
WHERE id = ANY (%(ids)s::uuid[])
"""
# A document is read once, however many runs have it.
DOCUMENTS: Final = """
SELECT spec_hash, spec::text FROM workflow_runs WHERE id = ANY (ARRAY(
    SELECT DISTINCT ON (spec_hash) id FROM workflow_runs WHERE id = ANY (%(ids)s::uuid[])
    ORDER BY spec_hash, id
))
"""
# forgotten: what the run's outbox still held is about what is over: a cancel that came too late must not hit
# what is run again; but what ended below it may have made room in its tree. ended: hooks are told of each
# end, so one that they have not heard of is kept as it was. untouched: nodes that wait as if nothing had
# happened yet.
# anew: the elements of lists that are gone through from the start. Without its item none of them is the same
# as before, so each runs again in the row that it has, with its attempts and errors. steps: what durable
# functions did of nodes that run again from their start, if there are any such functions.
REOPEN: Final = """
WITH forgotten AS (
    DELETE FROM workflow_dispatch_events
    WHERE run_id = %(run_id)s::uuid AND kind NOT IN ('run_finished', 'descendants')
), ended AS (
    UPDATE workflow_dispatch_events AS event SET payload = jsonb_build_object(
        'status', run.status, 'outputs', run.outputs, 'error', run.error, 'finished_at', run.finished_at
    )
    FROM workflow_runs AS run
    WHERE event.run_id = %(run_id)s::uuid AND event.kind = 'run_finished' AND event.payload = '{}'
        AND run.id = event.run_id
), untouched AS (
    DELETE FROM workflow_nodes WHERE run_id = %(run_id)s::uuid AND node_id = ANY (%(untouched)s::text[])
), anew AS (
    UPDATE workflow_node_jobs SET item = NULL
    WHERE run_id = %(run_id)s::uuid AND node_id = ANY (%(anew)s::text[]) AND map_index >= 0
), steps AS (
    DELETE FROM durable_steps WHERE job_family = 'node' AND job_id = ANY (ARRAY(
        SELECT id FROM workflow_node_jobs
        WHERE run_id = %(run_id)s::uuid AND node_id = ANY (%(from_start)s::text[])
            AND (SELECT true FROM durable_steps WHERE job_family = 'node' LIMIT 1)
    ))
), logged AS (
    INSERT INTO audit_log (actor, action, subject_kind, subject_id, reason, details)
    SELECT %(actor)s::text, 'run.retry', 'run', (%(run_id)s::uuid)::text, %(why)s::text, %(details)s::jsonb
    WHERE %(actor)s::text IS NOT NULL
)
UPDATE workflow_runs SET
    status = 'running', finished_at = NULL, outputs = NULL, error = NULL, stopping = NULL,
    cancel_requested_at = NULL, cancel_reason = NULL, nodes_left = %(nodes_left)s::integer,
    nodes_active = 0, nodes_failed = 0, awaits_descendants = false, left_descendants = false,
    seal_requested_at = CASE WHEN %(unsealed)s::boolean THEN NULL ELSE seal_requested_at END
WHERE id = %(run_id)s::uuid
RETURNING id
"""
# Jobs of nodes that go on from what they did, if any is of a durable function.
GOING_ON: Final = """
SELECT id FROM workflow_node_jobs
WHERE run_id = %(run_id)s::uuid AND node_id = ANY (%(going_on)s::text[])
    AND status IN ('failed', 'cancelled') AND attempt > 0
    AND (SELECT true FROM durable_steps WHERE job_family = 'node' LIMIT 1)
"""
# By itself, as the statement before deletes what was there at its beginning.
REOPENED: Final = """
INSERT INTO workflow_dispatch_events (run_id, generation, attempt, kind, payload)
VALUES (%(run_id)s::uuid, 1, 0, 'reopen', %(payload)s::jsonb)
RETURNING id
"""


INPUTS: Final = "SELECT inputs::text FROM workflow_runs WHERE id = %(run_id)s::uuid"
# A run that is retried with another document; its lock is held.
REPLACE_DOCUMENT: Final = """
UPDATE workflow_runs SET
    spec = %(spec)s::jsonb, spec_hash = %(spec_hash)s::text, inputs = %(inputs)s::jsonb
WHERE id = %(run_id)s::uuid
RETURNING id
"""


@dataclass(frozen=True, slots=True)
class StoredRun:
    """A run with its document, as it stands."""

    status: RunStatus
    mode: str
    parent_run_id: uuid.UUID | None
    spec_hash: str
    spec: dict[str, Any]
    error_kind: str | None
    setup_over: uuid.UUID | None


@dataclass(frozen=True, slots=True)
class ChildRun:
    """A run that a node of another run has started."""

    id: uuid.UUID
    workflow: str
    inputs: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Asked:
    """A run that was to be cancelled: how it stood, and whether it was asked to."""

    status: RunStatus
    mode: str
    asked: bool


@dataclass(frozen=True, slots=True)
class NodeStanding:
    """A node of a run: what its document says of it, None if it has no such node, and how far it is.

    `expired` is the time to answer it.
    """

    run_status: RunStatus
    mode: str
    declared: dict[str, Any] | None
    state: NodeState | None
    expired: bool


class SteeringRepository:
    """Requests on the caller's connection."""

    def __init__(self, conn: Handle) -> None:
        self._sql = Statements(conn, "workflow_runs")

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

    def children(self, run_id: uuid.UUID, job_ids: Collection[int]) -> dict[int, ChildRun]:
        """The last run of each parked job of a run that has had one."""
        rows = self._sql.rows(CHILDREN, {"run_id": run_id, "jobs": list(job_ids)})
        return {job_id: ChildRun(child, name, json.loads(inputs)) for job_id, child, name, inputs in rows}

    def may_read(self) -> bool:
        """Whether the connection's role may read runs and their nodes."""
        return bool(self._sql.rows(MAY_READ, {})[0][0])

    def node(self, run_id: uuid.UUID, node_id: str) -> NodeStanding | None:
        """How a node stands; None if there is no such run."""
        params = {"run_id": run_id, "node_id": check.text("node_id", node_id)}
        return _standing(self._sql.rows(NODE, params))

    def stored(self, run_id: uuid.UUID, *, lock: bool) -> StoredRun | None:
        """A run and its document; locked until the transaction ends, or just looked at."""
        return _stored(self._sql.rows(LOCK if lock else LOOK, {"run_id": run_id}))

    def stored_unless_held(self, run_id: uuid.UUID) -> StoredRun | None:
        """A run and its document, locked; None if somebody else has it locked."""
        return _stored(self._sql.rows(LOCK_UNLESS_HELD, {"run_id": run_id}))

    def is_pruned(self, run_id: uuid.UUID) -> bool:
        """Whether results of a run that is over are gone already."""
        return bool(self._sql.rows(PRUNED, {"run_id": run_id})[0][0])

    def stored_of(self, run_ids: Collection[uuid.UUID]) -> dict[uuid.UUID, tuple[StoredRun, bool]]:
        """The runs that there are of these, with their documents, and if what is over has lost results."""
        params = {"ids": list(run_ids)}
        specs = {spec_hash: json.loads(spec) for spec_hash, spec in self._sql.rows(DOCUMENTS, params)}
        return {
            run_id: (
                StoredRun(
                    RunStatus(status), mode, parent, spec_hash, specs[spec_hash], error_kind, setup_over
                ),
                is_pruned,
            )
            for run_id, status, mode, parent, spec_hash, error_kind, setup_over, is_pruned in self._sql.rows(
                LOOK_AT_MANY, params
            )
            if spec_hash in specs
        }

    def inputs(self, run_id: uuid.UUID) -> dict[str, Any]:
        """What a run was started with."""
        inputs: dict[str, Any] = json.loads(self._sql.rows(INPUTS, {"run_id": run_id})[0][0])
        return inputs

    def replace_document(self, run_id: uuid.UUID, *, spec: str, spec_hash: str, inputs: str) -> None:
        """Give a run that is over another document, and its inputs by that, as JSON; its lock is held."""
        params = {"run_id": run_id, "spec": spec, "spec_hash": spec_hash, "inputs": inputs}
        self._sql.rows(REPLACE_DOCUMENT, params)

    def reopen(
        self,
        run_id: uuid.UUID,
        *,
        nodes_left: int,
        ready: Sequence[str],
        untouched: Sequence[str],
        anew: Sequence[str],
        from_start: Sequence[str],
        going_on: Sequence[str],
        unsealed: bool,
        actor: str | None,
        reason: str | None,
        details: dict[str, Any],
    ) -> None:
        """Let a run that is over go on, and ask for the nodes that are `ready`; its lock is held.

        `unsealed` is for one that goes through its last step again. What the nodes that are `going_on` from
        what they did have spawned, and was cancelled with them, goes on as well.
        """
        params = {
            "run_id": run_id,
            "nodes_left": nodes_left,
            "untouched": list(untouched),
            "anew": list(anew),
            "from_start": list(from_start),
            "unsealed": unsealed,
            "actor": check.text_or_none("actor", actor),
            "why": check.text_or_none("reason", reason, max_bytes=check.TEXT_BYTES),
            "details": json.dumps(details),
        }
        self._sql.rows(REOPEN, params)
        if going_on:
            rows = self._sql.rows(GOING_ON, {"run_id": run_id, "going_on": list(going_on)})
            retry_below(self._sql, NODE_JOBS, [job_id for (job_id,) in rows])
        self._sql.rows(REOPENED, {"run_id": run_id, "payload": json.dumps({"nodes": list(ready)})})


def _stored(rows: Sequence[Sequence[Any]]) -> StoredRun | None:
    if not rows:
        return None
    status, mode, parent, spec_hash, spec, error_kind, setup_over = rows[0]
    return StoredRun(RunStatus(status), mode, parent, spec_hash, json.loads(spec), error_kind, setup_over)


def _standing(rows: Sequence[Sequence[Any]]) -> NodeStanding | None:
    if not rows:
        return None
    status, mode, declared, state, expired = rows[0]
    return NodeStanding(
        RunStatus(status),
        mode,
        None if declared is None else json.loads(declared),
        None if state is None else NodeState(state),
        bool(expired),
    )
