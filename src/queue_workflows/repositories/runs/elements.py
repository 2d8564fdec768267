"""The jobs of one node of a run, a page at a time; a node may have a hundred thousand."""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any, Final

from queue_workflows.repositories.sql import checks as check
from queue_workflows.repositories.sql.connection import Handle, Statements
from queue_workflows.repositories.sql.table import LONGEST_PAGE
from queue_workflows.states import JobStatus

# So many jobs are looked at for one page, however few of them are in the wanted state.
MOST_LOOKED_AT: Final = 10_000
# The item of an element is shown up to this size; a larger one is in the row.
_LONGEST_ITEM: Final = 1_000
# Before the first of them: the job of a node without elements is -1.
_BEFORE_ALL: Final = -2

# looked: the next jobs in the order of their elements, a bounded number. found: those of them in the wanted
# state, one more than a page holds. The end of the look comes with each row, and alone where none was found.
PAGE: Final = f"""
WITH looked AS MATERIALIZED (
    SELECT id, map_index, status FROM workflow_node_jobs
    WHERE run_id = %(run_id)s::uuid AND node_id = %(node_id)s::text AND map_index > %(after)s::integer
    ORDER BY map_index
    LIMIT %(most)s::bigint
), found AS MATERIALIZED (
    SELECT id FROM looked WHERE %(state)s::text IS NULL OR status = %(state)s::text
    ORDER BY map_index
    LIMIT %(limit)s::bigint
)
SELECT ended.looked_at, ended.last, job.id, job.map_index, job.status, job.queue, job.priority, job.attempt,
    job.failures, job.max_attempts, job.hold_reason, job.hold_key, job.claimed_by, job.run_at,
    job.created_at, job.started_at, job.finished_at, (job.errors -> -1)::text, job.progress::text,
    CASE WHEN pg_column_size(job.item) <= {_LONGEST_ITEM} THEN job.item::text END
FROM (SELECT count(*) AS looked_at, max(map_index) AS last FROM looked) AS ended
LEFT JOIN workflow_node_jobs AS job ON job.id = ANY (ARRAY(SELECT id FROM found))
ORDER BY job.map_index
"""  # noqa: S608 - a number of our own


@dataclass(frozen=True, slots=True)
class NodeElement:
    """A job of a node; `index` is -1 for the one job of a node that has no list to go through."""

    id: int
    index: int
    status: str
    queue: str
    priority: int
    attempt: int
    failures: int
    max_attempts: int
    hold_reason: str | None
    hold_key: str | None
    claimed_by: str | None
    run_at: datetime
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    error: dict[str, Any] | None
    progress: dict[str, Any] | None
    item: Any


@dataclass(frozen=True, slots=True)
class ElementPage:
    """The jobs of a page; `next` is the `after` of the page that follows, None where all was looked at."""

    elements: tuple[NodeElement, ...]
    next: int | None


class NodeElementRepository:
    """Reads the jobs of a node on the caller's connection; changes nothing."""

    def __init__(self, conn: Handle) -> None:
        self._sql = Statements(conn, "workflow_node_jobs")

    def page(
        self,
        run_id: uuid.UUID,
        node_id: str,
        *,
        state: str | None = None,
        after: int | None = None,
        limit: int = 50,
        most: int = MOST_LOOKED_AT,
    ) -> ElementPage:
        """The next jobs by their element's index, of those in one state if it is given.

        A page may be short, or empty, though there are more: `most` jobs were looked at, and `next` goes on.
        """
        limit = check.whole("limit", limit, 1, LONGEST_PAGE)
        words = check.words_or_none("state", state, JobStatus)
        params = {
            "run_id": run_id,
            "node_id": check.text("node_id", node_id),
            "state": words[0] if words else None,
            "after": _BEFORE_ALL if after is None else check.whole("after", after, _BEFORE_ALL, 2**31 - 1),
            "limit": limit + 1,
            "most": limit + 1 if state is None else most,
        }
        rows = self._sql.rows(PAGE, params)
        looked_at, last = rows[0][:2]
        found = [_element(row[2:]) for row in rows if row[2] is not None]
        if len(found) > limit:
            return ElementPage(tuple(found[:limit]), found[limit - 1].index)
        return ElementPage(tuple(found), last if looked_at == params["most"] else None)


def _element(row: Sequence[Any]) -> NodeElement:
    values = dict(zip((one.name for one in fields(NodeElement)), row, strict=True))
    for name in ("error", "progress", "item"):
        values[name] = None if values[name] is None else json.loads(values[name])
    return NodeElement(**values)
