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
# Whether any is not over, and whether the ends of all these are told to their parent; nothing else is read.
STANDING: Final = """
SELECT count(*) > 0, COALESCE(bool_and(spawned_by IS NOT DISTINCT FROM %(parent)s::text), true)
FROM ingest_jobs WHERE id = ANY (%(ids)s::bigint[]) AND finished_at IS NULL
"""
# As it would be stored, about: each with its id, its status and commas.
SIZE: Final = """
SELECT COALESCE(sum(
    40 + COALESCE(octet_length(result::text), 0) + COALESCE(octet_length((errors -> -1)::text), 0)
), 0)::bigint
FROM ingest_jobs WHERE id = ANY (%(ids)s::bigint[])
"""
# Last whether it is as retention leaves what stays for its key.
ENDS: Final = """
SELECT id, status, result::text, (errors -> -1)::text,
    dedupe_key IS NOT NULL AND result IS NULL AND args = '{}' AND errors = '[]' AND progress IS NULL
FROM ingest_jobs WHERE id = ANY (%(ids)s::bigint[])
"""
# Of these the ones that were over for longer than results are kept when they became children; what is waited
# for is left as it is.
EMPTIED: Final = """
SELECT id FROM ingest_jobs AS job
WHERE id = ANY (%(ids)s::bigint[]) AND finished_at < (
    SELECT min(step.started_at) FROM durable_steps AS step
    WHERE step.job_family = %(family)s::text AND step.job_id = %(job_id)s::bigint AND step.child_id = job.id
) - make_interval(secs => %(kept_s)s::float8)
"""


class ChildEnd(NamedTuple):
    """What became of a spawned job; `is_bare` if it has a key and nothing else."""

    id: int
    status: JobStatus
    result: Any
    error: dict[str, Any] | None
    is_bare: bool


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

    def standing(self, parent: str, ids: Iterable[int]) -> tuple[bool, bool]:
        """Whether any of these is not over, and whether the ends of those are all told to their parent."""
        any_open, are_own = self._sql.rows(STANDING, {"parent": parent, "ids": id_array(ids)})[0]
        return any_open, are_own

    def size(self, ids: Iterable[int]) -> int:
        """How many bytes their results have together."""
        return int(self._sql.rows(SIZE, {"ids": id_array(ids)})[0][0])

    def ends(self, ids: Iterable[int]) -> dict[int, ChildEnd]:
        """What became of these jobs, by their ids; one that was pruned is missing."""
        rows = self._sql.rows(ENDS, {"ids": id_array(ids)})
        return {
            row[0]: ChildEnd(row[0], JobStatus(row[1]), _read(row[2]), _read(row[3]), row[4]) for row in rows
        }

    def emptied(self, family: str, job_id: int, ids: Iterable[int], *, kept_s: float) -> set[int]:
        """Of these children of a job the ones that had lost their result before it spawned them."""
        params = {"family": family, "job_id": job_id, "ids": id_array(ids), "kept_s": kept_s}
        return {row[0] for row in self._sql.rows(EMPTIED, params)}


def _read(text: str | None) -> Any:
    return None if text is None else loads(text)
