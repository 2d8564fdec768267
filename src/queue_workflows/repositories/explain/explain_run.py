"""Everything that decides whether a run goes on, read in one place for `qwf explain`.

What waits to be acted upon is asked by the dispatcher's own predicate; why a job of it waits, by those of the
claim, through the circumstances of the first job of each kind.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from queue_workflows.repositories.audit_log import OF_SUBJECT
from queue_workflows.repositories.explain.explain_job import (
    COUNTED_AHEAD,
    COUNTED_AHEAD_IN_BRIEF,
    Circumstances,
)
from queue_workflows.repositories.explain.explain_run_jobs import RunJobsRepository
from queue_workflows.repositories.runs.outbox import DUE
from queue_workflows.repositories.runs.runs import FETCH_AGAIN
from queue_workflows.repositories.sql.connection import Handle, Statements
from queue_workflows.repositories.sql.table import Table
from queue_workflows.repositories.sql.together import read_together
from queue_workflows.states import JobStatus, NodeState, RunStatus

if TYPE_CHECKING:
    from queue_workflows.models import AuditLog, WorkflowRun

_AUDIT: Final[Table[AuditLog]] = Table("audit_log")
_RUNS: Final[Table[WorkflowRun]] = Table("workflow_runs")
# The name under which an orchestrator's connections are known to the server.
ORCHESTRATORS: Final = "qwf:orchestrator@%"
# Groups of jobs beyond this many are not told one by one.
MOST_GROUPS: Final = 20
MOST_EVENTS: Final = 5
# Open jobs of a run beyond this many in one status are not counted.
COUNTED: Final = 100_000
COUNTED_IN_BRIEF: Final = 100

RUN: Final = """
SELECT status, mode, workflow_name, priority, nodes_left, nodes_active, nodes_failed, stopping,
    cancel_requested_at, cancel_reason, parent_run_id, error::text, created_at, started_at, finished_at,
    hold_reason, statement_timestamp(),
    (SELECT count(DISTINCT pid) FROM pg_stat_activity
        WHERE datname = current_database() AND application_name LIKE %(orchestrators)s::text), spec_hash
FROM workflow_runs WHERE id = %(run_id)s::uuid
"""
# Of what the outbox has of a run: how much is due, since when, and when somebody asked for a cancel.
OUTBOX: Final = f"""
SELECT count(*) FILTER (WHERE {DUE}), min(created_at) FILTER (WHERE {DUE}),
    min(created_at) FILTER (WHERE kind = 'cancel' AND NOT payload ? 'node_id')
FROM workflow_dispatch_events WHERE run_id = %(run_id)s::uuid
"""  # noqa: S608 - a fragment of our own
FAILING: Final = """
SELECT event.id, event.kind, COALESCE(job.node_id, event.payload ->> 'node_id'), event.tries,
    event.last_error, event.next_try_at, event.poisoned_at
FROM workflow_dispatch_events AS event LEFT JOIN workflow_node_jobs AS job ON job.id = event.node_job_id
WHERE event.run_id = %(run_id)s::uuid AND event.tries > 0 AND event.kind <> 'run_finished'
ORDER BY event.poisoned_at NULLS LAST, event.id
LIMIT %(most)s::bigint
"""
# Open jobs that are alike, with the one that comes first; of those of one node, if one is asked about. Each
# status by itself, so that what is open is found by an index of its own, where that has fewer.
# open: no more of a status than are counted; last whether there are more.
_GROUPS: Final = """
SELECT node_id, kind, status, queue, hold_reason, count(*), min(id), min(run_at), min(expires_at),
    sum(count(*)) OVER (PARTITION BY status) > {counted}
