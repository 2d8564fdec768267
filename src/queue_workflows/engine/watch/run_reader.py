"""Looking at one run: its document, its counters and what workers have of it now, put together."""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, Final

from queue_workflows.engine.watch.run_view import Activity, Elements, NodeOverview, RunOverview
from queue_workflows.errors import DocumentError, UnknownRun
from queue_workflows.repositories.runs.overview import (
    NodeFacts,
    OverviewRepository,
    PoisonedEvent,
    RunFacts,
    RunningJob,
)
from queue_workflows.repositories.sql.connection import Handle
from queue_workflows.states import RUN_TERMINAL, JobStatus, NodeState
from queue_workflows.workflow.document.load import BaseNode, Document, compiled, find_compiled
from queue_workflows.workflow.planning.graph import graph_of
from queue_workflows.workflow.planning.progress import RunCounters, untouched

# Of a larger document only what is active or failed is read, and the rest is counted.
MOST_NODES: Final = 2000
MOST_TELLING: Final = 50
_TELLING: Final = [NodeState.ACTIVE.value, NodeState.FAILED.value]


class RunReader:
    """Looks at one run again and again; what of it never changes is read once."""

    def __init__(
        self, run_id: uuid.UUID, *, most_nodes: int = MOST_NODES, brief_above: int | None = None
    ) -> None:
        """Of a run with more than `brief_above` nodes those that are over are told without their jobs."""
        self._run_id = run_id
        self._most_nodes = most_nodes
        self._brief_above = most_nodes if brief_above is None else brief_above
        self._size: int | None = None
        self._document: Document | None = None

    def look(self, conn: Handle) -> RunOverview:
        """The run as it is now; at one moment if the connection is in a REPEATABLE READ transaction."""
        found = OverviewRepository(conn)
        run = found.run(self._run_id)
        if run is None:
            raise UnknownRun(self._run_id)
        if self._size is None:
            # A document that is known here already need not be unpacked there to be counted.
            known = find_compiled(run.spec_hash) if run.mode == "node" else None
            self._size = found.size(self._run_id) if known is None else len(known.nodes)
        nodes = _nodes(run, self._document_of(found, run, self._size), *self._facts(found, run, self._size))
        counts = _counts(run, self._size) if self._size > self._most_nodes else {}
        return _overview(run, nodes, counts, found.events(self._run_id), found.poisoned(self._run_id))

    def _facts(
        self, found: OverviewRepository, run: RunFacts, size: int
    ) -> tuple[Sequence[NodeFacts], Mapping[str, Sequence[RunningJob]]]:
        running: dict[str, list[RunningJob]] = defaultdict(list)
        for job in found.running(run.id):
            running[job.node_id].append(job)
        if run.mode != "node":
            return found.counted_nodes(run.id, most=self._most_nodes), running
        if size > self._most_nodes:
            return found.nodes(run.id, states=_TELLING, most=MOST_TELLING), running
        return found.nodes(run.id, most=self._most_nodes, brief=size > self._brief_above), running

    def _document_of(self, found: OverviewRepository, run: RunFacts, size: int) -> Document | None:
        if self._document is None and run.mode == "node" and size <= self._most_nodes:
            self._document = _document(found, run)
        return self._document


def _document(found: OverviewRepository, run: RunFacts) -> Document | None:
    """The document of a run; None for what a host app wrote there and we cannot read."""
    try:
        return find_compiled(run.spec_hash) or compiled(found.spec(run.id), run.spec_hash)
    except DocumentError:
        return None


def _overview(
    run: RunFacts,
    nodes: Sequence[NodeOverview],
    counts: Mapping[str, int],
    events: int,
    poisoned: Sequence[PoisonedEvent],
) -> RunOverview:
    return RunOverview(
        id=run.id,
        workflow=run.workflow,
        status=run.status,
        at=run.at,
        created_at=run.created_at,
        started_at=run.started_at,
        finished_at=run.finished_at,
        priority=run.priority,
        labels=run.labels,
        cancel_requested_at=run.cancel_requested_at,
        cancel_reason=run.cancel_reason,
        error=_said(run.error),
        outputs=run.outputs,
        nodes=tuple(nodes),
        counts=counts,
        hold=run.hold_reason,
        parent_run=run.parent_run_id,
        events=events,
        poisoned=tuple(
            f"event {one.id} ({one.kind}{f' of {one.node_id}' if one.node_id else ''})"
            f" after {one.tries} tries: {one.error}"
            for one in poisoned
        ),
    )


