"""The last runs of one workflow beside each other, and which workflows ran of late.

Runs have no index by workflow: both look at a bounded number of the latest runs, whatever they are of.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from queue_workflows.repositories.sql import checks as check
from queue_workflows.repositories.sql.connection import Handle, Statements

# So many runs are looked at, however few of them are of the workflow.
MOST_LOOKED_AT: Final = 10_000
MOST_RUNS: Final = 100
# Of a larger document the first nodes are shown.
MOST_NODES: Final = 200

# looked: the latest runs before one, a bounded number. found: those of the workflow, one more than a page
# holds. newest: the nodes that the latest of them has. The end of the look comes with each row, and alone
# where none was found.
RUNS: Final = f"""
WITH looked AS MATERIALIZED (
    SELECT id, workflow_name FROM workflow_runs
    WHERE id < %(before)s::uuid
    ORDER BY id DESC
    LIMIT %(most)s::bigint
), found AS MATERIALIZED (
    SELECT id FROM looked WHERE workflow_name = %(workflow)s::text
    ORDER BY id DESC
    LIMIT %(limit)s::bigint
), newest AS MATERIALIZED (
    SELECT jsonb_path_query_array(spec, '$.nodes[0 to {MOST_NODES - 1}].id')::text AS nodes
    FROM workflow_runs WHERE id = (SELECT id FROM found ORDER BY id DESC LIMIT 1)
)
SELECT ended.looked_at, ended.last, (SELECT nodes FROM newest), run.id, run.status, run.spec_hash,
    run.created_at, run.started_at, run.finished_at
FROM (
    SELECT count(*) AS looked_at, (SELECT id FROM looked ORDER BY id LIMIT 1) AS last FROM looked
) AS ended
LEFT JOIN workflow_runs AS run ON run.id = ANY (ARRAY(SELECT id FROM found))
ORDER BY run.id DESC
"""  # noqa: S608 - a number of our own
CELLS: Final = """
SELECT run_id, node_id, state, jobs_total, jobs_failed, started_at, finished_at FROM workflow_nodes
WHERE run_id = ANY (%(run_ids)s::uuid[]) AND node_id = ANY (%(node_ids)s::text[])
"""
# looked: the latest runs, a bounded number.
WORKFLOWS: Final = """
WITH looked AS MATERIALIZED (
    SELECT id, workflow_name, status, created_at FROM workflow_runs
    ORDER BY id DESC
    LIMIT %(most)s::bigint
)
SELECT workflow_name, count(*), count(*) FILTER (WHERE status IN ('queued', 'running')),
    count(*) FILTER (WHERE status = 'failed'), max(created_at), (array_agg(id ORDER BY id DESC))[1],
    (array_agg(status ORDER BY id DESC))[1]
FROM looked
GROUP BY workflow_name
ORDER BY max(created_at) DESC, workflow_name
LIMIT %(limit)s::bigint
"""
_AFTER_ALL: Final = uuid.UUID(int=2**128 - 1)


@dataclass(frozen=True, slots=True)
class GridRun:
    """A run of a workflow; `spec_hash` says whether its document is that of another one."""

    id: uuid.UUID
    status: str
    spec_hash: str
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None


@dataclass(frozen=True, slots=True)
class GridRuns:
    """The latest runs, and the nodes of the newest one; `next` is the `before` of the page that follows."""

    runs: tuple[GridRun, ...]
    nodes: tuple[str, ...]
    next: uuid.UUID | None


@dataclass(frozen=True, slots=True)
class NodeCell:
    """A node of one run that was touched: its state, and how many of its jobs failed."""

    state: str
    total: int
    failed: int
    started_at: datetime | None
    finished_at: datetime | None


@dataclass(frozen=True, slots=True)
class RecentWorkflow:
    """A workflow of which some of the latest runs are."""

    workflow: str
    runs: int
    unfinished: int
    failed: int
    last_created_at: datetime
    last_run: uuid.UUID
    last_status: str


class RunGridRepository:
    """Reads runs of a workflow on the caller's connection; changes nothing."""

    def __init__(self, conn: Handle) -> None:
        self._sql = Statements(conn, "workflow_runs")

    def runs(
        self,
        workflow: str,
        *,
        before: uuid.UUID | None = None,
        limit: int = 20,
        most: int = MOST_LOOKED_AT,
    ) -> GridRuns:
        """The latest runs of a workflow that began before one; of a bounded number that is looked at."""
        limit = check.whole("limit", limit, 1, MOST_RUNS)
        params = {
            "workflow": check.text("workflow", workflow),
            "before": before or _AFTER_ALL,
            "limit": limit + 1,
            "most": most,
        }
        rows = self._sql.rows(RUNS, params)
        looked_at, last, nodes = rows[0][:3]
        names = [name for name in json.loads(nodes or "[]") if isinstance(name, str)]
        runs = tuple(GridRun(*row[3:]) for row in rows if row[3] is not None)
        if len(runs) > limit:
            return GridRuns(runs[:limit], tuple(names), runs[limit - 1].id)
        return GridRuns(runs, tuple(names), last if looked_at == most else None)

    def cells(
        self, run_ids: Collection[uuid.UUID], node_ids: Collection[str]
    ) -> dict[tuple[uuid.UUID, str], NodeCell]:
        """The nodes that were touched, by run and name."""
        params = {"run_ids": list(run_ids), "node_ids": list(node_ids)}
        return {(row[0], row[1]): NodeCell(*row[2:]) for row in self._sql.rows(CELLS, params)}

    def workflows(self, *, limit: int = 200, most: int = MOST_LOOKED_AT) -> list[RecentWorkflow]:
        """The workflows of the latest runs, that which ran last first."""
        params = {"limit": check.whole("limit", limit, 1, MOST_LOOKED_AT), "most": most}
        return [RecentWorkflow(*row) for row in self._sql.rows(WORKFLOWS, params)]