FROM (
    (
        SELECT id, node_id, kind, status, queue, hold_reason, run_at, expires_at FROM workflow_node_jobs
        WHERE run_id = %(run_id)s::uuid AND status = 'scheduled'
            AND (%(node_id)s::text IS NULL OR node_id = %(node_id)s::text)
        {by}ORDER BY run_at{end}
        LIMIT {counted} + 1
    ) UNION ALL (
        SELECT id, node_id, kind, status, queue, hold_reason, run_at, expires_at FROM workflow_node_jobs
        WHERE run_id = %(run_id)s::uuid AND status = 'queued'
            AND (%(node_id)s::text IS NULL OR node_id = %(node_id)s::text)
        {by}ORDER BY queue{end}
        LIMIT {counted} + 1
    ) UNION ALL (
        SELECT id, node_id, kind, status, queue, hold_reason, run_at, expires_at FROM workflow_node_jobs
        WHERE run_id = %(run_id)s::uuid AND status = 'running'
            AND (%(node_id)s::text IS NULL OR node_id = %(node_id)s::text)
        {by}ORDER BY claimed_by{end}
        LIMIT {counted} + 1
    ) UNION ALL (
        SELECT id, node_id, kind, status, queue, hold_reason, run_at, expires_at FROM workflow_node_jobs
        WHERE run_id = %(run_id)s::uuid AND status = 'awaiting_input'
            AND (%(node_id)s::text IS NULL OR node_id = %(node_id)s::text)
        {by}ORDER BY expires_at{end}
        LIMIT {counted} + 1
    )
) AS open
GROUP BY node_id, kind, status, queue, hold_reason
ORDER BY min(id)
LIMIT %(most)s::bigint
"""
GROUPS: Final = re.sub(r" *\{by\}.*\{end\}\n", "", _GROUPS).replace("{counted}", str(COUNTED))
# Of one node on its page, beside the counts that the node itself has: in the order of an index each, as the
# planner would read the table to come to so few of what it takes for many.
GROUPS_IN_BRIEF: Final = (
    _GROUPS.replace("{by}", "").replace("{end}", "").replace("{counted}", str(COUNTED_IN_BRIEF))
)
CHILDREN: Final = """
SELECT DISTINCT ON (parent_node_job_id) parent_node_job_id, id, status FROM workflow_runs
WHERE parent_run_id = %(run_id)s::uuid AND parent_node_job_id = ANY (%(jobs)s::bigint[])
ORDER BY parent_node_job_id, created_at DESC
"""
# Its place in the tree: the run that has the cap, the cap, how many are open by that, and of the runs below
# this one the first that keeps it waiting. Then the run that has set up its tree, on which host, and whether
# that is over.
TREE: Final = """
SELECT run.capped_by,
    (SELECT capping.max_open_runs FROM workflow_runs AS capping WHERE capping.id = run.capped_by),
    (SELECT count(*) FROM workflow_runs AS other WHERE other.capped_by = run.capped_by
        AND other.finished_at IS NULL AND other.hold_reason IS NULL AND NOT other.awaits_descendants),
    ARRAY(
        SELECT child.id FROM workflow_runs AS child
        WHERE child.parent_run_id = run.id AND (child.finished_at IS NULL OR child.left_descendants)
        ORDER BY child.finished_at IS NULL DESC, child.id
        LIMIT 1
    ), root.id, root.pinned_host, root.finished_at IS NOT NULL