def _counts(run: RunFacts, size: int) -> dict[str, int]:
    """Of a large run that has begun, from its own counters."""
    if run.started_at is None or run.status == "queued":
        return {"waiting": size}
    left = 0 if run.status in RUN_TERMINAL else run.nodes_left
    active = 0 if run.status in RUN_TERMINAL else run.nodes_active
    return {
        "over": size - left - run.nodes_failed,
        "failed": run.nodes_failed,
        "active": active,
        "waiting": left - active,
    }


def _nodes(
    run: RunFacts,
    document: Document | None,
    facts: Sequence[NodeFacts],
    running: Mapping[str, Sequence[RunningJob]],
) -> list[NodeOverview]:
    """In the order of the document; of a run without one, in that of its jobs."""
    touched = {one.id: one for one in facts}
    if document is None:
        return [_touched(one, None, (), running.get(one.id, ())) for one in facts]
    graph = document.derived(graph_of)
    stopping: Any = run.stopping
    counters = RunCounters(run.nodes_left, run.nodes_active, run.nodes_failed, stopping)
    nodes = []
    for node in document.nodes:
        parents = document.parents[node.id]
        one = touched.get(node.id)
        if one is not None:
            nodes.append(_touched(one, node, parents, running.get(node.id, ())))
            continue
        given_up = run.status in RUN_TERMINAL
        state = NodeState.CANCELLED if given_up else untouched(graph, counters, node.id).state
        module, queue = getattr(node, "module", None), getattr(node, "queue", None)
        nodes.append(NodeOverview(node.id, node.type, parents, state.value, module, queue))
    return nodes


def _touched(
    one: NodeFacts, node: BaseNode | None, parents: tuple[str, ...], running: Sequence[RunningJob]
) -> NodeOverview:
    due = one.expires_at if one.status == JobStatus.AWAITING_INPUT else one.run_at
    is_due = one.status in (JobStatus.AWAITING_INPUT, JobStatus.SCHEDULED)
    hold = one.hold_reason if one.hold_key is None else f"{one.hold_reason} {one.hold_key}"
    return NodeOverview(
        id=one.id,
        type=getattr(node, "type", None) or one.kind or "task",
        parents=parents,
        state=_state(one, running),
        module=getattr(node, "module", None) or one.module,
        queue=getattr(node, "queue", None) or one.queue,
        attempt=0 if one.mapped else one.attempt or 0,
        started_at=one.started_at,
        finished_at=one.finished_at,
        elements=_elements(one, len(running)) if one.mapped else None,
        activities=tuple(_activity(job) for job in running),
        hold=None if one.mapped else hold,
        due_at=due if is_due and not one.mapped else None,
        worker=None if one.mapped else one.claimed_by,
        error=_said(one.error) or (None if one.mapped else _said(one.job_error)),
        child_run=one.child_run,
    )


def _state(one: NodeFacts, running: Sequence[RunningJob]) -> str:
    """Of an active node that of its job; what a dispatcher has yet to hear of counts as still running."""
    if one.state != NodeState.ACTIVE:
        return one.state
    if running:
        return JobStatus.RUNNING
    return one.state if one.mapped or one.status is None else one.status


def _elements(one: NodeFacts, running: int) -> Elements:
    return Elements(one.total, one.completed, one.skipped, one.failed, one.cancelled, running)


def _activity(job: RunningJob) -> Activity:
    fraction, message = job.progress.get("fraction"), job.progress.get("message")
    return Activity(
        job.element,
        job.worker,
        job.attempt,
        job.started_at,
        float(fraction) if isinstance(fraction, int | float) else None,
        str(message) if message is not None else None,
    )


def _said(error: Mapping[str, Any] | None) -> str | None:
    """What an error says, as far as it says anything."""
    if error is None:
        return None
    kind = f"{error['type']}: " if error.get("type") else ""
    return kind + str(error.get("message") or error.get("kind") or "no reason given")
