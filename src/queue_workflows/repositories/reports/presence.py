"""Which roles are there for runs: whether an orchestrator is connected, which queues have a worker."""

from __future__ import annotations

import uuid
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from queue_workflows.repositories.explain.explain_run import ORCHESTRATORS
from queue_workflows.repositories.sql.connection import Handle, Statements

PRESENT: Final = """
SELECT
    EXISTS (
        SELECT FROM pg_stat_activity
        WHERE datname = current_database() AND application_name LIKE %(orchestrators)s::text
    ),
    ARRAY(
        SELECT DISTINCT queue FROM worker_heartbeats
        WHERE queue = ANY (%(queues)s::text[])
            AND last_seen > statement_timestamp() - make_interval(secs => %(stale_s)s::float8)
    )
"""

# below: the open runs that a run has started, and those that these have.
# looked_at: of thousands of them not all; what the first wait for the others wait for as well.
WAITED_FOR_BELOW: Final = """
WITH RECURSIVE below AS (
    SELECT id FROM workflow_runs
    WHERE parent_run_id = %(run_id)s::uuid AND status IN ('queued', 'running')
    UNION ALL
    SELECT child.id FROM workflow_runs AS child JOIN below ON child.parent_run_id = below.id
    WHERE child.status IN ('queued', 'running')
),
looked_at AS (
    SELECT id FROM below LIMIT 100
)
SELECT DISTINCT queue FROM workflow_node_jobs
WHERE run_id IN (SELECT id FROM looked_at) AND status = 'queued'
ORDER BY queue
"""


@dataclass(frozen=True, slots=True)
class Presence:
    """What of that is there; a worker counts until it has been silent for too long."""

    has_orchestrator: bool
    served: frozenset[str]


class PresenceRepository:
    """Whether anybody is there to do the work of a run."""

    def __init__(self, connection: Handle) -> None:
        self._sql = Statements(connection, "worker_heartbeats")

    def of(self, queues: Collection[str], *, stale_s: float) -> Presence:
        """An orchestrator, and workers of these queues."""
        ((has_orchestrator, served),) = self._sql.rows(
            PRESENT, {"orchestrators": ORCHESTRATORS, "queues": sorted(queues), "stale_s": stale_s}
        )
        return Presence(has_orchestrator, frozenset(served))

    def waited_for_below(self, run_id: uuid.UUID) -> list[str]:
        """The queues of what is queued in runs below a run."""
        return [queue for (queue,) in self._sql.rows(WAITED_FOR_BELOW, {"run_id": run_id})]