FROM workflow_runs AS run LEFT JOIN workflow_runs AS root ON root.id = run.set_up_by
WHERE run.id = %(run_id)s::uuid
"""
# The node and what it depends on, as far as anybody has touched them.
NODES: Final = """
SELECT node_id, state, parents_left, jobs_attempted, error::text, finished_at FROM workflow_nodes
WHERE run_id = %(run_id)s::uuid AND node_id = ANY (%(nodes)s::text[])
"""

_MOST_ACTS: Final = 100
# All that is read of the run itself; of its row not its document or what it was given, which may be large.
_READS: Final = {
    "run": RUN,
    "outbox": OUTBOX,
    "groups": GROUPS,
    "failing": FAILING.replace("%(most)s", "%(most_events)s"),
    "tree": TREE,
    "done_to_it": OF_SUBJECT,
    "row": FETCH_AGAIN.replace("workflow_runs.inputs::text AS inputs", "'{}' AS inputs").replace(
        "workflow_runs.outputs::text AS outputs", "NULL AS outputs"
    ),
}
# The page of a node has no history, in which acts are told.
_BRIEF_READS: Final = {name: sql for name, sql in _READS.items() if name != "done_to_it"} | {
    "groups": GROUPS_IN_BRIEF
}


@dataclass(frozen=True, slots=True)
class RunFacts:
    """A run as it stands, and how many orchestrators are connected."""

    status: RunStatus
    mode: str
    workflow: str
    priority: int
    nodes_left: int
    nodes_active: int
    nodes_failed: int
    stopping: str | None
    cancel_requested_at: datetime | None
    cancel_reason: str | None
    parent_run_id: uuid.UUID | None
    error: dict[str, Any] | None
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    hold_reason: str | None
    now: datetime
    orchestrators: int
    spec_hash: str


@dataclass(frozen=True, slots=True)
class FailingEvent:
    """An event that could not be acted upon; put aside for good if it was `poisoned_at`."""

    id: int
    kind: str
    node_id: str | None
    tries: int
    last_error: str | None
    next_try_at: datetime
    poisoned_at: datetime | None


@dataclass(frozen=True, slots=True)
class OpenJobs:
    """Open jobs of a node that are alike; `first` of them, and since when it is so.

    If not all are `counted`, there are more.
    """

    node_id: str
    kind: str
    status: JobStatus
    queue: str
    hold_reason: str | None
    count: int
    first: int
    since: datetime
    expires_at: datetime | None
    counted: bool = True


@dataclass(frozen=True, slots=True)
class NodeRow:
    """A node that was touched."""

    node_id: str
    state: NodeState
    parents_left: int
    attempted: int
    error: dict[str, Any] | None
    finished_at: datetime | None


@dataclass(frozen=True, slots=True)
class TreeFacts:
    """What its tree says of a run: which run has the cap, how many are open by it, and what is open below.

    Where the tree was set up, by which run, on which host, and whether that is over.
    """

    capped_by: uuid.UUID | None
    max_open_runs: int | None
    open_of_tree: int
    open_below: list[uuid.UUID]
    set_up_by: uuid.UUID | None
    host: str | None
    setup_is_over: bool


@dataclass(frozen=True, slots=True)
class RunCircumstances:
    """A run and all that its going on depends on.

    `due` events wait to be acted upon, the oldest since `due_since`. `jobs` has the circumstances of the
    first of each group that waits for a worker or is with one, `children` the runs that parked jobs wait for.
    """

    run_id: uuid.UUID
    run: RunFacts
    due: int
    due_since: datetime | None
    cancel_asked_at: datetime | None
    failing: list[FailingEvent]
    groups: list[OpenJobs]
    jobs: dict[int, Circumstances]
    children: dict[int, tuple[uuid.UUID, RunStatus]]
    tree: TreeFacts
    done_to_it: list[AuditLog]


class RunExplainingRepository:
    """Reads circumstances of runs on the caller's connection; changes nothing."""

    def __init__(self, conn: Handle) -> None:
        self._conn = conn
        self._sql = Statements(conn, "workflow_runs")

    def circumstances(
        self, run_id: uuid.UUID, *, node_id: str | None = None, brief: bool = False
    ) -> RunCircumstances | None:
        """What there is to know about a run, or about one node of it; None where there is no such run.

        In brief open jobs are counted to `COUNTED_IN_BRIEF`, so that a hundred thousand cost what few do, and
        nothing is read that only a history tells.
        """
        params = {
            "run_id": run_id,
            "node_id": node_id,
            "most": MOST_GROUPS,
            "most_events": MOST_EVENTS,
            "orchestrators": ORCHESTRATORS,
            "kind": "run",
            "id": run_id,
            "limit": _MOST_ACTS,
        }
        reads, counted = (_BRIEF_READS, COUNTED_IN_BRIEF) if brief else (_READS, COUNTED)
        read = read_together(self._conn, "workflow_runs", reads, params)
        if not read["run"]:
            return None
        due, due_since, cancel_asked_at = read["outbox"][0]
        groups = [_group(row, counted) for row in read["groups"]]
        at_work = [group for group in groups if group.status is not JobStatus.AWAITING_INPUT]
        (row,) = _RUNS.load(read["row"])
        return RunCircumstances(
            run_id=run_id,
            run=_facts(read["run"][0]),
            due=due,
            due_since=due_since,
            cancel_asked_at=cancel_asked_at,
            failing=[FailingEvent(*row) for row in read["failing"]],
            groups=groups,
            jobs=RunJobsRepository(self._conn).circumstances(
                row,
                [group.first for group in at_work],
                queues={group.queue for group in at_work},
                alone=[group.first for group in at_work if group.count == 1],
                has_running=any(group.status is JobStatus.RUNNING for group in at_work),
                counted_ahead=COUNTED_AHEAD_IN_BRIEF if brief else COUNTED_AHEAD,
            ),
            children=self._children(run_id, groups),
            tree=TreeFacts(*read["tree"][0]),
            done_to_it=_AUDIT.load(read.get("done_to_it", ())),
        )

    def nodes(self, run_id: uuid.UUID, node_ids: Sequence[str]) -> dict[str, NodeRow]:
        """The rows of some nodes, by id, as far as they were touched."""
        rows = self._sql.rows(NODES, {"run_id": run_id, "nodes": list(node_ids)})
        return {
            node_id: NodeRow(node_id, NodeState(state), left, attempted, _loaded(error), finished)
            for node_id, state, left, attempted, error, finished in rows
        }

    def _children(
        self, run_id: uuid.UUID, groups: Sequence[OpenJobs]
    ) -> dict[int, tuple[uuid.UUID, RunStatus]]:
        waiting = [group.first for group in groups if group.kind == "workflow"]
        if not waiting:
            return {}
        rows = self._sql.rows(CHILDREN, {"run_id": run_id, "jobs": waiting})
        return {job_id: (child, RunStatus(status)) for job_id, child, status in rows}


def _facts(row: Sequence[Any]) -> RunFacts:
    values = list(row)
    values[0], values[11] = RunStatus(row[0]), _loaded(row[11])
    return RunFacts(*values)


def _group(row: Sequence[Any], counted: int) -> OpenJobs:
    node_id, kind, status, queue, hold_reason, count, first, since, expires_at, has_more = row
    return OpenJobs(
        node_id,
        kind,
        JobStatus(status),
        queue,
        hold_reason,
        min(count, counted),
        first,
        since,
        expires_at,
        counted=not has_more,
    )


def _loaded(text: str | None) -> Any:
    return None if text is None else json.loads(text)
