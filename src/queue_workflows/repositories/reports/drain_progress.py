"""What became of a queue's jobs since a moment, and what is left of them: for a command that works it off."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from queue_workflows.repositories.limits.lanes import LIMIT_FULL
from queue_workflows.repositories.sql.connection import Handle, Rows, Statements
from queue_workflows.repositories.sql.families import Family, per_family
from queue_workflows.states import JobStatus

# Each by the index of its status; what is over, by when it ended.
OUTCOMES: Final = per_family(
    """
SELECT 'queued', count(*) FROM {table} WHERE status = 'queued' AND queue = %(queue)s::text
UNION ALL
SELECT '{limit_full}', count(*) FROM {table}
WHERE hold_reason = '{limit_full}' AND queue = %(queue)s::text
UNION ALL
SELECT 'running', count(*) FROM {table} WHERE status = 'running' AND queue = %(queue)s::text
UNION ALL
SELECT status, count(*) FROM {source}
WHERE finished_at >= %(since)s::timestamptz AND queue = %(queue)s::text
GROUP BY status
""".replace("{limit_full}", LIMIT_FULL)
)
# By the reason of the hold; else whether a failure of this while is what they wait after. Without a name the
# attempts of those that have been tried meanwhile and may be claimed again.
PUT_OFF: Final = per_family("""
SELECT NULL, COALESCE(sum(attempt), 0) FROM {table}
WHERE status = 'queued' AND queue = %(queue)s::text AND started_at >= %(since)s::timestamptz
UNION ALL
SELECT COALESCE(
        hold_reason,
        CASE WHEN failures > 0 AND started_at >= %(since)s::timestamptz THEN 'retry' ELSE 'later' END
    ),
    count(*)
FROM {table}
WHERE status = 'scheduled' AND queue = %(queue)s::text
GROUP BY 1
""")
RETRY: Final = "retry"
LATER: Final = "later"


@dataclass(frozen=True, slots=True)
class Outcomes:
    """`ended` by status since the moment; `put_off` by reason: that of a hold, `retry` or `later`.

    `laned` are those of the latter that only wait for a slot of their limit. `tried`, if asked for,
    grows with each attempt at a job that is queued again.
    """

    queued: int = 0
    running: int = 0
    laned: int = 0
    tried: int = 0
    ended: Counter[str] = field(default_factory=Counter)
    put_off: Counter[str] = field(default_factory=Counter)


class OutcomeRepository:
    """Counts on the caller's connection; changes nothing."""

    def __init__(self, conn: Handle, family: Family) -> None:
        self._sql = Statements(conn, family.table)
        self._family = family.name

    def now(self) -> datetime:
        """The moment, by the clock that ends are written with."""
        (row,) = self._sql.rows("SELECT statement_timestamp()", {})
        moment: datetime = row[0]
        return moment

    def read(self, queue: str, since: datetime, *, put_off: bool = False) -> Outcomes:
        """What is there and what ended; `put_off` only if asked for, as there may be a million of it."""
        params = {"queue": queue, "since": since}
        counts = Counter(_pairs(self._sql.rows(OUTCOMES[self._family], params)))
        waiting = _pairs(self._sql.rows(PUT_OFF[self._family], params)) if put_off else {}
        queued, running = counts.pop(JobStatus.QUEUED, 0), counts.pop(JobStatus.RUNNING, 0)
        laned = counts.pop(LIMIT_FULL, 0)
        tried = int(waiting.pop(None, 0))
        return Outcomes(queued, running, laned, tried, counts, Counter(waiting))


def _pairs(rows: Rows) -> dict[Any, int]:
    return {row[0]: row[1] for row in rows}
