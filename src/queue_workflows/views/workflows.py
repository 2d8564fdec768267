"""A workflow by its last runs: each a row of cells, a node each; and the workflows that ran of late."""

from __future__ import annotations

import shlex
import uuid
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, Final

from queue_workflows.errors import UnknownWorkflow
from queue_workflows.repositories.reports.run_grid import GridRun, NodeCell, RecentWorkflow, RunGridRepository
from queue_workflows.repositories.sql.connection import Handle
from queue_workflows.states import RUN_TERMINAL, NodeState

USUAL: Final = 20


@dataclass(frozen=True, slots=True)
class GridRow:
    """A run with what each node came to; None for a node that its own document may not have."""

    run: uuid.UUID
    status: str
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    cells: tuple[NodeCell | None, ...]


@dataclass(frozen=True, slots=True)
class WorkflowGrid:
    """Runs, the newest first, by the nodes that the newest has; `next` is the `before` that goes on."""

    workflow: str
    nodes: tuple[str, ...]
    rows: tuple[GridRow, ...]
    next: uuid.UUID | None


def workflow_grid(
    conn: Handle, workflow: str, *, before: uuid.UUID | None = None, limit: int = USUAL
) -> WorkflowGrid:
    """The last runs of a workflow; `UnknownWorkflow` if there is none."""
    repository = RunGridRepository(conn)
    found = repository.runs(workflow, before=before, limit=limit)
    if not found.runs and found.next is None and before is None:
        raise UnknownWorkflow(workflow, advice="`qwf run workflows` lists those that ran of late")
    touched = repository.cells([run.id for run in found.runs], found.nodes)
    rows = tuple(
        GridRow(
            run.id,
            run.status,
            run.created_at,
            run.started_at,
            run.finished_at,
            tuple(touched.get((run.id, node)) or _untouched(run, found.runs[0]) for node in found.nodes),
        )
        for run in found.runs
    )
    return WorkflowGrid(workflow, found.nodes, rows, found.next)


def _untouched(run: GridRun, newest: GridRun) -> NodeCell | None:
    """A node that has no row waits, or came to nothing with its run; of another document nothing is known."""
    if run.spec_hash != newest.spec_hash:
        return None
    state = NodeState.CANCELLED if run.status in RUN_TERMINAL else NodeState.WAITING
    return NodeCell(state.value, 0, 0, None, None)


def recent_workflows(conn: Handle) -> list[RecentWorkflow]:
    """The workflows of the latest runs, that which ran last first."""
    return RunGridRepository(conn).workflows()


def json_of(grid: WorkflowGrid) -> dict[str, Any]:
    """What `qwf run grid WORKFLOW --json` prints."""
    return {
        "workflow": grid.workflow,
        "nodes": list(grid.nodes),
        "runs": [asdict(row) for row in grid.rows],
        "next": grid.next,
    }


def json_of_workflows(found: Sequence[RecentWorkflow]) -> list[dict[str, Any]]:
    """What `qwf run workflows --json` prints."""
    return [asdict(one) for one in found]


def command_of(workflow: str, *, before: uuid.UUID | None = None, limit: int = USUAL) -> str:
    """The command that shows that grid."""
    words = ["qwf", "run", "grid", workflow]
    words += ["--before", str(before)] if before is not None else []
    words += ["--limit", str(limit)] if limit != USUAL else []
    return shlex.join(words)


def command_of_workflows() -> str:
    """The command that lists workflows."""
    return shlex.join(["qwf", "run", "workflows"])
