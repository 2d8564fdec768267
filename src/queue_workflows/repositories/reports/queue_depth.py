"""How many jobs are queued on some queues, counted by the claim's index up to a bound."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from queue_workflows.repositories.reports.queue_statistics import COUNTED
from queue_workflows.repositories.sql.arrays import texts
from queue_workflows.repositories.sql.connection import Handle, Statements
from queue_workflows.repositories.sql.families import FAMILIES, per_family

DEPTHS: Final = per_family("""
SELECT given.queue, counted.count
FROM unnest(%(queues)s::text[]) AS given (queue)
CROSS JOIN LATERAL (
    SELECT count(*) FROM (
        SELECT FROM {table} AS job WHERE job.status = 'queued' AND job.queue = given.queue
        LIMIT %(most)s::bigint
    ) AS job
) AS counted
""")


@dataclass(frozen=True, slots=True)
class QueueDepth:
    """Jobs of either family that could be claimed; `at_least` where nobody counted further."""

    queue: str
    queued: int
    at_least: bool


class QueueDepthRepository:
    """Reads on the caller's connection."""

    def __init__(self, conn: Handle) -> None:
        self._sql = Statements(conn, "ingest_jobs")

    def of(self, queues: Sequence[str], *, most: int = COUNTED) -> list[QueueDepth]:
        """Each of these, in their order."""
        if not queues:
            return []
        counts = dict.fromkeys(queues, 0)
        for family in FAMILIES:
            for queue, count in self._sql.rows(DEPTHS[family.name], {"queues": texts(queues), "most": most}):
                counts[queue] += count
        return [QueueDepth(queue, min(count, most), count >= most) for queue, count in counts.items()]
