"""Where a run stands in its tree: what a node or a hook's record began belongs below the run of that one."""

from __future__ import annotations

import uuid
from typing import Final, NamedTuple

from queue_workflows.repositories.sql.connection import Handle, Statements

# above: the run, then the one that began it, and so on; of what was pruned meanwhile nothing is known.
PLACE: Final = """
WITH RECURSIVE above AS (
    SELECT id, parent_run_id, 0 AS far FROM workflow_runs WHERE id = %(run_id)s::uuid
    UNION ALL
    SELECT parent.id, parent.parent_run_id, above.far + 1
    FROM above JOIN workflow_runs AS parent ON parent.id = above.parent_run_id
)
SELECT id, far FROM above ORDER BY far DESC LIMIT 1
"""


class PlaceInTree(NamedTuple):
    """The run with which the tree began, and how many steps from it another is."""

    root: uuid.UUID
    depth: int


class RunTreeRepository:
    """What is known of the trees of runs."""

    def __init__(self, conn: Handle) -> None:
        self._sql = Statements(conn, "workflow_runs")

    def place_of(self, run_id: uuid.UUID) -> PlaceInTree:
        """Where a run stands; one that nothing began, or that is gone, is a tree by itself."""
        rows = self._sql.rows(PLACE, {"run_id": run_id})
        return PlaceInTree(*rows[0]) if rows else PlaceInTree(run_id, 0)
