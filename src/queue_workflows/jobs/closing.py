"""The end of a run: its outputs, its status, the word to its parent, the event for its hooks; all at once."""

from __future__ import annotations

import json
from typing import Any

import psycopg

from queue_workflows.errors import QwfError
from queue_workflows.jobs.opening import Host
from queue_workflows.jobs.scope import load_scope
from queue_workflows.repositories.dispatching import RUN_FINISHED, DispatchRepository, LockedRun, RunEnd
from queue_workflows.repositories.fields import PayloadLimits
from queue_workflows.repositories.node_jobs import NodeJobRepository
from queue_workflows.repositories.workflow_nodes import WorkflowNodeRepository
from queue_workflows.states import RunStatus
from queue_workflows.workflow.progress import RunCounters
from queue_workflows.workflow.refs import paths_in, resolve
from queue_workflows.workflow.spec import Document


def close_run(
    connection: psycopg.Connection[Any],
    run: LockedRun,
    counters: RunCounters,
    over: RunStatus,
    document: Document,
    *,
    limits: PayloadLimits,
    host: Host | None,
    cancel_reason: str | None,
) -> None:
    """Store how a locked run ended, whose nodes are written."""
    end = RunEnd(over)
    if over is RunStatus.COMPLETED:
        end = _completed(connection, run, document, limits, host)
    elif over is RunStatus.FAILED:
        end = RunEnd(over, error=_failure(connection, run))
    events = DispatchRepository(connection)
    events.save(run, counters, end=end, cancel_reason=cancel_reason)
    events.add_event(run.id, RUN_FINISHED)
    if run.parent_node_job_id is not None and not events.is_succeeded(run):
        _tell_parent(NodeJobRepository(connection, payload_limits=limits), run.parent_node_job_id, run, end)


def _completed(
    connection: psycopg.Connection[Any],
    run: LockedRun,
    document: Document,
    limits: PayloadLimits,
    host: Host | None,
) -> RunEnd:
    """Completed with its outputs, or failed if they cannot be had."""
    try:
        paths = paths_in(document.outputs)
        scope = load_scope(connection, run.id, paths) if paths else {}
        outputs = resolve(document.outputs, scope, where="outputs", host=host)
        return RunEnd(RunStatus.COMPLETED, outputs=limits.json_object("outputs", outputs))
    except QwfError as wrong:
        error = {"kind": "outputs", "message": str(wrong)}
        return RunEnd(RunStatus.FAILED, error=json.dumps(error))


def _failure(connection: psycopg.Connection[Any], run: LockedRun) -> str:
    found = WorkflowNodeRepository(connection).first_failure(run.id)
    if found is None:
        return json.dumps({"kind": "failed", "message": "a node failed"})
    node_id, error = found
    return json.dumps({"kind": "failed", "message": "failed", **(error or {}), "node": node_id})


def _tell_parent(jobs: NodeJobRepository, job_id: int, run: LockedRun, end: RunEnd) -> None:
    """End the node that this run was started for, unless it is over already."""
    if end.status is RunStatus.COMPLETED:
        jobs.mark_completed(job_id, json.loads(end.outputs or "{}"))
    elif end.status is RunStatus.FAILED:
        error = json.loads(end.error or "{}")
        said = f"run {run.id} of {run.workflow} failed: {error.get('node', '')} {error.get('message', '')}"
        jobs.mark_failed(job_id, said[:2000])
    else:
        jobs.cancel(job_id)
