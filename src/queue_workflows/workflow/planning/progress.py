"""How far a run and its nodes are, and what may happen to them: the plain data that the planner works on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal

from queue_workflows.states import JobStatus, NodeState
from queue_workflows.workflow.document.load import OnFailure, When
from queue_workflows.workflow.planning.graph import Graph

Stopping = Literal["fail_fast", "cancel"]
NodeError = dict[str, Any]

# Kinds of the errors that the planner writes itself.
UPSTREAM: Final = "upstream"
STOPPED: Final = "stopped"
CANCELLED: Final = "cancelled"
SESSION_LOST: Final = "session_lost"
# The kind of the error with which a job ends that is given up as its workers died.
WORKER_LOST: Final = "worker_lost"
# What `attempted` is of a node that has begun in the background.
BEGUN: Final = 2


@dataclass(frozen=True, slots=True)
class Counters:
    """One node: its parents, then its jobs, by how they ended.

    A waiting node may have completed and skipped jobs already: a retry keeps those of a `for_each`.
    `parents_bad` failed or were cancelled. `attempted` is 1 once the first attempt has ended and it is to be
    tried again, and `BEGUN` once a background node has begun: then the next step does not wait for it any
    more. A session that was lost is at 0 again.
    """

    node_id: str
    state: NodeState = NodeState.WAITING
    parents_left: int = 0
    parents_completed: int = 0
    parents_skipped: int = 0
    parents_bad: int = 0
    total: int = 0
    left: int = 0
    completed: int = 0
    skipped: int = 0
    failed: int = 0
    cancelled: int = 0
    attempted: int = 0
    error: NodeError | None = None


@dataclass(frozen=True, slots=True)
class RunCounters:
    """A run: how many nodes are not over, how many of those are active, how many failed, and why it stops."""

    nodes_left: int = 0
    active: int = 0
    failed: int = 0
    stopping: Stopping | None = None


@dataclass(frozen=True, slots=True)
class Begun:
    """The run starts; its first event."""


@dataclass(frozen=True, slots=True)
class Opened:
    """A ready node got its jobs: so many that are not over, whether or not all their rows are there yet."""

    node_id: str
    jobs: int = 1


@dataclass(frozen=True, slots=True)
class Ended:
    """So many jobs of a node ended in this terminal status; of a failure, `error` is what the job says."""

    node_id: str
    status: JobStatus
    count: int = 1
    error: NodeError | None = None


@dataclass(frozen=True, slots=True)
class Attempted:
    """An attempt at a node of a step has ended, and there will be another one; or one in the background
    `has_begun` and is ready for those that follow."""

    node_id: str
    has_begun: bool = False


@dataclass(frozen=True, slots=True)
class Lost:
    """An attempt at a background node is gone uncounted, with its worker for example; another one follows."""

    node_id: str


@dataclass(frozen=True, slots=True)
class SkippedNode:
    """The `skip_if` of a ready node holds."""

    node_id: str


@dataclass(frozen=True, slots=True)
class Broken:
    """A ready node cannot be opened: its `skip_if` or `for_each` could not be resolved."""

    node_id: str
    error: NodeError


@dataclass(frozen=True, slots=True)
class CancelRun:
    """Somebody gives the run up."""

    reason: str | None = None


@dataclass(frozen=True, slots=True)
class CancelNode:
    """Somebody gives up one node; what does not need it goes on."""

    node_id: str
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Reopened:
    """A retry let these nodes wait again, and all that they depend on is over."""

    node_ids: tuple[str, ...]


Event = Begun | Opened | Ended | Attempted | Lost | SkippedNode | Broken | CancelRun | CancelNode | Reopened


def untouched(graph: Graph, run: RunCounters, node_id: str) -> Counters:
    """A node without a row: nothing happened to it yet, and nothing will if the run's stop includes it."""
    state = NodeState.CANCELLED if is_given_up(graph, run, node_id) else NodeState.WAITING
    return Counters(node_id, state, parents_left=len(graph.nodes[node_id].parents))


def is_given_up(graph: Graph, run: RunCounters, node_id: str) -> bool:
    """Whether the run's stop includes this node; only a cancel keeps an `all_done` node from tidying up."""
    return run.stopping == "cancel" or (
        run.stopping == "fail_fast" and graph.nodes[node_id].when is not When.ALL_DONE
    )


def opens_no_more(graph: Graph, run: RunCounters, row: Counters) -> bool:
    """Whether further elements of an active `for_each` node count as cancelled instead of getting a job."""
    return (
        is_given_up(graph, run, row.node_id)
        or (row.failed > 0 and graph.nodes[row.node_id].on_failure is OnFailure.FAIL_FAST)
        or (row.error is not None and row.error.get("kind") == CANCELLED)
    )
