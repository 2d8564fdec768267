"""The jobs of a limit's key that come next: those in front, which are queued, then those in its lanes."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Final

from queue_workflows.repositories.limits.lane_turns import IN_FRONT
from queue_workflows.repositories.limits.lanes import IN_LANE
from queue_workflows.repositories.sql import checks as check
from queue_workflows.repositories.sql.connection import Handle, Statements
from queue_workflows.repositories.sql.families import FAMILIES, per_family
from queue_workflows.repositories.sql.table import LONGEST_PAGE

# front: what stands in the queues, of which there are few of a key. lane: the first of each queue's lane, as
# the index of holds has them; no more of any than are asked for.
FIRST: Final = per_family(
    """
(
    SELECT '{name}', id, {title_column}, queue, priority, position, false, created_at
    FROM {table} AS front WHERE {in_front} AND limit_key = %(key)s::text
    LIMIT %(limit)s::bigint
)
UNION ALL
(
    SELECT '{name}', id, {title_column}, queue, priority, position, true, created_at
    FROM {table} AS lane WHERE {in_lane} AND hold_key = %(key)s::text
    ORDER BY queue, priority DESC, position
    LIMIT %(limit)s::bigint
)
""",
    in_front=IN_FRONT,
    in_lane=IN_LANE,
    title_column={"node": "node_id", "ingest": "task_name"},
)


@dataclass(frozen=True, slots=True)
class WaitingForLimit:
    """A job that takes a slot of the key when it is claimed; in a lane it has to come out of it first."""

    family: str
    id: int
    title: str
    queue: str
    priority: int
    position: int
    in_lane: bool
    created_at: datetime

    @property
    def name(self) -> str:
        """The job, as commands take it."""
        return f"{self.family}:{self.id}"


class WaitingRepository:
    """Reads on the caller's connection."""

    def __init__(self, conn: Handle) -> None:
        self._sql = Statements(conn, "ingest_jobs")

    def first(self, key: str, *, limit: int) -> list[WaitingForLimit]:
        """What is in front before what is in lanes, each by priority and age."""
        most = check.whole("limit", limit, 1, LONGEST_PAGE)
        params = {"key": check.text("key", key), "limit": most}
        found = [
            WaitingForLimit(*row) for family in FAMILIES for row in self._sql.rows(FIRST[family.name], params)
        ]
        return sorted(found, key=lambda one: (one.in_lane, -one.priority, one.created_at, one.id))[:most]
