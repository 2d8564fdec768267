"""Decides what an event means for a run: what opens, what is stopped, whether it is over. No database.

An event touches its node and, once that node is over, the nodes below it, so that it costs the same however
large the run is. Only a stop looks at all nodes, and a run stops once.

A node decides when the last of its parents is over, never before, whatever its `when`: so an `all_done` node
below it cannot tidy up while something above is still at work. Between the steps of a pipeline the end of a
parent's first attempt is enough, or its beginning if it runs in the background (`Attempted`): what is tried
again later, or goes on beside the others, holds up no step.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from queue_workflows.states import NODE_OVER, JobStatus, NodeState, RunStatus
from queue_workflows.workflow.document.load import OnFailure, When
from queue_workflows.workflow.planning.graph import Graph, GraphNode
from queue_workflows.workflow.planning.progress import (
    CANCELLED,
    STOPPED,
    UPSTREAM,
    Attempted,
    Begun,
    Broken,
    CancelNode,
    CancelRun,
    Counters,
    Ended,
    Event,
    NodeError,
    Opened,
    Reopened,
    RunCounters,
    SkippedNode,
    Stopping,
    is_given_up,
    untouched,
)

Look = Callable[[Collection[str]], Mapping[str, Counters]]

_BAD = frozenset({NodeState.FAILED, NodeState.CANCELLED})
_ENDS: Mapping[JobStatus, str] = {
    JobStatus.COMPLETED: "completed",
    JobStatus.SKIPPED: "skipped",
    JobStatus.FAILED: "failed",
    JobStatus.CANCELLED: "cancelled",
}


@dataclass(frozen=True, slots=True)
class Step:
    """What follows from some events.

    `nodes` are the rows to write. `ready` are to be opened, all of them in the next call: each is answered by
    `Opened`, `SkippedNode` or `Broken`. Only what that call leaves active gets jobs, because one answer may
    cancel its neighbour. `stop` are active nodes to have their jobs cancelled. `over` is how the run ended.
    """

    nodes: Mapping[str, Counters]
    ready: tuple[str, ...]
    stop: tuple[str, ...]
    run: RunCounters
    over: RunStatus | None


def advance(
    graph: Graph, run: RunCounters, events: Iterable[Event], look: Look, earlier: Step | None = None
) -> Step:
    """The step that these events make; `look` gives the rows that exist.

    `earlier` is a step that is not written yet: this one goes on from it, and holds its rows and stops too.
    """
    taken = list(events)
    plan = _Plan(graph, run if earlier is None else earlier.run, look)
    if earlier is not None:
        plan.rows.update(earlier.nodes)
        plan.changed.update(earlier.nodes)
        plan.stop.update(dict.fromkeys(earlier.stop))
    plan.foresee(taken)
    for event in taken:
        plan.take(event)
    return Step(plan.changed, tuple(plan.ready), tuple(plan.stop), plan.run, plan.over())


def ready_or_not(node: GraphNode, row: Counters) -> bool:
    """Whether a node runs, now that all its parents are over."""
    if node.when is When.ALL_DONE or not node.parents:
        return True
    return row.parents_bad == 0 if node.when is When.ALL_SUCCESS else row.parents_completed > 0


def told(row: Counters, parent_id: str, state: NodeState) -> Counters:
    """A waiting node's row once one more of its parents is over; the first bad one is its reason."""
    bad = state in _BAD
    reason = row.error
    if bad and reason is None:
        reason = {"kind": UPSTREAM, "message": f"{parent_id} {_became(state)}", "node": parent_id}
    return replace(
        row,
        parents_left=row.parents_left - 1,
        parents_completed=row.parents_completed + (state is NodeState.COMPLETED),
        parents_skipped=row.parents_skipped + (state is NodeState.SKIPPED),
        parents_bad=row.parents_bad + bad,
        error=reason,
    )


def passed(row: Counters) -> Counters:
    """A waiting node's row once it waits for one more of its parents no longer, however that will end."""
    return replace(row, parents_left=row.parents_left - 1)


def _became(state: NodeState) -> str:
    return "was cancelled" if state is NodeState.CANCELLED else str(state)


