"""A run that lives in memory: the planner's rows, kept as the dispatcher keeps them in the database."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from itertools import pairwise

from queue_workflows.states import JOB_TERMINAL, NODE_OVER, JobStatus, NodeState, RunStatus
from queue_workflows.workflow.planning.graph import Graph, Shape, graph_from
from queue_workflows.workflow.planning.plan import Step, advance
from queue_workflows.workflow.planning.progress import (
    Begun,
    Counters,
    Ended,
    Event,
    RunCounters,
    untouched,
)

COMPLETED, SKIPPED, FAILED, CANCELLED = (
    JobStatus.COMPLETED,
    JobStatus.SKIPPED,
    JobStatus.FAILED,
    JobStatus.CANCELLED,
)
assert {COMPLETED, SKIPPED, FAILED, CANCELLED} == JOB_TERMINAL


class PlannedRun:
    """Feeds events to the planner and keeps what it answers; counts what it looks at."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.rows: dict[str, Counters] = {}
        self.run = RunCounters()
        self.over: RunStatus | None = None
        # How many rows each look asked for.
        self.looks: list[int] = []

    def look(self, node_ids: Collection[str]) -> Mapping[str, Counters]:
        self.looks.append(len(node_ids))
        assert len(set(node_ids)) == len(node_ids), "asked twice for a row in one look"
        return {node_id: self.rows[node_id] for node_id in node_ids if node_id in self.rows}

    def do(self, *events: Event) -> Step:
        """One step, written."""
        return self.write(advance(self.graph, self.run, events, self.look))

    def write(self, step: Step) -> Step:
        for node_id, row in step.nodes.items():
            assert row.node_id == node_id
            # Only where a session is lost does what is over wait again.
            is_over = self.row(node_id).state in NODE_OVER
            assert not is_over or row.state is NodeState.WAITING, "what is over is written again"
        self.rows.update(step.nodes)
        self.run, self.over = step.run, step.over
        return step

    def begin(self) -> Step:
        return self.do(Begun())

    def ended(self, node_id: str, status: JobStatus = COMPLETED, count: int = 1) -> Step:
        error = {"kind": "exception", "message": "no"} if status is FAILED else None
        return self.do(Ended(node_id, status, count, error))

    def row(self, node_id: str) -> Counters:
        return self.rows.get(node_id) or untouched(self.graph, self.run, node_id)

    def states(self) -> dict[str, str]:
        return {node_id: str(self.row(node_id).state) for node_id in self.graph.nodes}

    def check(self) -> None:
        """The run's counters are those of its rows, and no row contradicts itself."""
        rows = [self.row(node_id) for node_id in self.graph.nodes]
        assert self.run.active == sum(row.state is NodeState.ACTIVE for row in rows)
        assert self.run.failed == sum(row.state is NodeState.FAILED for row in rows)
        assert self.run.nodes_left == sum(row.state not in NODE_OVER for row in rows)
        for row in rows:
            assert (row.state is NodeState.ACTIVE) <= (row.left > 0)
            assert row.left + row.completed + row.skipped + row.failed + row.cancelled == row.total


def planned(*shapes: Shape) -> PlannedRun:
    return PlannedRun(graph_from(shapes))


def chain(*node_ids: str) -> Iterable[Shape]:
    """Nodes that each need the one before."""
    yield Shape(node_ids[0])
    for above, node_id in pairwise(node_ids):
        yield Shape(node_id, (above,))
