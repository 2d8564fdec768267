"""The outbox of node ends: each end of each attempt once, read per run."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from queue_workflows.repositories.jobs.bulk_insert import Enqueued, insert_or_find
from queue_workflows.repositories.sql import checks as check
from queue_workflows.repositories.sql.awaitable import awaitable
from queue_workflows.repositories.sql.table import Filters, Repository, Table

if TYPE_CHECKING:
    from queue_workflows.models import WorkflowDispatchEvent

_TABLE: Final[Table[WorkflowDispatchEvent]] = Table("workflow_dispatch_events")

INSERT: Final = """
INSERT INTO workflow_dispatch_events (run_id, node_job_id, generation, attempt, kind, payload)
VALUES (
    %(run_id)s::uuid, %(node_job_id)s::bigint, %(generation)s::integer, %(attempt)s::integer, %(kind)s::text,
    %(payload)s::jsonb
)
ON CONFLICT (node_job_id, generation, attempt, kind) DO NOTHING
RETURNING id
"""
FIND: Final = """
SELECT id FROM workflow_dispatch_events
WHERE node_job_id = %(node_job_id)s::bigint AND generation = %(generation)s::integer
    AND attempt = %(attempt)s::integer AND kind = %(kind)s::text
"""
FETCH: Final = _TABLE.sql("SELECT {columns} FROM workflow_dispatch_events WHERE id = %(id)s::bigint")
COUNTS: Final = """
SELECT count(*) FILTER (WHERE poisoned_at IS NULL), count(*) FILTER (WHERE poisoned_at IS NOT NULL)
FROM workflow_dispatch_events
"""

# freed: events that were given up are as new. logged: the actor that had them tried again.
UNPOISON: Final = """
WITH freed AS (
    UPDATE workflow_dispatch_events SET poisoned_at = NULL, tries = 0, next_try_at = statement_timestamp()
    WHERE run_id = ANY (%(run_ids)s::uuid[]) AND poisoned_at IS NOT NULL
    RETURNING run_id
), counted AS (
    SELECT run_id, count(*) AS events FROM freed GROUP BY run_id
), logged AS (
    INSERT INTO audit_log (actor, action, subject_kind, subject_id, reason, details)
    SELECT %(actor)s::text, 'run.unpoison', 'run', run_id::text, %(reason)s::text,
        jsonb_build_object('events', events)
    FROM counted
)
SELECT run_id, events FROM counted
"""


class EventCounts(NamedTuple):
    """How many events wait, and how many were given up."""

    pending: int
    poisoned: int


class DispatchEventRepository(Repository["WorkflowDispatchEvent"]):
    """Dispatch events on the caller's connection."""

    _table = _TABLE

    def insert(
        self,
        run_id: uuid.UUID,
        kind: str,
        *,
        node_job_id: int | None,
        generation: int,
        attempt: int,
        payload: dict[str, Any] | None = None,
    ) -> Enqueued:
        """Insert an event, or find the one of this end of this attempt; a run's own events are all new."""
        params = {
            "run_id": run_id,
            "node_job_id": node_job_id,
            "generation": check.whole("generation", generation, 1, check.INT_MAX),
            "attempt": check.whole("attempt", attempt, 0, check.INT_MAX),
            "kind": check.text("kind", kind),
            "payload": self._limits.json_object("payload", payload),
        }
        return Enqueued(*insert_or_find(self._sql, INSERT, FIND, params))

    def fetch(self, event_id: int) -> WorkflowDispatchEvent | None:
        """One event, or None."""
        return self._first(FETCH, {"id": event_id})

    def counts(self) -> EventCounts:
        """How many events wait, and how many were given up."""
        return EventCounts(*self._sql.rows(COUNTS, {})[0])

    def poisoned(self, *, limit: int = 100, after: int | None = None) -> list[WorkflowDispatchEvent]:
        """Events that were given up, the oldest first."""
        filters = Filters()
        filters.always("poisoned_at IS NOT NULL")
        return self._page(filters, by="id", after=after, limit=limit, newest_first=False)

    def unpoison(
        self, run_ids: Iterable[uuid.UUID], *, actor: str, reason: str | None = None
    ) -> dict[uuid.UUID, int]:
        """Have the events of these runs that were given up tried again; how many of each run that has any."""
        params = {
            "run_ids": list(run_ids),
            "actor": check.text("actor", actor),
            "reason": check.text_or_none("reason", reason, max_bytes=check.TEXT_BYTES),
        }
        return {run_id: int(events) for run_id, events in self._sql.rows(UNPOISON, params)}

    # Last, because its name hides the builtin from the annotations below it.
    def list(
        self,
        *,
        run_id: uuid.UUID | None = None,
        node_job_id: int | None = None,
        kind: str | None = None,
        limit: int = 100,
        after: int | None = None,
        newest_first: bool = False,
    ) -> list[WorkflowDispatchEvent]:
        """Events by id; for people, never for draining: ids do not commit in their order."""
        filters = Filters()
        filters.add("run_id = %(run_id)s::uuid", run_id=run_id)
        filters.add("node_job_id = %(node_job_id)s::bigint", node_job_id=node_job_id)
        filters.add("kind = %(kind)s::text", kind=kind)
        return self._page(filters, by="id", after=after, limit=limit, newest_first=newest_first)

    # Awaited, on an asynchronous connection.
    afetch = awaitable(fetch)
    acounts = awaitable(counts)
    apoisoned = awaitable(poisoned)
    alist = awaitable(list)
