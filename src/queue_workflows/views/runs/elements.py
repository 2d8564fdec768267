"""The jobs of one node of a run, a page at a time: a node may have a hundred thousand of them."""

from __future__ import annotations

import shlex
import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from queue_workflows.errors import UnknownNode, UnknownRun
from queue_workflows.repositories.runs.elements import ElementPage, NodeElementRepository
from queue_workflows.repositories.runs.nodes import WorkflowNodeRepository
from queue_workflows.repositories.runs.operator_verbs import SteeringRepository
from queue_workflows.repositories.sql.connection import Handle
from queue_workflows.states import NodeState
from queue_workflows.views.json_values import named, node_job

USUAL: Final = 50


@dataclass(frozen=True, slots=True)
class NodePage:
    """A node with the counts of its jobs by what became of them, and one page of these."""

    run_id: uuid.UUID
    node: str
    type: str
    state: str
    counts: Mapping[str, int]
    page: ElementPage


def node_page(
    conn: Handle,
    run_id: uuid.UUID,
    node_id: str,
    *,
    state: str | None = None,
    after: int | None = None,
    limit: int = USUAL,
) -> NodePage:
    """The next jobs of a node by their element's index; `UnknownRun` or `UnknownNode` where there is none."""
    standing = SteeringRepository(conn).node(run_id, node_id)
    if standing is None:
        raise UnknownRun(run_id)
    page = NodeElementRepository(conn).page(run_id, node_id, state=state, after=after, limit=limit)
    if standing.declared is None and not page.elements and standing.state is None:
        raise UnknownNode(run_id, node_id)
    counted = WorkflowNodeRepository(conn).read(run_id, [node_id]).get(node_id)
    counts = (
        {}
        if counted is None
        else {
            "total": counted.total,
            "left": counted.left,
            "completed": counted.completed,
            "skipped": counted.skipped,
            "failed": counted.failed,
            "cancelled": counted.cancelled,
        }
    )
    kind = (standing.declared or {}).get("type", "task")
    return NodePage(run_id, node_id, kind, standing.state or NodeState.WAITING.value, counts, page)


def json_of(shown: NodePage) -> dict[str, Any]:
    """What `qwf run nodes RUN NODE --json` prints."""
    return {
        "run": str(shown.run_id),
        "node": shown.node,
        "type": shown.type,
        "state": shown.state,
        "counts": dict(shown.counts),
        "elements": [
            {"job": node_job(one.id)} | named(asdict(one), without=("id",)) for one in shown.page.elements
        ],
        "next": shown.page.next,
    }


def command_of(
    run_id: uuid.UUID,
    node_id: str,
    *,
    state: str | None = None,
    after: int | None = None,
    limit: int = USUAL,
) -> str:
    """The command that shows that page."""
    words = ["qwf", "run", "nodes", str(run_id), node_id]
    words += ["--state", state] if state is not None else []
    words += ["--after", str(after)] if after is not None else []
    words += ["--limit", str(limit)] if limit != USUAL else []
    return shlex.join(words)
