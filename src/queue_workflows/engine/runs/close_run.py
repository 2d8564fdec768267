"""The end of a run: its outputs, its status, the word to its parent, the event for its hooks; all at once."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Final

from queue_workflows.engine.node_inputs.references import load_scope
from queue_workflows.engine.runs.repositories import DispatchTools
from queue_workflows.engine.runs.tree import RunTree
from queue_workflows.errors import QwfError
from queue_workflows.repositories.runs.outbox import RUN_FINISHED, LockedRun, RunEnd
from queue_workflows.states import JobStatus, RunStatus
from queue_workflows.workflow.document.load import Document
from queue_workflows.workflow.references.references import paths_in, paths_to_read, resolve

# The kind of error of a run with nodes that did well and outputs that cannot be had.
OUTPUTS: Final = "outputs"


def end_of(tools: DispatchTools, run: LockedRun, over: RunStatus, document: Document) -> RunEnd:
    """How a locked run ended; its nodes are written already."""
    if over is RunStatus.COMPLETED:
        return _completed(tools, run, document)
    return RunEnd(over, error=_failure(tools, run) if over is RunStatus.FAILED else None)


def _completed(tools: DispatchTools, run: LockedRun, document: Document) -> RunEnd:
    """Completed with its outputs, or failed if they cannot be had."""
    try:
        paths = paths_to_read(paths_in(document.outputs), tools.host)
        scope = load_scope(tools.connection, run.id, paths) if paths else {}
        outputs = resolve(document.outputs, scope, where="outputs", host=tools.host)
        return RunEnd(RunStatus.COMPLETED, outputs=tools.limits.json_object("outputs", outputs))
    except QwfError as wrong:
        error = {"kind": OUTPUTS, "message": str(wrong)}
        return RunEnd(RunStatus.FAILED, error=json.dumps(error))


def _failure(tools: DispatchTools, run: LockedRun) -> str:
    found = tools.nodes.first_failure(run.id)
    if found is None:
        return json.dumps({"kind": "failed", "message": "a node failed"})
    node_id, error = found
    return json.dumps({"kind": "failed", "message": "failed", **(error or {}), "node": node_id})


def tell_parent(tools: DispatchTools, run: LockedRun, end: RunEnd) -> bool:
    """End the node that a child run was started for, unless it is over already or has a newer child.

    Whether it did, so that the parent has an event of that.
    """
    job_id = run.parent_node_job_id
    if job_id is None or tools.events.is_succeeded(run):
        return False
    if end.status is RunStatus.COMPLETED:
        return tools.jobs.mark_completed(job_id, json.loads(end.outputs or "{}")) is not None
    if end.status is RunStatus.FAILED:
        error = json.loads(end.error or "{}")
        said = f"run {run.id} of {run.workflow} failed: {error.get('node', '')} {error.get('message', '')}"
        return tools.jobs.mark_failed(job_id, said[:2000]) is not None
    return tools.jobs.cancel(job_id) is JobStatus.CANCELLED


def give_up(tools: DispatchTools, run: LockedRun, *, reason: str | None) -> None:
    """Cancel a locked run that has an unreadable document, so that nobody can say what its nodes are."""
    tools.events.stop(run.id, tools.nodes.active(run.id), reason or "its document cannot be read")
    end = RunEnd(RunStatus.CANCELLED)
    parent_hears = tell_parent(tools, run, end)
    counters = replace(run.counters, nodes_left=0, active=0, stopping="cancel")
    tools.events.save(run, counters, end=end, cancel_reason=reason or "")
    tools.events.send_event(run.id, RUN_FINISHED)
    RunTree(tools, run).end(parent_hears=parent_hears)
