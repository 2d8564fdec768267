"""Why a run or one of its nodes does not go on, or how it ended."""

from __future__ import annotations

import shlex
import uuid
from dataclasses import asdict, dataclass
from typing import Any

from queue_workflows.engine.explain.job import Explanation, Knowledge
from queue_workflows.engine.explain.run import explain_node, explain_run
from queue_workflows.errors import UnknownNode, UnknownRun
from queue_workflows.repositories.reports.explain_run import RunExplainingRepository
from queue_workflows.repositories.runs.operator_verbs import SteeringRepository
from queue_workflows.repositories.sql.connection import Handle
from queue_workflows.workflow.document.load import compiled
from queue_workflows.workflow.planning.graph import graph_of


@dataclass(frozen=True, slots=True)
class ExplainedRun:
    """The explanation, and what it is of; `node` None is the run as a whole."""

    run_id: uuid.UUID
    status: str
    node: str | None
    told: Explanation


def explained_run(
    conn: Handle, run_id: uuid.UUID, known: Knowledge, *, node: str | None = None
) -> ExplainedRun:
    """The reasons and the history; `UnknownRun` or `UnknownNode` where there is none."""
    repository = RunExplainingRepository(conn)
    there = repository.circumstances(run_id, node_id=node)
    if there is None:
        raise UnknownRun(run_id)
    status = there.run.status
    if node is None:
        return ExplainedRun(run_id, status, None, explain_run(there, known))
    stored = SteeringRepository(conn).stored(run_id, lock=False)
    graph = compiled(stored.spec, stored.spec_hash).derived(graph_of) if stored is not None else None
    if graph is None or node not in graph.nodes:
        raise UnknownNode(run_id, node)
    shape = graph.nodes[node]
    rows = repository.nodes(run_id, [node, *shape.parents])
    return ExplainedRun(run_id, status, node, explain_node(there, known, graph, shape, rows))


def json_of(explained: ExplainedRun) -> dict[str, Any]:
    """What `qwf explain RUN [NODE] --json` prints."""
    name: dict[str, Any] = {"run": str(explained.run_id), "status": explained.status}
    name |= {} if explained.node is None else {"node": explained.node}
    return name | asdict(explained.told)


def command_of(run_id: uuid.UUID, *, node: str | None = None) -> str:
    """The command that says it."""
    return shlex.join(["qwf", "explain", str(run_id), *([] if node is None else [node])])
