"""What a waiting node knows of its parents: how many it still waits for, and how the others ended."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from queue_workflows.states import NodeState
from queue_workflows.workflow.document.load import When
from queue_workflows.workflow.planning.graph import GraphNode
from queue_workflows.workflow.planning.progress import UPSTREAM, Counters, NodeError

BAD: Final = frozenset({NodeState.FAILED, NodeState.CANCELLED})
# The reason of a node that needed one of its parents to complete.
NOTHING_COMPLETED: Final[NodeError] = {"kind": UPSTREAM, "message": "nothing that it depends on completed"}


def ready_or_not(node: GraphNode, row: Counters) -> bool:
    """Whether a node runs, now that all its parents are over."""
    if node.when is When.ALL_DONE or not node.parents:
        return True
    return row.parents_bad == 0 if node.when is When.ALL_SUCCESS else row.parents_completed > 0


def told(row: Counters, parent_id: str, state: NodeState) -> Counters:
    """A waiting node's row once one more of its parents is over; the first bad one is its reason."""
    bad = state in BAD
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
