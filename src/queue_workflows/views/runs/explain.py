"""Why a run or one of its nodes does not go on, or how it ended."""

from __future__ import annotations

import shlex
import uuid
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from queue_workflows.engine.explain.job import Explanation, Knowledge
from queue_workflows.engine.explain.run import explain_node, explain_run
from queue_workflows.errors import UnknownNode, UnknownRun
from queue_workflows.repositories.explain.explain_run import RunExplainingRepository
from queue_workflows.repositories.runs.operator_verbs import SteeringRepository
from queue_workflows.repositories.sql.connection import Handle
from queue_workflows.workflow.document.load import compiled, find_compiled
from queue_workflows.workflow.planning.graph import Graph, graph_of

if TYPE_CHECKING:
    from queue_workflows.models import AuditLog


@dataclass(frozen=True, slots=True)
class ExplainedRun:
    """The explanation, and what it is of; `node` None is the run as a whole. `acts` are those on the run."""

    run_id: uuid.UUID
    status: str
    node: str | None
    told: Explanation
    acts: Sequence[AuditLog] = ()


def explained_run(
    conn: Handle, run_id: uuid.UUID, known: Knowledge, *, node: str | None = None, brief: bool = False
) -> ExplainedRun:
    """The reasons and the history; `UnknownRun` or `UnknownNode` where there is none.

    In brief what is open is counted to a hundred, for a page that has the counts of the node beside it.
    """
    repository = RunExplainingRepository(conn)
    there = repository.circumstances(run_id, node_id=node, brief=brief)
    if there is None:
        raise UnknownRun(run_id)
    status = there.run.status
    if node is None:
        return ExplainedRun(run_id, status, None, explain_run(there, known), there.done_to_it)
    graph = _graph_of(conn, run_id, there.run.spec_hash)
    if graph is None or node not in graph.nodes:
        raise UnknownNode(run_id, node)
    shape = graph.nodes[node]
    rows = repository.nodes(run_id, [node, *shape.parents])
    told = explain_node(there, known, graph, shape, rows)
    return ExplainedRun(run_id, status, node, told, there.done_to_it)


def _graph_of(conn: Handle, run_id: uuid.UUID, spec_hash: str) -> Graph | None:
    """Of the run's document, which is read only if it is not known here."""
    known = find_compiled(spec_hash)
    if known is not None:
        return known.derived(graph_of)
    stored = SteeringRepository(conn).stored(run_id, lock=False)
    return None if stored is None else compiled(stored.spec, stored.spec_hash).derived(graph_of)


def json_of(explained: ExplainedRun) -> dict[str, Any]:
    """What `qwf explain RUN [NODE] --json` prints."""
    name: dict[str, Any] = {"run": str(explained.run_id), "status": explained.status}
    name |= {} if explained.node is None else {"node": explained.node}
    return name | asdict(explained.told)


def command_of(run_id: uuid.UUID, *, node: str | None = None) -> str:
    """The command that says it."""
    return shlex.join(["qwf", "explain", str(run_id), *([] if node is None else [node])])
