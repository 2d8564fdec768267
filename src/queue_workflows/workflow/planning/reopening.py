"""Decides what a retry of a run that is over runs again, and what it keeps."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from queue_workflows.states import NodeState
from queue_workflows.workflow.planning.graph import Graph, GraphNode
from queue_workflows.workflow.planning.parents import ready_or_not, told
from queue_workflows.workflow.planning.progress import Counters, RunCounters
from queue_workflows.workflow.planning.sessions import members_of


@dataclass(frozen=True, slots=True)
class Reopening:
    """What to write, and what to say of it first.

    `again` wait again, parents before children: of these `nodes` has the rows that say something, and
    `dropped` names rows to delete, because nothing touched those nodes any more. `nodes` also has a row for
    each node that stays cancelled and had none. `ready` goes to the dispatcher as `Reopened`. `kept` keep
    what they came to, and of `again` those in `elements_kept` keep the elements that completed or were
    skipped.
    """

    run: RunCounters
    nodes: Mapping[str, Counters]
    dropped: tuple[str, ...]
    ready: tuple[str, ...]
    again: tuple[str, ...]
    kept: tuple[str, ...]
    elements_kept: tuple[str, ...]


def reopen(graph: Graph, rows: Mapping[str, Counters], *, from_nodes: Collection[str] = ()) -> Reopening:
    """What failed or was cancelled runs again, so do `from_nodes`, and everything below any of them.

    A node below is run again even if it completed, as one that tidies up did: it had another input then. What
    is cancelled and would be again, because what it needs stays as it is, is left. Between the steps of a
    pipeline order alone makes no node run again, but `from_nodes` and sessions do: what works with one that
    is over by now runs again with it, and so does all else that does. What runs again is sealed again. Of a
    tree the first run is kept if it completed, unless it comes after one of `from_nodes`.
    """
    below, with_sessions = _below(graph, from_nodes), frozenset[str]()
    while True:
        reopening = _reopened(graph, rows, from_nodes, below | with_sessions)
        further = _with_sessions(graph, reopening.again)
        if further <= with_sessions:
            return reopening
        with_sessions |= further


def _reopened(
    graph: Graph, rows: Mapping[str, Counters], from_nodes: Collection[str], wanted: Collection[str]
) -> Reopening:
    again: dict[str, Counters] = {}
    nodes: dict[str, Counters] = {}
    dropped: list[str] = []
    elements_kept: list[str] = []
    for node_id, node in graph.nodes.items():
        row = rows.get(node_id)
        fresh = _counted(node, rows, again)
        is_below = any(
            parent in again and (node.is_seal or not node.is_barrier_below(graph.nodes[parent]))
            for parent in node.parents
            if not (node.begins_tree and row is not None and row.state is NodeState.COMPLETED)
        )
        if not (node_id in wanted or is_below or _was_stopped(node, row, fresh)):
            if row is None:
                nodes[node_id] = replace(fresh, state=NodeState.CANCELLED)
            continue
        if row is not None and node.is_mapped and node_id not in from_nodes and not fresh.parents_left:
            fresh = _with_elements(fresh, row)
        if fresh.total:
            elements_kept.append(node_id)
        again[node_id] = fresh
        if fresh != Counters(node_id, parents_left=len(node.parents)):
            nodes[node_id] = fresh
        elif row is not None:
            dropped.append(node_id)
    return Reopening(
        run=RunCounters(nodes_left=len(again)),
        nodes=nodes,
        dropped=tuple(dropped),
        ready=tuple(node_id for node_id, fresh in again.items() if not fresh.parents_left),
        again=tuple(again),
        kept=tuple(node_id for node_id in graph.nodes if node_id not in again),
        elements_kept=tuple(elements_kept),
    )


def _below(graph: Graph, from_nodes: Collection[str]) -> frozenset[str]:
    """Nodes and all below them, whatever that waits for there."""
    found = set(from_nodes)
    for name, node in graph.nodes.items():
        if not found.isdisjoint(node.parents):
            found.add(name)
    return frozenset(found)


def _with_sessions(graph: Graph, again: Collection[str]) -> frozenset[str]:
    """The sessions of these nodes, all that works with one that is begun anew, and the seal that ends it."""
    needed = {session for node_id in again for session in graph.nodes[node_id].sessions}
    members = members_of(graph, needed.union(again))
    using = {node_id for node_id in members if not graph.nodes[node_id].begins_tree}
    seals = {node_id for node_id, node in graph.nodes.items() if node.is_seal and (needed or using)}
    return frozenset(needed | using | seals)


def _counted(node: GraphNode, rows: Mapping[str, Counters], again: Collection[str]) -> Counters:
    """The node as it waits again: it knows of the parents that keep what they came to."""
    fresh = Counters(node.id, parents_left=len(node.parents))
    for parent in node.parents:
        if parent not in again:
            row = rows.get(parent)
            fresh = told(fresh, parent, NodeState.CANCELLED if row is None else row.state)
    return fresh


def _with_elements(fresh: Counters, row: Counters) -> Counters:
    """Its list is the same as before, so the elements that need not run again do not."""
    kept = row.completed + row.skipped
    return replace(fresh, total=kept, completed=row.completed, skipped=row.skipped)


def _was_stopped(node: GraphNode, row: Counters | None, fresh: Counters) -> bool:
    """Whether it failed or was cancelled, and would run now; without a row in a run that is over it was."""
    if row is not None and row.state is NodeState.FAILED:
        return True
    return (row is None or row.state is NodeState.CANCELLED) and ready_or_not(node, fresh)
