"""Looking at one run: its document, its counters and what workers have of it now, put together."""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from queue_workflows.engine.watch.run_view import Activity, Elements, NodeOverview, RunOverview
from queue_workflows.errors import DocumentError, UnknownRun
from queue_workflows.repositories.runs.overview import (
    BesideNodes,
    NodeFacts,
    OverviewRepository,
    RunFacts,
    RunningJob,
)
from queue_workflows.repositories.sql.connection import Handle
from queue_workflows.states import RUN_TERMINAL, JobStatus, NodeState
from queue_workflows.workflow.document.load import Document, compiled, find_compiled
from queue_workflows.workflow.planning.graph import Graph, graph_of
from queue_workflows.workflow.planning.progress import RunCounters, untouched

# Of a larger document only what is active or failed is read, and the rest is counted.
MOST_NODES: Final = 2000
MOST_TELLING: Final = 50
_TELLING: Final = [NodeState.ACTIVE.value, NodeState.FAILED.value]


class RunReader:
    """Looks at one run again and again; its document is read once, unless a retry gives it another."""

    def __init__(
        self, run_id: uuid.UUID, *, most_nodes: int = MOST_NODES, brief_above: int | None = None
    ) -> None:
        """Of a run with more than `brief_above` nodes those that are over are told without their jobs."""
        self._run_id = run_id
        self._most_nodes = most_nodes
        self._brief_above = most_nodes if brief_above is None else brief_above
        self._size: int | None = None
        self._document: Document | None = None
        self._last: tuple[RunFacts, BesideNodes] | None = None

    def look(self, conn: Handle) -> RunOverview:
        """The run as it is now; at one moment if the connection is in a REPEATABLE READ transaction."""
        found = OverviewRepository(conn)
        last, self._last = self._last, found.run_and_beside(self._run_id)
        if self._last is None:
            raise UnknownRun(self._run_id)
        run, beside = self._last
        if last is not None and last[0].spec_hash != run.spec_hash:
            # Between two looks it failed, and was retried with another document.
            self._size = self._document = None
        if self._size is None:
            # A document that is known here already need not be unpacked there to be counted.
            known = find_compiled(run.spec_hash) if run.mode == "node" else None
            self._size = found.size(self._run_id) if known is None else len(known.nodes)
        document = self._document_of(found, run, self._most_nodes)
        facts = self._facts(found, run, self._size)
        nodes = _nodes(run, document, facts, _by_node(beside.running))
        counts = _counts(run, self._size) if self._size > self._most_nodes else {}
        return _overview(run, nodes, counts, beside)

    def look_closer(
        self, conn: Handle, seen: RunOverview, *, most_nodes: int, brief_above: int
    ) -> RunOverview:
        """As it was `seen` last, with the nodes that were too many for that, if they are not for this."""
        if self._last is None or self._size is None or not seen.counts or self._size > most_nodes:
            return seen
        run, beside = self._last
        found = OverviewRepository(conn)
        facts = (
            found.counted_nodes(run.id, most=most_nodes)
            if run.mode != "node"
            else found.nodes(run.id, most=most_nodes, brief=self._size > brief_above)
        )
        document = self._document_of(found, run, most_nodes)
        nodes = _nodes(run, document, facts, _by_node(beside.running))
        return replace(seen, nodes=tuple(nodes), counts={})

    def _facts(self, found: OverviewRepository, run: RunFacts, size: int) -> Sequence[NodeFacts]:
        if run.mode != "node":
            return found.counted_nodes(run.id, most=self._most_nodes)
        if size > self._most_nodes:
            return found.nodes(run.id, states=_TELLING, most=MOST_TELLING)
        return found.nodes(run.id, most=self._most_nodes, brief=size > self._brief_above)

    def _document_of(self, found: OverviewRepository, run: RunFacts, most_nodes: int) -> Document | None:
        if run.mode != "node" or self._size is None or self._size > most_nodes:
            return None
        if self._document is None:
            self._document = _document(found, run)
        return self._document


def _by_node(running: Sequence[RunningJob]) -> Mapping[str, Sequence[RunningJob]]:
    jobs: dict[str, list[RunningJob]] = defaultdict(list)
    for job in running:
        jobs[job.node_id].append(job)
    return jobs


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
    beside: BesideNodes,
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
        events=beside.events,
        poisoned=tuple(
            f"event {one.id} ({one.kind}{f' of {one.node_id}' if one.node_id else ''})"
            f" after {one.tries} tries: {one.error}"
            for one in beside.poisoned
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
    if document is None:
        return [_touched(one, _UNDECLARED, running.get(one.id, ())) for one in facts]
    touched = {one.id: one for one in facts}
    nodes = []
    for declared in document.derived(_declared):
        one = touched.get(declared.id)
        if one is not None:
            nodes.append(_touched(one, declared, running.get(declared.id, ())))
        elif run.status in RUN_TERMINAL:
            nodes.append(replace(declared, state=NodeState.CANCELLED.value))
        elif run.stopping is None:
            nodes.append(declared)
        else:
            nodes.append(_given_up_or_waiting(declared, run, document.derived(graph_of)))
    return nodes


def _declared(document: Document) -> tuple[NodeOverview, ...]:
    """The nodes as they are before anything happens to them."""
    return tuple(
        NodeOverview(
            node.id,
            node.type,
            document.parents[node.id],
            NodeState.WAITING.value,
            getattr(node, "module", None),
            getattr(node, "queue", None),
        )
        for node in document.nodes
    )


# A node of which only jobs are known.
_UNDECLARED: Final = NodeOverview("", "")


def _given_up_or_waiting(declared: NodeOverview, run: RunFacts, graph: Graph) -> NodeOverview:
    stopping: Any = run.stopping
    counters = RunCounters(run.nodes_left, run.nodes_active, run.nodes_failed, stopping)
    return replace(declared, state=untouched(graph, counters, declared.id).state.value)


def _touched(one: NodeFacts, declared: NodeOverview, running: Sequence[RunningJob]) -> NodeOverview:
    if one.kind is None and not one.mapped and not running:
        return _without_job(one, declared)
    due = one.expires_at if one.status == JobStatus.AWAITING_INPUT else one.run_at
    is_due = one.status in (JobStatus.AWAITING_INPUT, JobStatus.SCHEDULED)
    hold = one.hold_reason if one.hold_key is None else f"{one.hold_reason} {one.hold_key}"
    return NodeOverview(
        id=one.id,
        type=declared.type or one.kind or "task",
        parents=declared.parents,
        state=_state(one, running),
        module=declared.module or one.module,
        queue=declared.queue or one.queue,
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


def _without_job(one: NodeFacts, declared: NodeOverview) -> NodeOverview:
    """As thousands of them are in a large run, of which no job is read."""
    if one.started_at is None and one.finished_at is None and one.error is None and declared.type:
        return declared if one.state == declared.state else replace(declared, state=one.state)
    return NodeOverview(
        one.id,
        declared.type or "task",
        declared.parents,
        one.state,
        declared.module,
        declared.queue,
        started_at=one.started_at,
        finished_at=one.finished_at,
        error=_said(one.error),
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
