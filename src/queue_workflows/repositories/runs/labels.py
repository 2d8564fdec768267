"""Labels that a run gets on its way, beside those that it was started with."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from typing import Any, Final

from queue_workflows.repositories.sql.checks import PayloadLimits
from queue_workflows.repositories.sql.connection import Handle, Statements

MOST_LABELS: Final = 200
# Labels of the runs of a crawl: the run that it began with, and how far from it.
CRAWL: Final = "crawl"
CRAWL_DEPTH: Final = "crawl_depth"
# Labels that a hook's records give to their own run.
TAG: Final = "tag:"
TITLE: Final = "title"
# The event that has set up a tree, of the run of that.
SETUP: Final = "setup"
# A run that has them already is left alone; so is one that would have too many, which `is_there` tells.
ADD: Final = f"""
WITH added AS (
    UPDATE workflow_runs SET labels = labels || %(labels)s::jsonb
    WHERE id = %(run_id)s::uuid AND NOT labels @> %(labels)s::jsonb
        AND (SELECT count(*) FROM jsonb_object_keys(labels || %(labels)s::jsonb)) <= {MOST_LABELS}
    RETURNING id
)
SELECT EXISTS (SELECT FROM added) OR labels @> %(labels)s::jsonb AS is_there
FROM workflow_runs WHERE id = %(run_id)s::uuid
"""  # noqa: S608 - a number of our own


def labels_below(labels: Mapping[str, Any]) -> dict[str, Any]:
    """What the runs below have of a run's labels: not what its hooks call it, nor what it sets up."""
    own = {TITLE, SETUP}
    return {name: value for name, value in labels.items() if name not in own and not name.startswith(TAG)}


def labels_of_tree(root: uuid.UUID, depth: int) -> dict[str, Any]:
    """The labels of a run of a crawl that began with another one."""
    return {CRAWL: str(root), CRAWL_DEPTH: depth}


class RunLabelRepository:
    """Writes labels; the row of the run is locked until the caller's transaction ends."""

    def __init__(self, conn: Handle, *, payload_limits: PayloadLimits | None = None) -> None:
        self._sql = Statements(conn, "workflow_runs")
        self._limits = payload_limits or PayloadLimits()

    def add(self, run_id: uuid.UUID, labels: Mapping[str, Any]) -> bool:
        """Set these labels of a run, each over an older one of its name; False if there would be too many."""
        given = json.loads(self._limits.json_object("labels", dict(labels)))
        rows = self._sql.rows(ADD, {"run_id": run_id, "labels": json.dumps(given)})
        return bool(rows and rows[0][0])
