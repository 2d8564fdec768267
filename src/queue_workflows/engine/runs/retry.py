"""Running a run again that is over: what failed or follows a node, with all finished results kept.

The run's rows are set back in the caller's transaction, so that a wait that begins after that commit is for
the new end. What is ready then is opened by an orchestrator, as any other node.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from queue_workflows.config import EveryRef, current_config
from queue_workflows.engine.runs.close_run import OUTPUTS
from queue_workflows.engine.runs.document_change import NO_CHANGE, change_of
from queue_workflows.engine.runs.verbs import RunName, check_mode, run_named
from queue_workflows.errors import QwfError, RunRefused, UnknownNode, UnknownRun
from queue_workflows.repositories.jobs.enqueue import current_limits
from queue_workflows.repositories.runs.nodes import WorkflowNodeRepository
from queue_workflows.repositories.runs.operator_verbs import SteeringRepository, StoredRun
from queue_workflows.repositories.runs.tree import RunTreeRepository
from queue_workflows.repositories.sql.configured_database import checked_transaction_of
from queue_workflows.repositories.sql.connection import Handle
from queue_workflows.states import RUN_TERMINAL, RunStatus
from queue_workflows.workflow.document.load import Document, SealNode, compiled
from queue_workflows.workflow.planning.graph import graph_of
from queue_workflows.workflow.planning.progress import Counters
from queue_workflows.workflow.planning.reopening import Reopening, reopen
from queue_workflows.workflow.providing import find_document
from queue_workflows.workflow.references.references import paths_in


@dataclass(frozen=True, slots=True)
class RunRetry:
    """What a retry runs again, or would: node ids, parents before children.

    `ready` start at once; `kept` keep what they came to; `elements_kept` says of lists among `again` how many
    elements keep their result. `was` is what the run had come to. `setup_over` is the run that had set up its
    tree, if that is over: what that had in the background is not there any more. With another document
    `changed` are its nodes that are new or other than they were, and `removed` those that it has no more.
    """

    run_id: uuid.UUID
    was: RunStatus
    again: tuple[str, ...]
    ready: tuple[str, ...]
    kept: tuple[str, ...]
    elements_kept: Mapping[str, int]
    setup_over: uuid.UUID | None = None
    changed: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()


def retry_run(
    run: RunName,
    *,
    conn: Handle | None = None,
    from_node: str | None = None,
    document: Document | Mapping[str, Any] | Path | None = None,
    latest: bool = False,
    dry_run: bool = False,
    actor: str | None = None,
    reason: str | None = None,
) -> RunRetry:
    """Run again what failed or was cancelled in a run that is over, and all that follows from it.

    Where nothing did and only its outputs could not be had, those are put together again.

    With `from_node` that node runs again too, whatever it came to, with all that follows from it. With
    another `document`, or the `latest` of its name, so do the nodes that it changes or adds; the others keep
    their results. With `dry_run` nothing is changed. An `actor` is written to the audit log.
    """
    run_id = run_named(run)
    with checked_transaction_of(conn, "workflow_runs") as handle:
        stored = SteeringRepository(handle).stored(run_id, lock=not dry_run)
        if stored is None:
            raise UnknownRun(run_id)
        _check(run_id, stored)
        if SteeringRepository(handle).is_pruned(run_id):
            raise _pruned(run_id, stored)
        before = compiled(stored.spec, stored.spec_hash)
        change = NO_CHANGE
        if document is not None or latest:
            change = change_of(
                run_id, stored.status, before, find_document(before.name) if latest else document
            )
        now = change.document or before
        from_nodes = frozenset(change.changed) | _begun_from(run_id, now, from_node)
        reopening = _reopening(handle, run_id, now, from_nodes)
        if not reopening.again and stored.error_kind != OUTPUTS and now.outputs == before.outputs:
            raise _nothing_again(run_id, stored)
        inputs = (
            None if change.document is None else now.checked_inputs(SteeringRepository(handle).inputs(run_id))
        )
        if not dry_run:
            details = {"was": stored.status, "from_node": from_node, "nodes": len(reopening.again)}
            if inputs is not None:
                details |= {"document_was": stored.spec_hash, "document": now.hash}
                _replace_document(handle, run_id, now, inputs)
                reopening = replace(reopening, dropped=(*reopening.dropped, *change.removed))
            _write(handle, run_id, now, reopening, from_nodes, actor=actor, reason=reason, details=details)
    return replace(_retry(run_id, stored, reopening), changed=change.changed, removed=change.removed)


def foretell_retries(
    runs: Collection[uuid.UUID], *, conn: Handle, from_node: str | None = None
) -> dict[uuid.UUID, RunRetry | QwfError]:
    """What `retry_run` would do to each of many runs, or what it would raise; nothing is changed.

    However many they are, three statements read them; the nodes only of what may be run again.
    """
    stored = SteeringRepository(conn).stored_of(runs)
    checked = {run_id: _checked(run_id, stored.get(run_id)) for run_id in runs}
    over = [run_id for run_id, found in checked.items() if isinstance(found, StoredRun)]
    rows = WorkflowNodeRepository(conn).read_of(over)
    told: dict[uuid.UUID, RunRetry | QwfError] = {}
    for run_id, found in checked.items():
        try:
            told[run_id] = (
                _foretold(run_id, found, rows[run_id], from_node) if isinstance(found, StoredRun) else found
            )
        except QwfError as refused:
            # What is stored of one may be bad, which is no matter of the others.
            told[run_id] = refused
    return told


def _checked(run_id: uuid.UUID, found: tuple[StoredRun, bool] | None) -> StoredRun | QwfError:
    """What is stored of a run, or why it cannot be run again whatever its nodes are."""
    if found is None:
        return UnknownRun(run_id)
    stored, is_pruned = found
    try:
        _check(run_id, stored)
    except RunRefused as refused:
        return refused
    return _pruned(run_id, stored) if is_pruned else stored


def _foretold(
    run_id: uuid.UUID, stored: StoredRun, rows: Mapping[str, Counters], from_node: str | None
) -> RunRetry:
    document = compiled(stored.spec, stored.spec_hash)
    graph = document.derived(graph_of)
    known = {node_id: row for node_id, row in rows.items() if node_id in graph.nodes}
    reopening = reopen(graph, known, from_nodes=_begun_from(run_id, document, from_node))
    reopening = _without_doubtful_lists(reopening, document)
    if not reopening.again and stored.error_kind != OUTPUTS:
        raise _nothing_again(run_id, stored)
    return _retry(run_id, stored, reopening)


def _begun_from(run_id: uuid.UUID, document: Document, from_node: str | None) -> frozenset[str]:
    """The node that is named to run again from, if there is one; the document has to have it."""
    if from_node is None:
        return frozenset()
    if from_node not in document.by_id:
        raise UnknownNode(run_id, from_node)
    return frozenset((from_node,))


def _retry(run_id: uuid.UUID, stored: StoredRun, reopening: Reopening) -> RunRetry:
    return RunRetry(
        run_id,
        stored.status,
        reopening.again,
        reopening.ready,
        reopening.kept,
        {node_id: reopening.nodes[node_id].total for node_id in reopening.elements_kept},
        setup_over=stored.setup_over,
    )


def _pruned(run_id: uuid.UUID, stored: StoredRun) -> RunRefused:
    message = f"run {run_id} is {stored.status} for so long that its results are being deleted"
    return RunRefused(run_id, message, status=stored.status, advice="start another run")


def _nothing_again(run_id: uuid.UUID, stored: StoredRun) -> RunRefused:
    advice = "name a node to run again from, with `from_node` or --from"
    message = f"run {run_id} is {stored.status}: there is nothing to run again"
    return RunRefused(run_id, message, status=stored.status, advice=advice)


def go_on_with(run_id: uuid.UUID, *, conn: Handle) -> bool:
    """Run a child run again, as its parent's node is run again; false if it has nothing to go on with.

    Nor has one that is locked at this moment: its holder may be waiting for the parent's row, which we hold.
    """
    stored = SteeringRepository(conn).stored_unless_held(run_id)
    if stored is None or stored.status not in (RunStatus.FAILED, RunStatus.CANCELLED):
        return False
    document = compiled(stored.spec, stored.spec_hash)
    reopening = _reopening(conn, run_id, document, frozenset())
    if reopening.again:
        _write(conn, run_id, document, reopening, frozenset(), actor=None, reason=None, details={})
    return bool(reopening.again)


def _replace_document(conn: Handle, run_id: uuid.UUID, now: Document, inputs: dict[str, Any]) -> None:
    limits = current_limits()
    SteeringRepository(conn).replace_document(
        run_id,
        spec=limits.json_object("spec", now.snapshot()),
        spec_hash=now.hash,
        inputs=limits.json_object("inputs", inputs),
    )


def _reopening(conn: Handle, run_id: uuid.UUID, document: Document, from_nodes: Collection[str]) -> Reopening:
    graph = document.derived(graph_of)
    rows = WorkflowNodeRepository(conn).read(run_id, graph.nodes)
    return _without_doubtful_lists(reopen(graph, rows, from_nodes=from_nodes), document)


def _write(
    conn: Handle,
    run_id: uuid.UUID,
    document: Document,
    reopening: Reopening,
    from_nodes: Collection[str],
    *,
    actor: str | None,
    reason: str | None,
    details: dict[str, Any],
) -> None:
    """Set back the rows of a run that the caller has locked."""
    graph = document.derived(graph_of)
    again = (document.by_id[node_id] for node_id in reopening.again)
    mapped = [node_id for node_id in reopening.nodes if graph.nodes[node_id].is_mapped]
    from_start = _from_start(reopening, document, from_nodes)
    WorkflowNodeRepository(conn).write(run_id, reopening.nodes.values(), mapped)
    SteeringRepository(conn).reopen(
        run_id,
        nodes_left=reopening.run.nodes_left,
        ready=reopening.ready,
        untouched=reopening.dropped,
        anew=_anew(reopening, document, from_nodes),
        from_start=from_start,
        going_on=[node_id for node_id in reopening.again if node_id not in from_start],
        unsealed=any(isinstance(node, SealNode) for node in again),
        actor=actor,
        reason=reason,
        details=details,
    )
    RunTreeRepository(conn).goes_on(run_id)


def _check(run_id: uuid.UUID, stored: StoredRun) -> None:
    check_mode(run_id, stored.status, stored.mode)
    if stored.status not in RUN_TERMINAL:
        raise RunRefused(
            run_id,
            f"run {run_id} is {stored.status}: only what is over can be run again",
            status=stored.status,
            advice=f"wait for it, or cancel it first: `qwf run cancel {run_id}`",
        )
    if stored.parent_run_id is not None:
        raise RunRefused(
            run_id,
            f"run {run_id} belongs to a node of run {stored.parent_run_id}",
            status=stored.status,
            advice=f"retry that one, which goes on with it: `qwf run retry {stored.parent_run_id}`",
        )


def _without_doubtful_lists(reopening: Reopening, document: Document) -> Reopening:
    """Keep elements only of lists that are certainly the same: what the host app would say now is not."""
    doubtful = {node_id for node_id in reopening.elements_kept if _asks_the_host(document, node_id)}
    if not doubtful:
        return reopening
    fresh = {
        node_id: replace(reopening.nodes[node_id], total=0, completed=0, skipped=0) for node_id in doubtful
    }
    return replace(
        reopening,
        nodes={**reopening.nodes, **fresh},
        elements_kept=tuple(one for one in reopening.elements_kept if one not in doubtful),
    )


def _asks_the_host(document: Document, node_id: str) -> bool:
    for_each = getattr(document.by_id[node_id], "for_each", None)
    asks_always = isinstance(current_config().ref_resolver, EveryRef)
    return any(asks_always or path.root == "host" for path in paths_in(for_each))


def _anew(reopening: Reopening, document: Document, from_nodes: Collection[str]) -> list[str]:
    """The lists that may be others now, and are gone through from the start."""
    graph, from_start = document.derived(graph_of), _from_start(reopening, document, from_nodes)
    return [node_id for node_id in from_start if graph.nodes[node_id].is_mapped]


def _from_start(reopening: Reopening, document: Document, from_nodes: Collection[str]) -> list[str]:
    """The nodes that may get something else than they did: nothing of what they were at is of use."""
    graph = document.derived(graph_of)
    return [
        node_id
        for node_id in reopening.again
        if node_id in from_nodes
        or set(graph.nodes[node_id].parents).intersection(reopening.again)
        or _asks_the_host(document, node_id)
    ]
