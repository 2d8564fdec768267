"""The steps of a job for people: as they are stored, and what it waits for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from queue_workflows.repositories.sql.connection import Handle, Rows
from queue_workflows.repositories.sql.table import Repository, Table

if TYPE_CHECKING:
    from queue_workflows.models import DurableStep

TABLE: Final[Table[DurableStep]] = Table("durable_steps")
# So many steps of a job are read; a loop without an end may have stored more.
MOST_STEPS: Final = 1_000
# The last of them, with what the job waits for, in the order in which they were called.
STEPS: Final = TABLE.sql(
    """
SELECT {columns} FROM (
    SELECT {columns} FROM durable_steps
    WHERE job_family = %(family)s::text AND job_id = %(id)s::bigint
    ORDER BY status = 'waiting' DESC, position DESC, name, call
    LIMIT {most}
) AS durable_steps
ORDER BY position, name, call
""".replace("{most}", str(MOST_STEPS))
)
# Of the children that a job waits for, how many are not over.
OPEN_CHILDREN: Final = """
SELECT count(*) FILTER (WHERE child.id IS NOT NULL), count(*)
FROM durable_steps AS step
CROSS JOIN LATERAL jsonb_array_elements_text(step.result -> 'children') AS spawned (id)
LEFT JOIN ingest_jobs AS child ON child.id = spawned.id::bigint AND child.finished_at IS NULL
WHERE step.job_family = %(family)s::text AND step.job_id = %(id)s::bigint
    AND step.kind = 'children' AND step.status = 'waiting'
"""


# Of several jobs what they wait for, of each the last; of children none is read.
WAITING: Final = TABLE.sql(
    """
SELECT {columns} FROM unnest(%(ids)s::bigint[]) AS job (id)
CROSS JOIN LATERAL (
    SELECT {columns} FROM durable_steps
    WHERE job_family = %(family)s::text AND job_id = job.id AND status = 'waiting'
    ORDER BY position DESC, name, call
    LIMIT 20
) AS durable_steps
"""
)
# `OPEN_CHILDREN`, of several jobs.
OPEN_CHILDREN_OF_EACH: Final = """
SELECT step.job_id, count(*) FILTER (WHERE child.id IS NOT NULL), count(*)
FROM durable_steps AS step
CROSS JOIN LATERAL jsonb_array_elements_text(step.result -> 'children') AS spawned (id)
LEFT JOIN ingest_jobs AS child ON child.id = spawned.id::bigint AND child.finished_at IS NULL
WHERE step.job_family = %(family)s::text AND step.job_id = ANY (%(ids)s::bigint[])
    AND step.kind = 'children' AND step.status = 'waiting'
GROUP BY step.job_id
"""


class OpenChildren(NamedTuple):
    """How many children a job waits for, and how many of these are not over."""

    open: int
    all: int


def steps_of(rows: Rows) -> list[DurableStep]:
    """Steps, as `STEPS` brings them."""
    return TABLE.load(rows)


class StepListing(Repository["DurableStep"]):
    """Reads steps on the caller's connection."""

    _table = TABLE

    def __init__(self, conn: Handle) -> None:
        super().__init__(conn)

    def of(self, family: str, job_id: int) -> list[DurableStep]:
        """The steps of a job, in the order in which they were called."""
        return self._all(STEPS, {"family": family, "id": job_id})
