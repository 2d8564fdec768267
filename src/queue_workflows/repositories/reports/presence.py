"""Which roles are there for runs: whether an orchestrator is connected, which queues have a worker."""

from __future__ import annotations

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
