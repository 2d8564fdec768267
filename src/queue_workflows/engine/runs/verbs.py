"""The verbs of runs: start one, cancel it or a node of it, answer a node that waits for input.

Each is a statement or two in the caller's transaction, and takes effect with its commit. A run is started by
its row, and everything that is asked of it later is an event or a row beside it: an orchestrator does the
rest, and the caller never waits for one.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Final, TypeAlias

from queue_workflows.errors import PayloadError, RunRefused, UnknownNode, UnknownRun
from queue_workflows.repositories.jobs.durability import commit_so
from queue_workflows.repositories.jobs.enqueue import current_limits
from queue_workflows.repositories.runs.inputs import InputSubmissionRepository
from queue_workflows.repositories.runs.operator_verbs import ENGINE_MODE, NodeStanding, SteeringRepository
from queue_workflows.repositories.runs.runs import RunRepository, StartedRun, named_run
from queue_workflows.repositories.sql.checks import PayloadLimits
from queue_workflows.repositories.sql.configured_database import checked_transaction_of
from queue_workflows.repositories.sql.connection import Handle
from queue_workflows.states import NODE_OVER, RUN_TERMINAL, RunStatus
from queue_workflows.telemetry.names import RUN
from queue_workflows.telemetry.spans import producing
from queue_workflows.workflow.document.load import Document
from queue_workflows.workflow.document.nodes import InputNode
from queue_workflows.workflow.document.schemas import filled
from queue_workflows.workflow.providing import complete_document, find_document

# A run as people have it at hand: what `start_run` returned, its id, or the text of that.
RunName: TypeAlias = "StartedRun | uuid.UUID | str"
_USUAL_PRIORITY: Final = 5
_RUNS: Final = "workflow_runs"


def start_run(
    workflow: str | Document | Mapping[str, Any] | Path,
    inputs: Mapping[str, Any] | None = None,
    *,
    conn: Handle | None = None,
    priority: int | None = None,
    dedupe_key: str | None = None,
    labels: Mapping[str, Any] | None = None,
    parcel_id: str | None = None,
    traceparent: str | None = None,
    max_open_runs: int | None = None,
    durability: str | None = None,
) -> StartedRun:
    """Start a run of a workflow, in the transaction of `conn`; it keeps the document as it is now.

    Without `conn` that is a transaction of its own on the configured database, whatever else is open.

    `workflow` is the name of one that can be found, or a document: as a dict, or the path of a file. Inputs
    that the document does not allow are refused. Where a run of this workflow has the `dedupe_key` already,
    that one is the answer. Of the tree of runs that it begins, at most `max_open_runs` are open at once, else
    as many as the document says; what is found beyond that waits in `queued` for its turn. `durability` is
    what `synchronous_commit` is in that transaction.
    """
    document = _document(workflow)
    with (
        producing("start", document.name, None, "run") as traced,
        checked_transaction_of(conn, _RUNS) as handle,
    ):
        commit_so(handle, durability)
        started = insert_run(
            document,
            inputs,
            conn=handle,
            limits=current_limits(),
            priority=priority,
            dedupe_key=dedupe_key,
            labels=labels,
            parcel_id=parcel_id,
            traceparent=traceparent or traced.traceparent,
            max_open_runs=max_open_runs,
        )
        traced.note(RUN, str(started.id))
    return started


def insert_run(
    document: Document,
    inputs: Mapping[str, Any] | None,
    *,
    conn: Handle,
    limits: PayloadLimits,
    priority: int | None = None,
    dedupe_key: str | None = None,
    labels: Mapping[str, Any] | None = None,
    parcel_id: str | None = None,
    traceparent: str | None = None,
    max_open_runs: int | None = None,
) -> StartedRun:
    """What `start_run` does with a document at hand."""
    if labels is not None and not isinstance(labels, Mapping):
        raise PayloadError(f"labels must be a dict, not {type(labels).__name__}", path="labels")
    usual = _USUAL_PRIORITY if document.priority is None else document.priority
    return RunRepository(conn, payload_limits=limits).insert(
        document.name,
        spec=document.snapshot(),
        spec_hash=document.hash,
        inputs=document.checked_inputs(inputs),
        priority=usual if priority is None else priority,
        dedupe_key=dedupe_key,
        labels={**document.labels, **(labels or {})},
        parcel_id=parcel_id,
        traceparent=traceparent,
        max_open_runs=document.max_open_runs if max_open_runs is None else max_open_runs,
        sets_up=document.tree is not None,
    )


def cancel_run(
    run: RunName, *, conn: Handle | None = None, reason: str | None = None, actor: str | None = None
) -> bool:
    """Have a run cancelled, with all that it has started; whether it was not over yet.

    What waits ends at once, what runs is told to stop, and nothing starts any more. An `actor` is written to
    the audit log.
    """
    run_id = run_named(run)
    return cancel_runs([run_id], conn=conn, reason=reason, actor=actor)[run_id] not in RUN_TERMINAL


def cancel_runs(
    runs: Collection[RunName],
    *,
    conn: Handle | None = None,
    reason: str | None = None,
    actor: str | None = None,
) -> dict[uuid.UUID, RunStatus]:
    """Have many runs cancelled in one statement; how each stood: one that was over stays as it was."""
    with checked_transaction_of(conn, _RUNS) as handle:
        return _cancel(runs, None, handle, reason, actor)


def cancel_node(
    run: RunName,
    node: str,
    *,
    conn: Handle | None = None,
    reason: str | None = None,
    actor: str | None = None,
) -> bool:
    """Have one node of a run cancelled; whether it was not over yet.

    What needs it is cancelled too, and the rest of the run goes on.
    """
    run_id = run_named(run)
    with checked_transaction_of(conn, _RUNS) as handle:
        if not may_cancel_node(run_id, node, conn=handle):
            return False
        return _cancel([run_id], node, handle, reason, actor)[run_id] not in RUN_TERMINAL


def may_cancel_node(run: RunName, node: str, *, conn: Handle) -> bool:
    """Whether this node of a run is not over yet, so that it can be cancelled."""
    standing = _standing(run_named(run), node, conn)
    return standing.run_status not in RUN_TERMINAL and standing.state not in NODE_OVER


def submit_input(
    run: RunName,
    node: str,
    payload: Mapping[str, Any],
    *,
    conn: Handle | None = None,
    submitted_by: str | None = None,
) -> int:
    """Answer a node that waits for input; the id of the submission, which an orchestrator takes up.

    One that comes before the node does waits for it. An answer that the node's schema does not allow is a
    `PayloadError`, and a node that is over a `RunRefused`; nothing is stored then. Where the connection may
    not read runs, as a producer's may not, only the orchestrator checks it, and the row says what it found.
    """
    run_id = run_named(run)
    answer: Any = payload
    with checked_transaction_of(conn, _RUNS) as handle:
        if SteeringRepository(handle).may_read():
            asked = asked_node(run_id, node, conn=handle)
            answer = filled(asked.answer_schema, payload, what="the answer")
        submissions = InputSubmissionRepository(handle, payload_limits=current_limits())
        return submissions.insert(run_id, node, answer, submitted_by=submitted_by)


def asked_node(run: RunName, node: str, *, conn: Handle) -> InputNode:
    """What a node that waits for an answer asks; `RunRefused` where it awaits none."""
    run_id = run_named(run)
    return _asked(run_id, node, _standing(run_id, node, conn))


def run_named(run: RunName) -> uuid.UUID:
    """The id of a run, however it is given."""
    if isinstance(run, StartedRun):
        return run.id
    run_id = run if isinstance(run, uuid.UUID) else named_run(run) if isinstance(run, str) else None
    if run_id is None:
        raise PayloadError(
            f"{run!r:.80} is no run", path="run", advice="give what start_run returned, or its id"
        )
    return run_id


def _document(workflow: str | Document | Mapping[str, Any] | Path) -> Document:
    if isinstance(workflow, str):
        return find_document(workflow)
    if isinstance(workflow, Document) and workflow.pipeline is None:
        return workflow
    return complete_document(workflow)


def _cancel(
    runs: Collection[RunName], node: str | None, conn: Handle, reason: str | None, actor: str | None
) -> dict[uuid.UUID, RunStatus]:
    ids = sorted({run_named(run) for run in runs})
    found = SteeringRepository(conn).cancel(ids, node_id=node, actor=actor, reason=reason)
    for run_id in ids:
        if run_id not in found:
            raise UnknownRun(run_id)
        check_mode(run_id, found[run_id].status, found[run_id].mode)
    return {run_id: found[run_id].status for run_id in ids}


def _standing(run_id: uuid.UUID, node: str, conn: Handle) -> NodeStanding:
    standing = SteeringRepository(conn).node(run_id, node)
    if standing is None:
        raise UnknownRun(run_id)
    check_mode(run_id, standing.run_status, standing.mode)
    if standing.declared is None:
        raise UnknownNode(run_id, node)
    return standing


def check_mode(run_id: uuid.UUID, status: RunStatus, mode: str) -> None:
    """Refuse what is asked of a run that the host app advances by itself."""
    if mode != ENGINE_MODE:
        raise RunRefused(
            run_id,
            f"run {run_id} is in mode {mode!r}, which no orchestrator of ours advances",
            status=status,
            advice="ask the application that runs it",
        )


def _asked(run_id: uuid.UUID, node: str, standing: NodeStanding) -> InputNode:
    """The node as one that takes an answer, now or later, or why it does not."""
    called = f"node {node!r} of run {run_id}"
    declared = standing.declared or {}
    if declared.get("type") != "input":
        kind = declared.get("type", "task")
        raise RunRefused(run_id, f"{called} is a {kind}, which takes no answer", status=standing.run_status)
    if standing.run_status in RUN_TERMINAL:
        raise RunRefused(run_id, f"run {run_id} is {standing.run_status}", status=standing.run_status)
    if standing.state in NODE_OVER or standing.expired:
        state = "expired" if standing.expired else standing.state
        raise RunRefused(
            run_id,
            f"{called} awaits no answer any more: it is {state}",
            status=str(state),
            advice=f"`qwf run show {run_id}`",
        )
    return InputNode.model_validate(declared)
