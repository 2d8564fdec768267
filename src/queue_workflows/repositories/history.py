"""Ingest jobs that are over, by months: moved there, brought back, and dropped with their month.

Functions of the database do it with their owner's rights, as a role that works has none to make or drop a
table, and by the columns that are there, whatever code calls them.
"""

from __future__ import annotations

from datetime import datetime
from typing import Final, NamedTuple

from queue_workflows.repositories.sql.connection import Handle, Statements

# Whether rows move or come back, and since when; no row where nobody has ever asked for it.
MODE: Final = "SELECT is_partitioned, changed_at FROM history_modes WHERE family = 'ingest'"
# From the first row on again: some may have been brought back meanwhile.
SET_MODE: Final = """
INSERT INTO history_modes AS mode (family, is_partitioned) VALUES ('ingest', %(by_months)s::boolean)
ON CONFLICT (family) DO UPDATE
SET is_partitioned = excluded.is_partitioned, moved_before = NULL, changed_at = statement_timestamp()
WHERE mode.is_partitioned <> excluded.is_partitioned
RETURNING family
"""
MOVE: Final = """
SELECT moved, seen_to, is_more FROM qwf_history_move(
    %(since)s::timestamptz, statement_timestamp() - make_interval(secs => %(after_s)s::float8)
)
"""
BRING_SOME_BACK: Final = "SELECT last FROM qwf_history_bring_some_back(%(after)s::bigint)"
DROP_MONTH: Final = """
SELECT qwf_history_drop_month(statement_timestamp() - make_interval(secs => %(kept_s)s::float8))
"""
# By the catalog: how many rows the planner believes to be in each.
MONTHS: Final = """
SELECT right(relname, 7), GREATEST(reltuples, 0)::bigint
FROM pg_inherits JOIN pg_class ON pg_class.oid = inhrelid
WHERE inhparent = to_regclass('ingest_jobs_history')
ORDER BY relname
"""
# Of a host app, as the engine has none: its rows would go, or lose their job, with each job that moves.
REFERENCES: Final = """
SELECT conrelid::regclass::text, conname::text FROM pg_constraint
WHERE contype = 'f' AND confrelid = to_regclass('ingest_jobs')
ORDER BY 1, 2
"""
# Whether anything is left to bring back; as little is read as there is.
IS_LEFT: Final = "SELECT EXISTS (SELECT FROM ingest_jobs_history)"


class Mode(NamedTuple):
    """In which direction jobs move, and since when."""

    is_by_months: bool
    changed_at: datetime


class Moved(NamedTuple):
    """How many jobs a batch moved, up to where it looked, None if none are to move; whether to go on."""

    jobs: int
    seen_to: datetime | None
    is_more: bool


class Month(NamedTuple):
    """A month of history, as `2026_10`, and about how many jobs it has."""

    name: str
    jobs: int


class Reference(NamedTuple):
    """A foreign key on ingest jobs, and the table that has it."""

    table: str
    name: str


class HistoryRepository:
    """The history by months on the caller's connection; what moves rows is a transaction of its own."""

    def __init__(self, conn: Handle) -> None:
        self._sql = Statements(conn, "history_modes")

    def mode(self) -> Mode | None:
        """Whether what is over moves there, or comes back; None if it never did."""
        rows = self._sql.rows(MODE, {})
        return Mode(*rows[0]) if rows else None

    def set_by_months(self, by_months: bool) -> bool:
        """Say which; whether that is a change."""
        return bool(self._sql.rows(SET_MODE, {"by_months": by_months}))

    def move(self, since: datetime | None, *, after_s: float) -> Moved:
        """Move a batch of what ended so many seconds ago or earlier, beginning at a moment or at the mark."""
        return Moved(*self._sql.rows(MOVE, {"since": since, "after_s": after_s})[0])

    def bring_some_back(self, after: int) -> int | None:
        """Bring back a batch, in the order of ids; the last of these, None if nothing follows."""
        last: int | None = self._sql.rows(BRING_SOME_BACK, {"after": after})[0][0]
        return last

    def drop_month(self, *, kept_s: float) -> str | None:
        """Drop a month that ended so long ago, or that is empty when rows come back; its table's name."""
        dropped: str | None = self._sql.rows(DROP_MONTH, {"kept_s": kept_s})[0][0]
        return dropped

    def months(self) -> list[Month]:
        """What is there, the oldest first."""
        return [Month(*row) for row in self._sql.rows(MONTHS, {})]

    def references(self) -> list[Reference]:
        """The foreign keys that forbid that any job is moved."""
        return [Reference(*row) for row in self._sql.rows(REFERENCES, {})]

    def is_left(self) -> bool:
        """Whether any job is in the history."""
        return bool(self._sql.rows(IS_LEFT, {})[0][0])
