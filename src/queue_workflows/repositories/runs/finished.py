"""The ends of runs that hooks are yet to hear of: leased, delivered, deleted.

A lease is a try and a time: the process that has it calls the hooks without a transaction open, and what it
writes afterwards counts only if nobody has leased the event since.
"""

from __future__ import annotations

import uuid
from typing import Final, NamedTuple

from queue_workflows.repositories.runs.outbox import LONGEST_BACKOFF_S, RUN_FINISHED
from queue_workflows.repositories.sql.connection import Handle, Statements

# Literals, so that a generic plan knows how few rows these are.
_LEASED_AT_ONCE: Final = 10
FORGOTTEN_AT_ONCE: Final = 1_000
_DUE: Final = f"""SELECT id FROM workflow_dispatch_events
    WHERE kind = '{RUN_FINISHED}' AND poisoned_at IS NULL AND next_try_at <= statement_timestamp()
    ORDER BY next_try_at"""  # noqa: S608 - a word of our own
# due: those that nobody has leased, the oldest first.
LEASE: Final = f"""
WITH due AS MATERIALIZED (
    {_DUE}
    LIMIT {_LEASED_AT_ONCE}
    FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE workflow_dispatch_events SET
    tries = tries + 1, next_try_at = statement_timestamp() + make_interval(secs => %(lease_s)s::float8)
WHERE id = ANY (ARRAY(SELECT id FROM due))
RETURNING id, run_id, tries, payload::text
"""  # noqa: S608 - fragments of our own
DELIVERED: Final = """
DELETE FROM workflow_dispatch_events WHERE id = %(id)s::bigint AND tries = %(tries)s::integer RETURNING id
"""
FAILED: Final = """
UPDATE workflow_dispatch_events SET
    last_error = %(error)s::text,
    next_try_at = statement_timestamp() + make_interval(
        secs => LEAST(%(backoff_s)s::float8 * 2.0 ^ LEAST(tries - 1, 20), %(longest_s)s::float8)),
    poisoned_at = CASE WHEN tries >= %(max_tries)s::integer THEN statement_timestamp() END
WHERE id = %(id)s::bigint AND tries = %(tries)s::integer
RETURNING poisoned_at IS NOT NULL
"""
FORGET: Final = f"""
WITH due AS MATERIALIZED (
    {_DUE}
    LIMIT {FORGOTTEN_AT_ONCE}
    FOR UPDATE SKIP LOCKED
)
DELETE FROM workflow_dispatch_events WHERE id = ANY (ARRAY(SELECT id FROM due)) RETURNING id
"""  # noqa: S608 - fragments of our own


class LeasedEnd(NamedTuple):
    """The end of a run, for as long as its lease lasts; `tries` tells this lease from others.

    `was` is how it ended, JSON, where the run has been retried since.
    """

    event_id: int
    run_id: uuid.UUID
    tries: int
    was: str


class FinishedRunRepository:
    """On the caller's connection, each statement a transaction of its own."""

    def __init__(self, conn: Handle) -> None:
        self._sql = Statements(conn, "workflow_dispatch_events")

    def lease(self, *, lease_s: float) -> list[LeasedEnd]:
        """Ends that are due, nobody else's for so long."""
        return [LeasedEnd(*row) for row in self._sql.rows(LEASE, {"lease_s": lease_s})]

    def delivered(self, end: LeasedEnd) -> None:
        """All hooks have heard of it."""
        self._sql.rows(DELIVERED, {"id": end.event_id, "tries": end.tries})

    def failed(self, end: LeasedEnd, error: str, *, max_tries: int, backoff_s: float) -> bool:
        """A hook raised: try again later; whether it was put aside for good instead."""
        params = {
            "id": end.event_id,
            "tries": end.tries,
            "error": error,
            "max_tries": max_tries,
            "backoff_s": backoff_s,
            "longest_s": LONGEST_BACKOFF_S,
        }
        return any(row[0] for row in self._sql.rows(FAILED, params))

    def forget(self) -> int:
        """Delete what is due where there are no hooks, at most `FORGOTTEN_AT_ONCE`; how many."""
        return len(self._sql.rows(FORGET, {}))
