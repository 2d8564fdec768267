"""What a worker says when it was taken for dead: that it lives, and that none of its jobs has killed it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from queue_workflows.repositories.sql.arrays import array, fence_params
from queue_workflows.repositories.sql.claimed_job import ClaimedJob
from queue_workflows.repositories.sql.connection import Handle, Statements
from queue_workflows.repositories.sql.families import BY_NAME, per_family

# given: the attempts of such a worker. said: what the sweeper that took them for dead wrote of them, in this
# generation, also where that was an excuse, as those are counted. The row forgets it, unless it is doubted
# for another death as well; the entries stay, and say that they were withdrawn. What is over stays as it is,
# and so does a row of which more was said meanwhile.
WITHDRAW: Final = per_family("""
WITH given AS MATERIALIZED (
    SELECT * FROM unnest(
        %(ids)s::bigint[], %(attempts)s::integer[], %(workers)s::text[], %(generations)s::integer[]
    ) AS given (id, attempt, claimed_by, generation)
), said AS MATERIALIZED (
    SELECT job.id, job.errors AS before,
        count(*) FILTER (WHERE is_its AND entry @> '{"counted": true}') AS counted,
        count(*) FILTER (WHERE is_doubt AND NOT is_its) AS doubts,
        jsonb_agg(CASE WHEN is_its THEN entry || '{"withdrawn": true}' ELSE entry END ORDER BY nth) AS errors
    FROM given JOIN {table} AS job ON job.id = given.id AND job.generation = given.generation,
        LATERAL jsonb_array_elements(job.errors) WITH ORDINALITY AS said (entry, nth),
        LATERAL (SELECT entry -> 'withdrawn' IS NULL AND (
            entry ->> 'kind' = 'suspect' OR entry @> '{"doubted": true}' OR entry @> '{"counted": true}'
        ) AS is_doubt) AS doubt,
        LATERAL (SELECT (is_doubt OR entry -> 'excused_in' IS NOT NULL AND entry -> 'withdrawn' IS NULL)
            AND entry ->> 'worker_id' = given.claimed_by
            AND entry -> 'attempt' = to_jsonb(given.attempt) AS is_its) AS its
    WHERE job.id = ANY (%(ids)s::bigint[])
    GROUP BY job.id
    HAVING bool_or(is_its)
), locked AS MATERIALIZED (
    SELECT job.id FROM {table} AS job
    WHERE job.id = ANY (ARRAY(SELECT id FROM said)) AND job.status IN ({open})
    ORDER BY job.id
    FOR NO KEY UPDATE
)
UPDATE {table} AS job SET
    crash_count = GREATEST(job.crash_count - said.counted, 0), suspect = job.suspect AND said.doubts > 0,
    errors = said.errors
FROM said
WHERE job.id = ANY (ARRAY(SELECT id FROM locked)) AND job.id = said.id
    AND job.errors = said.before
RETURNING job.id
""")


def withdraw_doubts(conn: Handle, jobs: Sequence[ClaimedJob]) -> int:
    """Take back what these attempts' lapses counted, and what is suspected for them; of how many jobs."""
    if not jobs:
        return 0
    ordered = sorted({job.fence: job for job in jobs}.values(), key=lambda job: job.fence)
    family = BY_NAME[ordered[0].family]
    params = fence_params([job.fence for job in ordered]) | {
        "generations": array(str(job.generation) for job in ordered)
    }
    return len(Statements(conn, family.table).rows(WITHDRAW[family.name], params))
