"""The jobs that run in the names of some workers, found by the index of what runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from queue_workflows.repositories.sql import checks as check
from queue_workflows.repositories.sql.arrays import texts
from queue_workflows.repositories.sql.connection import Handle, Statements
from queue_workflows.repositories.sql.families import FAMILIES, per_family
from queue_workflows.repositories.sql.table import LONGEST_PAGE

# The last column: whether the job may begin only once and has, so that it cannot be given back.
AT_WORK: Final = per_family(
    """
SELECT '{name}', id, {title_column}, queue, claimed_by, attempt, started_at, lease_expires_at, limit_key,
    host_lock, begun_generation IS NOT DISTINCT FROM generation
FROM {table}
WHERE status = 'running' AND claimed_by = ANY (%(workers)s::text[])
ORDER BY started_at, id
LIMIT %(limit)s::bigint
""",
    title_column={"node": "node_id", "ingest": "task_name"},
)
# How many, and of these how many cannot be given back.
COUNTED: Final = per_family("""
SELECT count(*), count(*) FILTER (WHERE begun_generation IS NOT DISTINCT FROM generation)
FROM {table}
WHERE status = 'running' AND claimed_by = ANY (%(workers)s::text[])
""")

# What runs on a host, whatever is known of its workers: a worker's id begins with the host's label.
ON_HOST: Final = per_family(
    """
SELECT '{name}', id, {title_column}, queue, claimed_by, attempt, started_at, lease_expires_at, limit_key,
    host_lock, begun_generation IS NOT DISTINCT FROM generation
FROM {table}
WHERE status = 'running' AND split_part(claimed_by, ':', 1) = %(host)s::text
ORDER BY started_at, id
LIMIT %(limit)s::bigint
""",
    title_column={"node": "node_id", "ingest": "task_name"},
)
COUNTED_ON_HOST: Final = per_family("""
SELECT count(*) FROM {table}
WHERE status = 'running' AND split_part(claimed_by, ':', 1) = %(host)s::text
""")


@dataclass(frozen=True, slots=True)
class JobAtWork:
    """A job that a worker holds; `begun_once` ends as failed where another would be given back."""

    family: str
    id: int
    title: str
    queue: str
    worker_id: str
    attempt: int
    since: datetime
    lease_expires_at: datetime
    limit_key: str | None
    host_lock: str | None
    begun_once: bool

    @property
    def name(self) -> str:
        """The job, as commands take it."""
        return f"{self.family}:{self.id}"


@dataclass(frozen=True, slots=True)
class HeldCount:
    """How many jobs some workers hold, and how many of these have begun for their only time."""

    jobs: int
    begun_once: int


class AtWorkRepository:
    """Reads on the caller's connection; what runs is few, whatever waits or is over."""

    def __init__(self, conn: Handle) -> None:
        self._sql = Statements(conn, "ingest_jobs")

    def of(self, workers: Iterable[str], *, limit: int) -> list[JobAtWork]:
        """What these workers hold, the longest first, of both families."""
        most = check.whole("limit", limit, 1, LONGEST_PAGE)
        return self._longest_first(AT_WORK, {"workers": texts(workers), "limit": most})

    def on(self, host_label: str, *, limit: int) -> list[JobAtWork]:
        """What runs on a host, the longest first, of both families."""
        most = check.whole("limit", limit, 1, LONGEST_PAGE)
        return self._longest_first(ON_HOST, {"host": check.text("host_label", host_label), "limit": most})

    def _longest_first(self, statements: Mapping[str, str], params: Mapping[str, Any]) -> list[JobAtWork]:
        found = [
            JobAtWork(*row) for family in FAMILIES for row in self._sql.rows(statements[family.name], params)
        ]
        return sorted(found, key=lambda one: (one.since, one.family, one.id))[: params["limit"]]

    def count_on(self, host_label: str) -> int:
        """How many jobs run on a host."""
        params = {"host": check.text("host_label", host_label)}
        return sum(int(self._sql.rows(COUNTED_ON_HOST[family.name], params)[0][0]) for family in FAMILIES)

    def count(self, workers: Iterable[str]) -> HeldCount:
        """How many there are."""
        params = {"workers": texts(workers)}
        counts = [self._sql.rows(COUNTED[family.name], params)[0] for family in FAMILIES]
        return HeldCount(sum(row[0] for row in counts), sum(row[1] for row in counts))
