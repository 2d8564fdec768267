"""Decides what an event means for a run: what opens, what is stopped, whether it is over. No database.

An event touches its node and, once that node is over, the nodes below it, so that it costs the same however
large the run is. Only a stop looks at all nodes, as a run stops once, and so does a lost session.

A node decides when the last of its parents is over, never before, whatever its `when`: so an `all_done` node
below it cannot tidy up while something above is still at work. Between the steps of a pipeline the end of a
parent's first attempt is enough, or its beginning if it runs in the background (`Attempted`): what is tried
again later, or goes on beside the others, holds up no step.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from queue_workflows.states import NODE_OVER, JobStatus, NodeState, RunStatus
from queue_workflows.workflow.document.load import OnFailure
from queue_workflows.workflow.planning.graph import Graph, GraphNode
from queue_workflows.workflow.planning.parents import BAD, NOTHING_COMPLETED, passed, ready_or_not, told
from queue_workflows.workflow.planning.progress import (
    BEGUN,
    CANCELLED,
    STOPPED,
    Attempted,
    Begun,
    Broken,
    CancelNode,
    CancelRun,
    Counters,
    Ended,
    Event,
    Lost,
    NodeError,
    Opened,
    Reopened,
    RunCounters,
    SkippedNode,
    Stopping,
    is_given_up,
)
from queue_workflows.workflow.planning.rows import KnownRows, Look
from queue_workflows.workflow.planning.sessions import (
    has_to_begin_again,
    is_given_up_for_deaths,
    lost_session,
    set_back,
    without_jobs,
)


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


class _Plan(KnownRows):
    """What becomes of the rows."""

    def __init__(self, graph: Graph, run: RunCounters, look: Look) -> None:
        super().__init__(graph, run, look)
        self.ready: dict[str, None] = {}
        self.stop: dict[str, None] = {}
        # Over, or passed by the next step, but their children do not know it yet.
        self.untold: deque[str] = deque()

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
        self.fetch(wanted)

    def take(self, event: Event) -> None:
        match event:
            case Begun():
                self.run = replace(self.run, nodes_left=len(self.graph.nodes))
                self.ready.update(dict.fromkeys(self.graph.roots))
            case Opened():
                self._opened(event)
            case Ended():
                self._ended(event)
            case Attempted() | Lost():
                self._attempted(event)
            case SkippedNode() | Broken():
                self._closed_unopened(event)
            case CancelNode():
                self._cancel_node(event)
            case CancelRun():
                self._cancel_run(event)
            case Reopened(node_ids):
                for node_id in node_ids:
                    self._decide(self.row(node_id))
        self._tell()

    def _opened(self, event: Opened) -> None:
        row = self.row(event.node_id)
        if row.state is not NodeState.WAITING or row.parents_left > 0:
            return
        self.ready.pop(row.node_id, None)
        if lost_session(row):
            row = without_jobs(row)
        total = event.jobs + row.completed + row.skipped
        row = replace(row, state=NodeState.ACTIVE, total=total, left=event.jobs, error=None)
        self.put(row)
        self.run = replace(self.run, active=self.run.active + 1)
        if row.left == 0:
            self._end(row, self._outcome(row))

    def _ended(self, event: Ended) -> None:
        """What does not fit the counters is dropped: acting twice on one end must change nothing."""
        row = self.row(event.node_id)
        count = min(event.count, row.left)
        if row.state is not NodeState.ACTIVE or count < 1:
            return
        first_failure = event.status is JobStatus.FAILED and row.failed == 0
        column = event.status.value
        waits_anew = lost_session(row) and not is_given_up(self.graph, self.run, row.node_id)
        is_its_own = is_given_up_for_deaths(event.error) or has_to_begin_again(row)
        error = event.error if is_its_own else row.error or event.error
        row = replace(row, left=row.left - count, error=error)
        row = replace(row, **{column: getattr(row, column) + count})
        self.put(row)
        if row.left == 0 and waits_anew and lost_session(row):
            self.run = replace(self.run, active=self.run.active - 1)
            self._wait(without_jobs(row))
        elif row.left == 0 and (waits_anew or row.parents_left > 0):
            self.run = replace(self.run, active=self.run.active - 1)
            self._wait(replace(row, state=NodeState.WAITING, attempted=0))
        elif row.left == 0:
            self._end(row, self._outcome(row))
        elif first_failure and self.graph.nodes[row.node_id].on_failure is OnFailure.FAIL_FAST:
            self.stop[row.node_id] = None
            self._fail_fast(row.node_id)

    def _attempted(self, event: Attempted | Lost) -> None:
        """Let the next step pass, once; the node itself goes on, and ends as if nothing had been.

        What had begun is lost instead, if it is to be tried again; what is in the background and had not is
        waited for until it begins.
        """
        row, node = self.row(event.node_id), self.graph.nodes[event.node_id]
        if row.state is not NodeState.ACTIVE or node.is_mapped or lost_session(row):
            return
        if isinstance(event, Attempted) and event.has_begun:
            self.put(replace(row, attempted=BEGUN, error=None))
        elif row.attempted == BEGUN:
            self._lost(row)
            return
        elif row.attempted or isinstance(event, Lost) or node.is_background:
            return
        else:
            self.put(replace(row, attempted=1))
        if not row.attempted and not row.parents_left:
            self.untold.append(row.node_id)

    def _lost(self, session: Counters) -> None:
        """Let all that works with an active session wait until it has begun again; see `sessions`."""
        if self.run.stopping is not None:
            return
        self.fetch(self.graph.nodes)
        rows = list(set_back(self.graph, self.row, session.node_id))
        for row in rows:
            was = self.row(row.node_id).state
            self.run = replace(
                self.run,
                nodes_left=self.run.nodes_left + (was in NODE_OVER),
                failed=self.run.failed - (was is NodeState.FAILED),
            )
            if row.state is NodeState.ACTIVE and row.node_id != session.node_id:
                self.stop[row.node_id] = None
            self.put(row)
        for node_id in self.graph.nodes if rows else ():
            row = self.row(node_id)
            if row.state not in NODE_OVER and not (row.state is NodeState.ACTIVE and lost_session(row)):
                self._recount(node_id)

    def _wait(self, row: Counters) -> None:
        """What was active waits behind the members of a lost session, or as one of them."""
        self.stop.pop(row.node_id, None)
        self.put(row)
        self.fetch(self.graph.nodes[row.node_id].parents)
        self._recount(row.node_id)

    def _has_ended(self, row: Counters) -> bool:
        """Whether a waiting node has come to something already, before a session was lost."""
        return row.total > 0 and row.left == 0 and not self.graph.nodes[row.node_id].is_mapped

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
        row = self.row(event.node_id)
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
        row = self.row(event.node_id)
        if row.state in NODE_OVER:
            return
        row = replace(row, error=_cancelled(event.reason or "the node was cancelled"))
        if row.state is NodeState.ACTIVE:
            self.put(row)
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
        self.put(replace(row, state=state, error=row.error if state in BAD else None))
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
            self.fetch_ahead([child for node_id in ended for child in self.graph.nodes[node_id].children])
            for node_id in ended:
                parent, node = self.row(node_id), self.graph.nodes[node_id]
                is_over = parent.state in NODE_OVER
                is_attempted = parent.attempted > 0 and parent.parents_left == 0
                for child in node.children:
                    row = self.row(child)
                    # A child passing at the first attempt is not told the end; others are told only the end.
                    passes = is_attempted and self.graph.nodes[child].is_barrier_below(node)
                    if passes is is_over:
                        continue
                    if row.state is NodeState.WAITING:
                        row = passed(row) if passes else told(row, node_id, parent.state)
                        self.put(row)
                        self._decide(row)
                    elif row.state is NodeState.ACTIVE and row.parents_left > 0:
                        self.put(passed(row))
                        if row.parents_left == 1 and row.attempted:
                            self.untold.append(child)
            self.cascaded += len(ended)

    def _decide(self, row: Counters) -> None:
        if row.state is not NodeState.WAITING or row.parents_left > 0:
            return
        if self._has_ended(row) and self._is_kept(row):
            self._end(row, self._outcome(row))
            return
        node = self.graph.nodes[row.node_id]
        if node.begins_tree and (bad := self._bad_parent(node)):
            self._end(replace(row, error=told(row, bad.node_id, bad.state).error), NodeState.CANCELLED)
            return
        if ready_or_not(node, row):
            self.ready[row.node_id] = None
            return
        self._end(replace(row, error=row.error or NOTHING_COMPLETED), NodeState.CANCELLED)

    def _bad_parent(self, node: GraphNode) -> Counters | None:
        """A parent that came to nothing, also one that had begun and let the node pass."""
        self.fetch(node.parents)
        return next((row for parent in node.parents if (row := self.row(parent)).state in BAD), None)

    def _is_kept(self, row: Counters) -> bool:
        """Whether a node keeps what it has come to: also if its session is over without a new beginning."""
        node_id = lost_session(row)
        if node_id is None:
            return True
        self.fetch([node_id])
        session = self.row(node_id)
        return session.state in BAD or (session.state in NODE_OVER and session.attempted != BEGUN)

    def _fail_fast(self, node_id: str) -> None:
        if self.run.stopping is None:
            message = f"the run stopped: {node_id} failed"
            self._stop("fail_fast", {"kind": STOPPED, "message": message, "node": node_id})

    def _stop(self, why: Stopping, error: NodeError) -> None:
        """Give up all that waits and stop all that is active, but for `all_done` nodes in a fail_fast.

        Nodes without a row get none: from here on that alone says cancelled.
        """
        self.fetch(self.graph.nodes)
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
                if row is not None and self._has_ended(row):
                    self._end(row, self._outcome(row))
                elif row is not None:
                    self.put(replace(row, state=NodeState.CANCELLED, error=error))
        self.run = replace(self.run, nodes_left=len(still_open))
        # Everybody is counted anew, so nothing is left to tell.
        self.untold.clear()
        for node_id in still_open:
            if self.row(node_id).state is NodeState.WAITING:
                self._recount(node_id)

    def _recount(self, node_id: str) -> None:
        """Count the parents anew of a node that is not over; their rows are known."""
        node, before = self.graph.nodes[node_id], self.row(node_id)
        row = replace(before, parents_completed=0, parents_skipped=0, parents_bad=0, error=None)
        row = replace(row, parents_left=len(node.parents))
        for parent in node.parents:
            above = self.row(parent)
            if above.state in NODE_OVER:
                row = told(row, parent, above.state)
            elif (
                above.attempted and not above.parents_left and node.is_barrier_below(self.graph.nodes[parent])
            ):
                row = passed(row)
        if before.state is NodeState.ACTIVE or lost_session(before) or self._has_ended(before):
            row = replace(row, error=before.error)
        if row != before:
            self.put(row)
        self.ready.pop(node_id, None)
        self._decide(row)


def _cancelled(reason: str) -> NodeError:
    return {"kind": CANCELLED, "message": reason}
