"""The end of a run: its outputs, its status, the word to its parent, the event for its hooks; all at once."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Final

from queue_workflows.engine.node_inputs.references import load_scope
from queue_workflows.engine.runs.repositories import DispatchTools
from queue_workflows.errors import QwfError
from queue_workflows.repositories.runs.outbox import RUN_FINISHED, LockedRun, RunEnd
from queue_workflows.states import RunStatus
from queue_workflows.workflow.document.load import Document
from queue_workflows.workflow.references.references import paths_in, resolve

# The kind of error of a run with nodes that did well and outputs that cannot be had.
OUTPUTS: Final = "outputs"


def end_of(desk: DispatchTools, run: LockedRun, over: RunStatus, document: Document) -> RunEnd:
    """How a locked run ended; its nodes are written already."""
    if over is RunStatus.COMPLETED:
        return _completed(desk, run, document)
    return RunEnd(over, error=_failure(desk, run) if over is RunStatus.FAILED else None)


def _completed(desk: DispatchTools, run: LockedRun, document: Document) -> RunEnd:
    """Completed with its outputs, or failed if they cannot be had."""
    try:
        paths = paths_in(document.outputs)
        scope = load_scope(desk.connection, run.id, paths) if paths else {}
        outputs = resolve(document.outputs, scope, where="outputs", host=desk.host)
        return RunEnd(RunStatus.COMPLETED, outputs=desk.limits.json_object("outputs", outputs))
    except QwfError as wrong:
        error = {"kind": OUTPUTS, "message": str(wrong)}
        return RunEnd(RunStatus.FAILED, error=json.dumps(error))


def _failure(desk: DispatchTools, run: LockedRun) -> str:
    found = desk.nodes.first_failure(run.id)
    if found is None:
        return json.dumps({"kind": "failed", "message": "a node failed"})
    node_id, error = found
    return json.dumps({"kind": "failed", "message": "failed", **(error or {}), "node": node_id})


def tell_parent(desk: DispatchTools, run: LockedRun, end: RunEnd) -> None:
    """End the node that a child run was started for, unless it is over already or has a newer child."""
    job_id = run.parent_node_job_id
    if job_id is None or desk.events.is_succeeded(run):
        return
    if end.status is RunStatus.COMPLETED:
        desk.jobs.mark_completed(job_id, json.loads(end.outputs or "{}"))
    elif end.status is RunStatus.FAILED:
        error = json.loads(end.error or "{}")
        said = f"run {run.id} of {run.workflow} failed: {error.get('node', '')} {error.get('message', '')}"
        desk.jobs.mark_failed(job_id, said[:2000])
    else:
        desk.jobs.cancel(job_id)


def give_up(desk: DispatchTools, run: LockedRun, *, reason: str | None) -> None:
    """Cancel a locked run that has an unreadable document, so that nobody can say what its nodes are."""
    desk.events.stop(run.id, desk.nodes.active(run.id), reason or "its document cannot be read")
    end = RunEnd(RunStatus.CANCELLED)
    tell_parent(desk, run, end)
    counters = replace(run.counters, nodes_left=0, active=0, stopping="cancel")
    desk.events.save(run, counters, end=end, cancel_reason=reason or "")
    desk.events.send_event(run.id, RUN_FINISHED)
