"""A run as a whole, in a few statements that do not grow with the elements of its nodes.

Nodes are read from their counters. Of jobs only those are read that a worker has now, and the one job of each
node that has no elements.
"""

from __future__ import annotations

import json
import uuid
from datetime import datetime
from typing import Any, Final, NamedTuple

from queue_workflows.repositories.sql.connection import Handle, Rows, Statements
from queue_workflows.repositories.sql.together import read_together

RUN: Final = """
SELECT id, workflow_name, mode, spec_hash, status, statement_timestamp(), created_at, started_at, finished_at,
    priority, labels::text, cancel_requested_at, cancel_reason, error::text, outputs::text, stopping,
    nodes_left, nodes_active, nodes_failed, parent_run_id, hold_reason
FROM workflow_runs WHERE id = %(run_id)s::uuid
"""
# Not in the statement above, which is asked again and again: it unpacks the whole document.
SIZE: Final = """
SELECT CASE jsonb_typeof(spec -> 'nodes') WHEN 'array' THEN jsonb_array_length(spec -> 'nodes') ELSE 0 END
FROM workflow_runs WHERE id = %(run_id)s::uuid
"""
SPEC: Final = "SELECT spec::text FROM workflow_runs WHERE id = %(run_id)s::uuid"
# job: the one job of a node without elements. child: the run that it stands for, the latest of them.
NODES: Final = """
SELECT node.node_id, node.state, node.mapped, node.jobs_total, node.jobs_completed, node.jobs_skipped,
    node.jobs_failed, node.jobs_cancelled, node.error::text, node.started_at, node.finished_at, job.kind,
    job.queue, job.node_module, job.status, job.attempt, job.claimed_by, job.hold_reason, job.hold_key,
    job.run_at, job.expires_at, job.error::text, child.id
FROM workflow_nodes AS node
LEFT JOIN LATERAL (
    SELECT id, kind, queue, node_module, status, attempt, claimed_by, hold_reason, hold_key, run_at,
        expires_at, errors -> -1 AS error
    FROM workflow_node_jobs AS job
    WHERE job.run_id = node.run_id AND job.node_id = node.node_id AND job.map_index = -1
        AND node.state <> 'waiting'
    LIMIT 1
) AS job ON true
LEFT JOIN LATERAL (
    SELECT child.id FROM workflow_runs AS child
    WHERE job.kind = 'workflow' AND child.parent_run_id = node.run_id
        AND child.parent_node_job_id = job.id
    ORDER BY child.created_at DESC, child.id DESC LIMIT 1
) AS child ON true
WHERE node.run_id = %(run_id)s::uuid AND (%(states)s::text[] IS NULL OR node.state = ANY (%(states)s::text[]))
ORDER BY node.started_at, node.node_id
LIMIT %(most)s::bigint
"""
# In brief: those that are at something as above, the others without their jobs.
NODES_IN_BRIEF: Final = """
(
    SELECT node_id, state, mapped, jobs_total, jobs_completed, jobs_skipped, jobs_failed, jobs_cancelled,
        error::text, started_at, finished_at, NULL::text, NULL::text, NULL::text, NULL::text, NULL::integer,
        NULL::text, NULL::text, NULL::text, NULL::timestamptz, NULL::timestamptz, NULL::text, NULL::uuid
    FROM workflow_nodes WHERE run_id = %(run_id)s::uuid AND state <> 'active'
    LIMIT %(most)s::bigint
) UNION ALL (
{active})
""".replace("{active}", NODES.replace("%(states)s::text[]", "ARRAY['active']"))
# Nodes of a run for which the host app inserts the jobs: there are no counters, so the jobs are counted.
COUNTED_NODES: Final = """
SELECT node_id,
    CASE
        WHEN count(*) FILTER (WHERE finished_at IS NULL) > 0 THEN 'active'
        WHEN count(*) FILTER (WHERE status = 'failed') > 0 THEN 'failed'
        WHEN count(*) FILTER (WHERE status = 'cancelled') > 0 THEN 'cancelled'
        WHEN count(*) FILTER (WHERE status = 'completed') > 0 THEN 'completed'
        ELSE 'skipped'
    END,
    max(map_index) >= 0, count(*), count(*) FILTER (WHERE status = 'completed'),
    count(*) FILTER (WHERE status = 'skipped'), count(*) FILTER (WHERE status = 'failed'),
    count(*) FILTER (WHERE status = 'cancelled'), NULL::text, min(started_at),
    CASE WHEN bool_and(finished_at IS NOT NULL) THEN max(finished_at) END, min(kind), min(queue),
    min(node_module), min(status), max(attempt), min(claimed_by), min(hold_reason), min(hold_key),
    min(run_at), min(expires_at), (array_agg(errors -> -1) FILTER (WHERE status = 'failed'))[1]::text,
    NULL::uuid
FROM workflow_node_jobs WHERE run_id = %(run_id)s::uuid
GROUP BY node_id
ORDER BY min(id)
LIMIT %(most)s::bigint
"""
# busy: what all workers together have at this moment, which is never much; by the index on it.
RUNNING: Final = """
WITH busy AS MATERIALIZED (
    SELECT run_id, node_id, map_index, claimed_by, attempt, started_at, progress
    FROM workflow_node_jobs WHERE status = 'running'
)
SELECT node_id, map_index, claimed_by, attempt, started_at, progress::text FROM busy
WHERE run_id = %(run_id)s::uuid
ORDER BY started_at, node_id, map_index
"""
# pending: counted to a bound.
EVENTS: Final = """
SELECT count(*) FROM (
    SELECT FROM workflow_dispatch_events WHERE run_id = %(run_id)s::uuid LIMIT %(most)s::bigint
) AS pending
"""
POISONED: Final = """
SELECT event.id, event.kind, job.node_id, event.tries, event.last_error, event.poisoned_at
FROM workflow_dispatch_events AS event
LEFT JOIN workflow_node_jobs AS job ON job.id = event.node_job_id
WHERE event.run_id = %(run_id)s::uuid AND event.poisoned_at IS NOT NULL
ORDER BY event.id LIMIT %(most)s::bigint
"""
_MOST_EVENTS: Final = 1000
_MOST_POISONED: Final = 10
_WITH_BESIDE: Final = {
    "run": RUN,
    "running": RUNNING,
    "events": EVENTS.replace("%(most)s", str(_MOST_EVENTS)),
    "poisoned": POISONED.replace("%(most)s", str(_MOST_POISONED)),
}


