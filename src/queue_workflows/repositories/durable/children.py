"""Which jobs a durable function has spawned, and what became of them."""

from __future__ import annotations

from collections.abc import Iterable
from json import loads
from typing import Any, Final, NamedTuple

from queue_workflows.repositories.durable.steps import FENCED
from queue_workflows.repositories.sql.arrays import id_array
from queue_workflows.repositories.sql.claimed_job import Fence
from queue_workflows.repositories.sql.connection import AsyncHandle, Handle, Statements
from queue_workflows.repositories.sql.families import per_family
from queue_workflows.states import JobStatus

HOLD: Final = per_family(
    "SELECT job.cancel_requested_at IS NOT NULL FROM {table} AS job WHERE {fenced} FOR NO KEY UPDATE",
    fenced=FENCED,
)
# Only what the spawn has made: a cancel of its parent reaches it.
ADOPT: Final = """
UPDATE ingest_jobs SET spawned_by = %(parent)s::text
WHERE id = ANY (%(ids)s::bigint[]) AND spawned_by IS NULL AND finished_at IS NULL
RETURNING id
"""
ENDS: Final = """
SELECT id, status, result::text, (errors -> -1)::text, spawned_by IS NOT DISTINCT FROM %(parent)s::text
FROM ingest_jobs WHERE id = ANY (%(ids)s::bigint[])
"""


class ChildEnd(NamedTuple):
    """What became of a spawned job, or what it is at; `is_own` if its end is told to the asking parent."""

    id: int
    status: JobStatus
    result: Any
    error: dict[str, Any] | None
    is_own: bool


class ChildRepository:
    """The spawned jobs of one parent, as in `ingest:7`, on the caller's connection."""

    def __init__(self, conn: Handle | AsyncHandle) -> None:
        self._sql = Statements(conn, "ingest_jobs")

    def hold(self, family: str, fence: Fence) -> bool | None:
        """Keep the job from others until the transaction ends; None if the attempt holds it no more.

        Whether it is cancelled: what it spawns then, nobody would cancel.
        """
        rows = self._sql.rows(HOLD[family], fence._asdict())
        return bool(rows[0][0]) if rows else None

    def adopt(self, parent: str, ids: Iterable[int]) -> None:
        """Have the ends of these jobs, which it has made, told to their parent, and its cancel reach them."""
        self._sql.rows(ADOPT, {"parent": parent, "ids": id_array(ids)})

    def ends(self, parent: str, ids: Iterable[int]) -> dict[int, ChildEnd]:
        """What became of these jobs, by their ids; one that was pruned is missing."""
        rows = self._sql.rows(ENDS, {"parent": parent, "ids": id_array(ids)})
        return {
            row[0]: ChildEnd(row[0], JobStatus(row[1]), _read(row[2]), _read(row[3]), row[4]) for row in rows
        }


def _read(text: str | None) -> Any:
    return None if text is None else loads(text)
