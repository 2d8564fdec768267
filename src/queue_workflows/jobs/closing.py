"""The end of a run: its outputs, its status, the word to its parent, the event for its hooks; all at once."""

from __future__ import annotations

import json

from queue_workflows.errors import QwfError
from queue_workflows.jobs.desk import Desk
from queue_workflows.jobs.scope import load_scope
from queue_workflows.repositories.dispatching import RUN_FINISHED, LockedRun, RunEnd
from queue_workflows.repositories.node_jobs import NodeJobRepository
from queue_workflows.states import RunStatus
from queue_workflows.workflow.progress import RunCounters
from queue_workflows.workflow.refs import paths_in, resolve
from queue_workflows.workflow.spec import Document


def close_run(
    desk: Desk,
    run: LockedRun,
    counters: RunCounters,
    over: RunStatus,
    document: Document,
    *,
    cancel_reason: str | None,
) -> None:
    """Store how a locked run ended, whose nodes are written."""
    end = RunEnd(over)
    if over is RunStatus.COMPLETED:
        end = _completed(desk, run, document)
    elif over is RunStatus.FAILED:
        end = RunEnd(over, error=_failure(desk, run))
    desk.events.save(run, counters, end=end, cancel_reason=cancel_reason)
    desk.events.send_event(run.id, RUN_FINISHED)
    if run.parent_node_job_id is not None and not desk.events.is_succeeded(run):
        _tell_parent(desk.jobs, run.parent_node_job_id, run, end)


def _completed(desk: Desk, run: LockedRun, document: Document) -> RunEnd:
    """Completed with its outputs, or failed if they cannot be had."""
    try:
        paths = paths_in(document.outputs)
        scope = load_scope(desk.connection, run.id, paths) if paths else {}
        outputs = resolve(document.outputs, scope, where="outputs", host=desk.host)
        return RunEnd(RunStatus.COMPLETED, outputs=desk.limits.json_object("outputs", outputs))
    except QwfError as wrong:
        error = {"kind": "outputs", "message": str(wrong)}
        return RunEnd(RunStatus.FAILED, error=json.dumps(error))


def _failure(desk: Desk, run: LockedRun) -> str:
    found = desk.nodes.first_failure(run.id)
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