class RunFacts(NamedTuple):
    """The run's own row, without its document."""

    id: uuid.UUID
    workflow: str
    mode: str
    spec_hash: str
    status: str
    at: datetime
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    priority: int
    labels: dict[str, Any]
    cancel_requested_at: datetime | None
    cancel_reason: str | None
    error: dict[str, Any] | None
    outputs: dict[str, Any] | None
    stopping: str | None
    nodes_left: int
    nodes_active: int
    nodes_failed: int
    parent_run_id: uuid.UUID | None
    hold_reason: str | None


class NodeFacts(NamedTuple):
    """A node that was touched: its counters, and its job if it has only one."""

    id: str
    state: str
    mapped: bool
    total: int
    completed: int
    skipped: int
    failed: int
    cancelled: int
    error: dict[str, Any] | None
    started_at: datetime | None
    finished_at: datetime | None
    kind: str | None
    queue: str | None
    module: str | None
    status: str | None
    attempt: int | None
    claimed_by: str | None
    hold_reason: str | None
    hold_key: str | None
    run_at: datetime | None
    expires_at: datetime | None
    job_error: dict[str, Any] | None
    child_run: uuid.UUID | None


class RunningJob(NamedTuple):
    """A job that a worker has now."""

    node_id: str
    element: int
    worker: str
    attempt: int
    started_at: datetime | None
    progress: dict[str, Any]


class PoisonedEvent(NamedTuple):
    """An event that was given up; `node_id` None is of the run itself."""

    id: int
    kind: str
    node_id: str | None
    tries: int
    error: str | None
    poisoned_at: datetime


class BesideNodes(NamedTuple):
    """What there is of a run beside its nodes: the jobs that workers have, and its events.

    `events` are those that nobody has acted on, to a bound; `poisoned` those that were given up, the oldest
    first.
    """

    running: list[RunningJob]
    events: int
    poisoned: list[PoisonedEvent]


class OverviewRepository:
    """Reads what is known of one run, on the caller's connection; changes nothing."""

    def __init__(self, conn: Handle) -> None:
        self._conn = conn
        self._sql = Statements(conn, "workflow_runs")

    def run(self, run_id: uuid.UUID) -> RunFacts | None:
        """The run, or None."""
        return _run(self._sql.rows(RUN, {"run_id": run_id}))

    def size(self, run_id: uuid.UUID) -> int:
        """How many nodes its document has."""
        rows = self._sql.rows(SIZE, {"run_id": run_id})
        return int(rows[0][0]) if rows else 0

    def spec(self, run_id: uuid.UUID) -> dict[str, Any]:
        """Its document, as it was when it started."""
        spec: dict[str, Any] = json.loads(self._sql.rows(SPEC, {"run_id": run_id})[0][0])
        return spec

    def nodes(
        self,
        run_id: uuid.UUID,
        *,
        states: list[str] | None = None,
        most: int = 10_000,
        brief: bool = False,
    ) -> list[NodeFacts]:
        """Its nodes that were touched, at most so many, all or those in these states.

        In brief without the jobs of nodes that are over, which is a tenth of the work for thousands of them.
        """
        params = {"run_id": run_id, "states": states, "most": most}
        return _nodes(self._sql.rows(NODES_IN_BRIEF if brief else NODES, params))

    def counted_nodes(self, run_id: uuid.UUID, *, most: int = 10_000) -> list[NodeFacts]:
        """Nodes of a run without counters, from its jobs."""
        return _nodes(self._sql.rows(COUNTED_NODES, {"run_id": run_id, "most": most}))

    def run_and_beside(self, run_id: uuid.UUID) -> tuple[RunFacts, BesideNodes] | None:
        """The run with what workers have of it now, the longest running first, and its events; or None."""
        read = read_together(self._conn, "workflow_runs", _WITH_BESIDE, {"run_id": run_id})
        run = _run(read["run"])
        if run is None:
            return None
        jobs = (RunningJob(*row) for row in read["running"])
        return run, BesideNodes(
            running=[job._replace(progress=_loaded(job.progress) or {}) for job in jobs],
            events=int(read["events"][0][0]),
            poisoned=[PoisonedEvent(*row) for row in read["poisoned"]],
        )


def _run(rows: Rows) -> RunFacts | None:
    if not rows:
        return None
    facts = RunFacts(*rows[0])
    return facts._replace(
        labels=_loaded(facts.labels), error=_loaded(facts.error), outputs=_loaded(facts.outputs)
    )


def _nodes(rows: Rows) -> list[NodeFacts]:
    return [
        facts
        if facts.error is None and facts.job_error is None
        else facts._replace(error=_loaded(facts.error), job_error=_loaded(facts.job_error))
        for facts in map(NodeFacts._make, rows)
    ]


def _loaded(text: Any) -> Any:
    return None if text is None else json.loads(text)