class _Plan:
    """The rows that are known, and what became of them; None is known to have no row."""

    def __init__(self, graph: Graph, run: RunCounters, look: Look) -> None:
        self.graph, self.run, self.look = graph, run, look
        self.rows: dict[str, Counters | None] = {}
        self.changed: dict[str, Counters] = {}
        self.ready: dict[str, None] = {}
        self.stop: dict[str, None] = {}
        # Over, or passed by the next step, but their children do not know it yet.
        self.untold: deque[str] = deque()
        self.cascaded = 0

    def over(self) -> RunStatus | None:
        if self.run.nodes_left > 0:
            return None
        if self.run.failed > 0:
            return RunStatus.FAILED
        return RunStatus.CANCELLED if self.run.stopping == "cancel" else RunStatus.COMPLETED

    def foresee(self, events: Iterable[Event]) -> None:
        """One look for what the events surely need; a `for_each` node's children only matter at its end."""
        wanted: dict[str, None] = {}
        for event in events:
            if isinstance(event, Begun | CancelRun):
                continue
            for node_id in event.node_ids if isinstance(event, Reopened) else (event.node_id,):
                if node_id not in self.graph.nodes:
                    raise ValueError(f"the run's document has no node {node_id!r}")
                wanted[node_id] = None
                node = self.graph.nodes[node_id]
                if not isinstance(event, Opened | Reopened) and not node.is_mapped:
                    wanted.update(dict.fromkeys(node.children))
        self._fetch(wanted)

    def take(self, event: Event) -> None:
        match event:
            case Begun():
                self.run = replace(self.run, nodes_left=len(self.graph.nodes))
                self.ready.update(dict.fromkeys(self.graph.roots))
            case Opened():
                self._opened(event)
            case Ended():
                self._ended(event)
            case Attempted():
                self._attempted(event)
            case SkippedNode() | Broken():
                self._closed_unopened(event)
            case CancelNode():
                self._cancel_node(event)
            case CancelRun():
                self._cancel_run(event)
            case Reopened(node_ids):
                for node_id in node_ids:
                    self._decide(self._row(node_id))
        self._tell()

    def _opened(self, event: Opened) -> None:
        row = self._row(event.node_id)
        if row.state is not NodeState.WAITING or row.parents_left > 0:
            return
        self.ready.pop(row.node_id, None)
        total = event.jobs + row.completed + row.skipped
        row = replace(row, state=NodeState.ACTIVE, total=total, left=event.jobs, error=None)
        self._put(row)
        self.run = replace(self.run, active=self.run.active + 1)
        if row.left == 0:
            self._end(row, self._outcome(row))

    def _ended(self, event: Ended) -> None:
        """What does not fit the counters is dropped: acting twice on one end must change nothing."""
        row = self._row(event.node_id)
        count = min(event.count, row.left)
        if row.state is not NodeState.ACTIVE or count < 1:
            return
        first_failure = event.status is JobStatus.FAILED and row.failed == 0
        column = _ENDS[event.status]
        row = replace(row, left=row.left - count, error=row.error or event.error)
        row = replace(row, **{column: getattr(row, column) + count})
        self._put(row)
        if row.left == 0:
            self._end(row, self._outcome(row))
        elif first_failure and self.graph.nodes[row.node_id].on_failure is OnFailure.FAIL_FAST:
            self.stop[row.node_id] = None
            self._fail_fast(row.node_id)

    def _attempted(self, event: Attempted) -> None:
        """Let the next step pass, once; the node itself goes on, and ends as if nothing had been."""
        row = self._row(event.node_id)
        if (
            row.state is NodeState.ACTIVE
            and not row.attempted
            and not self.graph.nodes[row.node_id].is_mapped
        ):
            self._put(replace(row, attempted=1))
            self.untold.append(row.node_id)

    def _outcome(self, row: Counters) -> NodeState:
        """A list of results is a result, even if each element was skipped."""
        if row.failed:
            return NodeState.FAILED
        if row.cancelled:
            return NodeState.CANCELLED
        if row.skipped and not self.graph.nodes[row.node_id].is_mapped:
            return NodeState.SKIPPED
        return NodeState.COMPLETED

    def _closed_unopened(self, event: SkippedNode | Broken) -> None:
        row = self._row(event.node_id)
        if row.state is not NodeState.WAITING or row.parents_left > 0:
            return
        if isinstance(event, Broken):
            self._end(replace(row, error=event.error), NodeState.FAILED)
        else:
            self._end(row, NodeState.SKIPPED)

    def _cancel_run(self, event: CancelRun) -> None:
        if self.run.nodes_left > 0 and self.run.stopping != "cancel":
            self._stop("cancel", _cancelled(event.reason or "the run was cancelled"))

    def _cancel_node(self, event: CancelNode) -> None:
        row = self._row(event.node_id)
        if row.state in NODE_OVER:
            return
        row = replace(row, error=_cancelled(event.reason or "the node was cancelled"))
        if row.state is NodeState.ACTIVE:
            self._put(row)
            self.stop[row.node_id] = None
        else:
            self._end(row, NodeState.CANCELLED)

    def _end(self, row: Counters, state: NodeState) -> None:
        """The one place where a node becomes over by itself; a stop ends the rest of them."""
        node_id, failed = row.node_id, state is NodeState.FAILED
        self.run = replace(
            self.run,
            nodes_left=self.run.nodes_left - 1,
            active=self.run.active - (row.state is NodeState.ACTIVE),
            failed=self.run.failed + failed,
        )
        # A node that was cancelled too late ended well all the same.
        self._put(replace(row, state=state, error=row.error if state in _BAD else None))
        self.ready.pop(node_id, None)
        self.stop.pop(node_id, None)
        self.untold.append(node_id)
        if failed and self.graph.nodes[node_id].on_failure is OnFailure.FAIL_FAST:
            self._fail_fast(node_id)

    def _tell(self) -> None:
        """Let the children of what is over know it, and theirs if that ends them."""
        while self.untold:
            ended = list(self.untold)
            self.untold.clear()
            self._fetch_ahead([child for node_id in ended for child in self.graph.nodes[node_id].children])
            for node_id in ended:
                parent, node = self._row(node_id), self.graph.nodes[node_id]
                is_over, is_attempted = parent.state in NODE_OVER, parent.attempted > 0
                for child in node.children:
                    row = self._row(child)
                    # A child passing at the first attempt is not told the end; others are told only the end.
                    passes = is_attempted and self.graph.nodes[child].is_barrier_below(node)
                    if row.state is NodeState.WAITING and passes is not is_over:
                        row = passed(row) if passes else told(row, node_id, parent.state)
                        self._put(row)
                        self._decide(row)
            self.cascaded += len(ended)

    def _decide(self, row: Counters) -> None:
        if row.state is not NodeState.WAITING or row.parents_left > 0:
            return
        if ready_or_not(self.graph.nodes[row.node_id], row):
            self.ready[row.node_id] = None
            return
        nothing = {"kind": UPSTREAM, "message": "nothing that it depends on completed"}
        self._end(replace(row, error=row.error or nothing), NodeState.CANCELLED)

    def _fail_fast(self, node_id: str) -> None:
        if self.run.stopping is None:
            message = f"the run stopped: {node_id} failed"
            self._stop("fail_fast", {"kind": STOPPED, "message": message, "node": node_id})

    def _stop(self, why: Stopping, error: NodeError) -> None:
        """Give up all that waits and stop all that is active, but for `all_done` nodes in a fail_fast.

        Nodes without a row get none: from here on that alone says cancelled.
        """
        self._fetch(self.graph.nodes)
        self.run = replace(self.run, stopping=why)
        still_open: set[str] = set()
        for node_id in self.graph.nodes:
            row, given_up = self.rows[node_id], is_given_up(self.graph, self.run, node_id)
            if row is not None and row.state is NodeState.ACTIVE:
                still_open.add(node_id)
                if given_up:
                    self.stop[node_id] = None
            elif row is None or row.state is NodeState.WAITING:
                if not given_up:
                    still_open.add(node_id)
                    continue
                self.ready.pop(node_id, None)
                if row is not None:
                    self._put(replace(row, state=NodeState.CANCELLED, error=error))
        self.run = replace(self.run, nodes_left=len(still_open))
        # Everybody is counted anew, so nothing is left to tell.
        self.untold.clear()
        for node_id in still_open:
            if self._row(node_id).state is NodeState.WAITING:
                self._recount(node_id, still_open)

    def _recount(self, node_id: str, still_open: Collection[str]) -> None:
        parents = self.graph.nodes[node_id].parents
        before = self._row(node_id)
        uncounted = replace(before, parents_completed=0, parents_skipped=0, parents_bad=0, error=None)
        row = replace(uncounted, parents_left=len(parents))
        for parent in parents:
            above = self._row(parent)
            if parent not in still_open:
                row = told(row, parent, above.state)
            elif above.attempted and self.graph.nodes[node_id].is_barrier_below(self.graph.nodes[parent]):
                row = passed(row)
        if row != before:
            self._put(row)
        self._decide(row)

    def _row(self, node_id: str) -> Counters:
        return self.rows[node_id] or untouched(self.graph, self.run, node_id)

    def _put(self, row: Counters) -> None:
        self.rows[row.node_id] = self.changed[row.node_id] = row

    def _fetch(self, node_ids: Iterable[str]) -> None:
        missing = [node_id for node_id in node_ids if node_id not in self.rows]
        if missing:
            found = self.look(missing)
            self.rows.update((node_id, found.get(node_id)) for node_id in missing)

    def _fetch_ahead(self, node_ids: Iterable[str]) -> None:
        """Fetch these, and below them as many nodes as the cascade has ended so far.

        So a long chain that is cancelled node by node takes few looks, and a look no more than the cascade.
        """
        wanted = {node_id: None for node_id in node_ids if node_id not in self.rows}
        room = self.cascaded
        for node_id in list(wanted) if room else ():
            below = deque(self.graph.nodes[node_id].children)
            while below and room > 0:
                child = below.popleft()
                if child not in self.rows and child not in wanted:
                    wanted[child] = None
                    room -= 1
                    below.extend(self.graph.nodes[child].children)
        self._fetch(wanted)


def _cancelled(reason: str) -> NodeError:
    return {"kind": CANCELLED, "message": reason}
