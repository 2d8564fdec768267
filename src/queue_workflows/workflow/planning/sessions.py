"""Decides what runs again in a run that goes on because a session was lost: a node that others work with.

    the session       active and begun ──lost──> active, and has to begin again
    a member          waiting          ────────> waits for that again
                      active           ────────> its job is ended, then it waits again
                      over             ────────> waits again, and runs again when it is its turn
    what comes after  waiting          ────────> waits for the members as well
                      active           ────────> goes on; it is over when the members before it are
                      over             ────────> waits, and is over again when the members before it are

Members are all that works with a session, directly or by another session that works with it. So they run in
their order again, and nothing begins before them that comes after them; what does without the session runs
once. Where the session does not begin again, a member that had a result keeps it. A member that was given up
because its workers died of it stays so: else it would end the session again, and be there for ever.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import replace

from queue_workflows.states import NODE_OVER, NodeState
from queue_workflows.workflow.planning.graph import Graph
from queue_workflows.workflow.planning.progress import (
    CANCELLED,
    SESSION_LOST,
    WORKER_LOST,
    Counters,
    NodeError,
)

_RESULTS = frozenset({NodeState.COMPLETED, NodeState.SKIPPED})


def members_of(graph: Graph, sessions: Collection[str]) -> frozenset[str]:
    """All that works with these sessions, or with one that does."""
    anew = set(sessions)
    for node_id, node in graph.nodes.items():
        if not anew.isdisjoint(node.sessions):
            anew.add(node_id)
    return frozenset(anew.difference(sessions))


def set_back(graph: Graph, row_of: Callable[[str], Counters], session: str) -> Iterator[Counters]:
    """The rows that change as an active session is lost; whatever waits then has its parents counted anew.

    There are none once the run is sealed, or if nothing works with the session. What somebody cancels stays
    cancelled; a list is never a member, and what was over without a job stays over. A tree that has begun
    goes on, as its runs are no jobs of this one.
    """
    members = {
        node_id
        for node_id in members_of(graph, {session})
        if not graph.nodes[node_id].begins_tree or row_of(node_id).state is NodeState.WAITING
    }
    seals = (node_id for node_id, node in graph.nodes.items() if node.is_seal)
    if not members or any(row_of(seal).state in NODE_OVER for seal in seals):
        return
    said = f"{session} was lost, with which it works: it runs again once that has begun again"
    lost = {"kind": SESSION_LOST, "message": said, "node": session}
    anew = lost | {"message": "it was lost and begins again, and then what works with it runs again"}
    yield replace(row_of(session), attempted=0, error=anew)
    behind = set[str]()
    for node_id, node in graph.nodes.items():
        row = row_of(node_id)
        is_cancelled = row.state is NodeState.CANCELLED or (row.error or {}).get("kind") == CANCELLED
        is_final = node.is_mapped or is_cancelled or is_given_up_for_deaths(row.error)
        if node_id in members and not is_final:
            behind.add(node_id)
            if row.state is NodeState.ACTIVE:
                yield replace(row, attempted=0, error=lost)
            elif row.state in _RESULTS:
                yield replace(row, state=NodeState.WAITING, attempted=0, error=lost)
            elif row.state is not NodeState.WAITING:
                yield replace(without_jobs(row), error=lost)
        elif not behind.isdisjoint(node.parents):
            behind.add(node_id)
            if row.state in NODE_OVER and row.total and not node.is_mapped:
                yield replace(row, state=NodeState.WAITING, attempted=0)


def is_given_up_for_deaths(error: NodeError | None) -> bool:
    """Whether a node failed because its workers died while it ran, so that nobody begins it again unasked."""
    return (error or {}).get("kind") == WORKER_LOST


def has_to_begin_again(row: Counters) -> bool:
    """Whether it is a session that was lost and has not begun since."""
    error = row.error or {}
    return error.get("kind") == SESSION_LOST and error.get("node") == row.node_id


def without_jobs(row: Counters) -> Counters:
    """A member's row as it waits for its session again, with nothing of what it had come to."""
    return Counters(row.node_id, error=row.error)


def lost_session(row: Counters) -> str | None:
    """The session for which a member is ended or waits again; None if it is for none."""
    error = row.error or {}
    session = error.get("node") if error.get("kind") == SESSION_LOST else None
    return None if session == row.node_id else session
