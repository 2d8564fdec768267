"""The semantics of a run as plainly as they can be written: every node looked at again after every event.

Slow, without counters, and sharing no line with the planner: what the planner is compared with.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from queue_workflows.states import RunStatus
from queue_workflows.workflow.planning.graph import Graph
from queue_workflows.workflow.planning.progress import (
    Begun,
    Broken,
    CancelNode,
    CancelRun,
    Ended,
    Event,
    Opened,
    SkippedNode,
)

OVER = {"completed", "skipped", "failed", "cancelled"}
OPEN = "open"


@dataclass
class ReferenceRun:
    """The states of all nodes and of all their jobs, and what was asked for."""

    graph: Graph
    begun: bool = False
    stopping: str | None = None
    states: dict[str, str] = field(default_factory=dict)
    jobs: dict[str, list[str]] = field(default_factory=dict)
    cancelled_nodes: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        for node_id in self.graph.nodes:
            self.states.setdefault(node_id, "waiting")
            self.jobs.setdefault(node_id, [])

    def do(self, event: Event) -> None:
        if isinstance(event, Begun):
            self.begun = True
        elif isinstance(event, CancelRun) and self.over() is None:
            self.stopping = "cancel"
        elif isinstance(event, CancelNode):
            self.cancel_node(event.node_id)
        elif isinstance(event, Ended) and self.states[event.node_id] == "active":
            self.end_jobs(event)
        elif isinstance(event, Opened | SkippedNode | Broken) and event.node_id in self.ready():
            self.answer(event)
        while self.settle():
            pass

    def answer(self, event: Opened | SkippedNode | Broken) -> None:
        if isinstance(event, Opened):
            self.states[event.node_id] = "active"
            self.jobs[event.node_id] += [OPEN] * event.jobs
        else:
            self.states[event.node_id] = "skipped" if isinstance(event, SkippedNode) else "failed"

    def end_jobs(self, event: Ended) -> None:
        jobs = self.jobs[event.node_id]
        for _ in range(event.count):
            if OPEN in jobs:
                jobs[jobs.index(OPEN)] = str(event.status)

    def cancel_node(self, node_id: str) -> None:
        if self.states[node_id] == "waiting":
            self.states[node_id] = "cancelled"
        elif self.states[node_id] == "active":
            self.cancelled_nodes.add(node_id)

    def settle(self) -> bool:
        """Apply every rule to every node once; whether anything changed."""
        before = dict(self.states), self.stopping
        for node_id, node in self.graph.nodes.items():
            if self.states[node_id] == "active" and OPEN not in self.jobs[node_id]:
                self.states[node_id] = self.outcome(node_id)
            fails = self.states[node_id] == "failed" or (
                self.states[node_id] == "active" and "failed" in self.jobs[node_id]
            )
            if fails and node.on_failure == "fail_fast" and self.stopping is None:
                self.stopping = "fail_fast"
        for node_id in self.graph.nodes:
            if self.states[node_id] == "waiting" and self.given_up(node_id):
                self.states[node_id] = "cancelled"
            if self.states[node_id] == "waiting" and self.parents_over(node_id) and not self.may_run(node_id):
                self.states[node_id] = "cancelled"
        return before != (self.states, self.stopping)

    def outcome(self, node_id: str) -> str:
        ends = set(self.jobs[node_id])
        for worst in ("failed", "cancelled"):
            if worst in ends:
                return worst
        return "skipped" if ends == {"skipped"} and not self.graph.nodes[node_id].is_mapped else "completed"

    def given_up(self, node_id: str) -> bool:
        tidies = self.graph.nodes[node_id].when == "all_done"
        return self.stopping == "cancel" or (self.stopping == "fail_fast" and not tidies)

    def parents_over(self, node_id: str) -> bool:
        return all(self.states[parent] in OVER for parent in self.graph.nodes[node_id].parents)

    def may_run(self, node_id: str) -> bool:
        node = self.graph.nodes[node_id]
        ends = [self.states[parent] for parent in node.parents]
        if not ends or node.when == "all_done":
            return True
        if node.when == "any_success":
            return "completed" in ends
        return set(ends) <= {"completed", "skipped"}

    def ready(self) -> set[str]:
        return {
            node_id
            for node_id in self.graph.nodes
            if self.begun and self.states[node_id] == "waiting" and self.parents_over(node_id)
        }

    def to_stop(self) -> set[str]:
        """The active nodes whose open jobs are to be cancelled."""
        return {
            node_id
            for node_id, node in self.graph.nodes.items()
            if self.states[node_id] == "active"
            and (
                self.given_up(node_id)
                or node_id in self.cancelled_nodes
                or (node.on_failure == "fail_fast" and "failed" in self.jobs[node_id])
            )
        }

    def over(self) -> RunStatus | None:
        if not self.begun or any(state not in OVER for state in self.states.values()):
            return None
        if "failed" in self.states.values():
            return RunStatus.FAILED
        return RunStatus.CANCELLED if self.stopping == "cancel" else RunStatus.COMPLETED
