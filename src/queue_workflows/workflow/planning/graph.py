"""The shape of a document that the planner walks: which node comes before which, and nothing else of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from queue_workflows.workflow.document.load import DescendantsNode, Document, OnFailure, SealNode, When


class Shape(NamedTuple):
    """What a graph is made of for one node; `parents` are the nodes it depends on, in any order."""

    id: str
    parents: Iterable[str] = ()
    when: When = When.ALL_SUCCESS
    on_failure: OnFailure = OnFailure.FAIL_FAST
    is_mapped: bool = False
    in_step: bool = False
    is_background: bool = False
    follows_seal: bool = False
    is_seal: bool = False
    sessions: tuple[str, ...] = ()
    begins_tree: bool = False


@dataclass(frozen=True, slots=True)
class GraphNode:
    """A node with both directions of its edges; `is_mapped` has one job for each element of a list.

    `in_step` is one of a pipeline's steps: what follows it in a later step waits for its first attempt only,
    and for one `is_background` until that has begun, at whatever attempt. What `follows_seal` has nothing
    left to run beside, so it waits for the end of the latter. `sessions` are parents in the background that
    it works with: it cannot run again without them, and where they are begun anew, so is it. What waits for
    the descendants of its run `is_seal` too: it comes after all that runs again. What `begins_tree` has a run
    of its own, which goes on when a session is lost; it waits for the ends of its parents, for those in the
    background until they have begun.
    """

    id: str
    when: When
    on_failure: OnFailure
    parents: tuple[str, ...]
    children: tuple[str, ...]
    is_mapped: bool
    in_step: bool = False
    is_background: bool = False
    follows_seal: bool = False
    is_seal: bool = False
    sessions: tuple[str, ...] = ()
    begins_tree: bool = False

    def is_barrier_below(self, parent: GraphNode) -> bool:
        """Whether the parent's first attempt is all that it waits for there: its end, or its beginning."""
        if self.begins_tree:
            return parent.in_step and parent.is_background
        if not (self.in_step and parent.in_step and self.when is When.ALL_DONE):
            return False
        return not (parent.is_background and self.follows_seal)


@dataclass(frozen=True, slots=True)
class Graph:
    """All nodes by id, parents before children; `roots` depend on nothing."""

    nodes: Mapping[str, GraphNode]
    roots: tuple[str, ...]


def graph_of(document: Document) -> Graph:
    """The shape of a document; `document.derived(graph_of)` keeps it with the document."""
    seals = {node.id for node in document.nodes if isinstance(node, SealNode | DescendantsNode)}
    return graph_from(
        Shape(
            node.id,
            document.parents[node.id],
            when=node.when,
            on_failure=document.on_failure_of(node),
            is_mapped=getattr(node, "for_each", None) is not None,
            in_step=getattr(node, "step", None) is not None,
            is_background=getattr(node, "background", False),
            follows_seal=not seals.isdisjoint(document.parents[node.id]),
            is_seal=node.id in seals,
            sessions=getattr(node, "sessions", ()),
            begins_tree=getattr(node, "tree", None) is not None,
        )
        for node in document.nodes
    )


def graph_from(shapes: Iterable[Shape]) -> Graph:
    """A graph of nodes in any order, with all their parents among them; a circle is a ValueError."""
    given = {shape.id: shape for shape in shapes}
    parents = {shape.id: tuple(dict.fromkeys(shape.parents)) for shape in given.values()}
    children: dict[str, list[str]] = {node_id: [] for node_id in given}
    for node_id, above in parents.items():
        for parent in above:
            children[parent].append(node_id)
    nodes = {
        node_id: GraphNode(
            id=node_id,
            when=When(given[node_id].when),
            on_failure=OnFailure(given[node_id].on_failure),
            parents=parents[node_id],
            children=tuple(children[node_id]),
            is_mapped=given[node_id].is_mapped,
            in_step=given[node_id].in_step,
            is_background=given[node_id].is_background,
            follows_seal=given[node_id].follows_seal,
            is_seal=given[node_id].is_seal,
            sessions=given[node_id].sessions,
            begins_tree=given[node_id].begins_tree,
        )
        for node_id in _parents_first(parents, children)
    }
    return Graph(nodes, tuple(node_id for node_id in nodes if not parents[node_id]))


def _parents_first(parents: Mapping[str, tuple[str, ...]], children: Mapping[str, list[str]]) -> list[str]:
    """Each node once the last of its parents has come."""
    missing = {node_id: len(above) for node_id, above in parents.items()}
    order = [node_id for node_id, count in missing.items() if count == 0]
    for node_id in order:
        for child in children[node_id]:
            missing[child] -= 1
            if missing[child] == 0:
                order.append(child)
    if len(order) < len(missing):
        raise ValueError(f"nodes in a circle: {sorted(set(missing) - set(order))[:10]}")
    return order
