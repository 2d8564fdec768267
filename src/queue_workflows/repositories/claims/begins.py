"""The moment before a job's function begins, written down where its worker's death must not hide it.

A claim says that a worker has a job, which may wait in that worker or be given back. Of a job that
begins at most once it has to be known whether its function has begun: so that stands in the row, and on disk,
before the first line of the function runs. From then on no statement lets the row wait again: one that would
have it ended by its table; see decision 0030.

A suspect's begin is written down too, as the number of its attempt below zero, which keeps nothing from
waiting again: whether its worker's death can be its doing depends on it; see decision 0029.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from queue_workflows.errors import LeaseLost
from queue_workflows.repositories.sql import checks as check
from queue_workflows.repositories.sql.arrays import fence_params
from queue_workflows.repositories.sql.claimed_job import ClaimedJob
from queue_workflows.repositories.sql.connection import Handle, Statements
from queue_workflows.repositories.sql.families import BY_NAME, per_family

# given: the fence. What the function's registration says beyond the row goes into the row, as the process
# that takes the job back may not know the function. `started_at` is that of this very claim: a server that
# crashed may have forgotten one of the same worker with the same number.
BEGIN: Final = per_family("""
WITH given AS MATERIALIZED (
    SELECT *, 'running' AS held FROM unnest(%(ids)s::bigint[], %(attempts)s::integer[], %(workers)s::text[])
        AS given (id, attempt, claimed_by)
)
UPDATE {table} AS job SET
    at_most_once = job.at_most_once OR %(at_most_once)s::boolean,
    max_attempts = CASE WHEN job.at_most_once OR %(at_most_once)s::boolean THEN 1 ELSE job.max_attempts END,
    begun_generation = CASE WHEN job.at_most_once OR %(at_most_once)s::boolean THEN job.generation
        ELSE -job.attempt END,
    max_crashes = COALESCE(job.max_crashes, %(max_crashes)s::smallint),
    lease_expires_at = statement_timestamp() + make_interval(secs => %(lease_s)s::float8)
FROM given
WHERE {fence} AND job.started_at = %(started_at)s::timestamptz AND {synchronously}
RETURNING job.id
""")


class Rules(NamedTuple):
    """What a function's registration says of crashes of its jobs, and of how often they may begin."""

    max_crashes: int | None = None
    at_most_once: bool = False

    def say_more_than(self, job: ClaimedJob) -> bool:
        """Whether the job's row does not have all of this."""
        return (self.at_most_once and not job.at_most_once) or (
            self.max_crashes is not None and job.max_crashes is None
        )


NO_RULES: Final = Rules()


def begin(conn: Handle, job: ClaimedJob, rules: Rules, *, lease_s: float) -> None:
    """Write down that a held job begins, with its function's rules, or raise `LeaseLost`.

    It bears being asked twice, as the answer to the first time may be lost.
    """
    family = BY_NAME[job.family]
    params = fence_params([job.fence]) | {
        "lease_s": check.seconds("lease_s", lease_s),
        "max_crashes": rules.max_crashes,
        "at_most_once": rules.at_most_once,
        "started_at": job.started_at,
    }
    if not Statements(conn, family.table).rows(BEGIN[family.name], params):
        raise LeaseLost(family.title, job.id, job.attempt)
