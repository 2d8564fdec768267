"""What a worker does for the jobs it holds, and learns about them: renew, beat, watch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from queue_workflows.repositories.sql.families import NODE, per_family
from queue_workflows.repositories.workers.control import HOLDS, STRICTEST_FIRST, VERSION, Control

# given: the fences.
_GIVEN: Final = """given AS MATERIALIZED (
    SELECT *, 'running' AS held FROM unnest(%(ids)s::bigint[], %(attempts)s::integer[], %(workers)s::text[])
        AS given (id, attempt, claimed_by)
)"""
# A renewal learns of a cancel too, and from what is missing in the answer which leases are lost.
RENEW: Final = per_family(
    """
WITH {given}
UPDATE {table} AS job SET
    lease_expires_at = statement_timestamp() + make_interval(secs => %(lease_s)s::float8)
FROM given
WHERE {fence} AND {asynchronously}
RETURNING job.id, job.cancel_requested_at
""",
    given=_GIVEN,
)
# A claim that a crash of the server has undone, as it was not on disk, is made once more by the worker that
# is at the job. Attempts never go back: a row that waits with the number before has not been claimed since.
# What another worker has claimed meanwhile is that worker's.
# given: the fences, and when each claim was made.
CLAIM_AGAIN: Final = per_family("""
WITH given AS MATERIALIZED (
    SELECT *, 'running' AS held FROM unnest(
        %(ids)s::bigint[], %(attempts)s::integer[], %(workers)s::text[], %(started)s::timestamptz[]
    ) AS given (id, attempt, claimed_by, started_at)
)
UPDATE {table} AS job SET
    status = 'running', attempt = given.attempt, claimed_by = given.claimed_by, started_at = given.started_at,
    lease_expires_at = statement_timestamp() + make_interval(secs => %(lease_s)s::float8)
FROM given
WHERE job.id = ANY (%(ids)s::bigint[]) AND job.id = given.id AND (
    (job.attempt, job.status) IS NOT DISTINCT FROM (given.attempt - 1, 'queued')
    OR (job.attempt, job.claimed_by, job.status)
        IS NOT DISTINCT FROM (given.attempt, given.claimed_by, given.held)
)
RETURNING job.id
""")
# given: the fences with what their jobs report.
BEAT: Final = per_family(
    """
WITH given AS MATERIALIZED (
    SELECT *, 'running' AS held FROM unnest(
        %(ids)s::bigint[], %(attempts)s::integer[], %(workers)s::text[], %(progress)s::text[]
    ) AS given (id, attempt, claimed_by, progress)
)
UPDATE {table} AS job SET progress = given.progress::jsonb
FROM given
WHERE {fence} AND {asynchronously}
RETURNING job.id, job.cancel_requested_at
"""
)
# seen: the first in line, as few as can be read at once; of hooks those that this host may claim. aside: of
# them those that have one of these names (of tasks, of modules, of locks), but for what somebody is claiming,
# and none of fewer than a crowd; by id, where the planner might else read all that is queued.
# A row's delay is its own, so that not all come back at one moment; `started_at` says since when it is on
# hold, as after a claim.
PUT_ASIDE_AT_ONCE: Final = 4_000
_SEEN: Final = """SELECT id, {by} AS name FROM {table}
    WHERE status = 'queued' AND queue = %(queue)s::text
    ORDER BY priority DESC, position
    LIMIT {at_once}"""
_SEEN_HOOKS: Final = """SELECT job.id, job.name
    FROM (VALUES (%(host)s::text), ('*'), ('')) AS place (host)
    CROSS JOIN (VALUES (false), (true)) AS kind (background)
    CROSS JOIN LATERAL (
        SELECT id, {by} AS name FROM {table}
        WHERE COALESCE(status = 'queued' AND queue = 'hooks', false)
            AND COALESCE(pinned_host, '') = place.host
            AND background = kind.background
        ORDER BY priority DESC, position
        LIMIT {at_once}
    ) AS job"""
_PUT_ASIDE: Final = """
WITH seen AS MATERIALIZED (
    {seen}
), aside AS MATERIALIZED (
    SELECT id FROM {table}
    WHERE id = ANY (ARRAY(SELECT id FROM seen WHERE name = ANY (%(names)s::text[])))
        AND COALESCE(status = 'queued', false)
        AND (SELECT count(*) FROM seen WHERE name = ANY (%(names)s::text[])) >= %(crowd)s::bigint
    FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE {table} AS job SET
    status = 'scheduled', hold_reason = %(reason)s::text, hold_key = {by},
    run_at = statement_timestamp() + make_interval(secs => %(delay_s)s::float8 * (1 + random())),
    started_at = statement_timestamp()
WHERE id = ANY (ARRAY(SELECT id FROM aside))
RETURNING id, limit_key
"""


def _put_aside(seen: str, by: str) -> Mapping[str, str]:
    sql = _PUT_ASIDE.replace("{seen}", seen).replace("{by}", by)
    return per_family(sql, at_once=str(PUT_ASIDE_AT_ONCE))


PUT_ASIDE: Final = _put_aside(_SEEN, "{kind}")
PUT_LOCKED_ASIDE: Final = _put_aside(_SEEN, "host_lock")
PUT_LOCKED_HOOKS_ASIDE: Final = _put_aside(_SEEN_HOOKS, "host_lock")[NODE.name]
# held: each fence, whether it holds, and whether somebody wants the job cancelled. control: what the operator
# wants of this worker, by the predicate that every reader of `worker_control` uses; with the version of all
# that was looked at. one: a row even where there is none.
WATCH: Final = per_family(
    """
WITH {given}, held AS MATERIALIZED (
    SELECT given.id, job.id IS NOT NULL AS ours, job.cancel_requested_at IS NOT NULL AS cancelled
    FROM given LEFT JOIN {table} AS job ON {fence}
)
SELECT
    ARRAY(SELECT id FROM held WHERE cancelled), ARRAY(SELECT id FROM held WHERE NOT ours), {version},
    control.desired, control.version, control.host_label, control.queue, control.reason, control.actor,
    control.expires_at
FROM (VALUES (1)) AS one
LEFT JOIN LATERAL (
    SELECT * FROM worker_control WHERE {holds} ORDER BY {strictest_first} LIMIT 1
) AS control ON true
""",
    given=_GIVEN,
    holds=HOLDS,
    strictest_first=STRICTEST_FIRST,
    version=VERSION,
)
# In the order of an index each: an EXISTS could read the table. Jobs on hold are those of any queue.
FIND: Final = per_family("""
SELECT (
    SELECT true FROM {table} WHERE status = 'queued' AND queue = %(queue)s::text
    ORDER BY priority DESC, position LIMIT 1
) IS NOT NULL, ARRAY(
    SELECT reason FROM unnest(%(reasons)s::text[]) AS given (reason)
    WHERE (
        SELECT true FROM {table} WHERE hold_reason = given.reason AND hold_key > ''
        ORDER BY hold_key LIMIT 1
    ) IS NOT NULL
)
""")


@dataclass(frozen=True, slots=True)
class Found:
    """Whether a queue has queued jobs, and of some reasons those for which jobs are on hold."""

    queued: bool
    held: frozenset[str]


@dataclass(frozen=True, slots=True)
class Watched:
    """The answer to a guard: jobs to cancel, leases that are lost, the operator's wish (None: on).

    `control_version` is that of the latest change of anybody's wishes that this answer takes into account.
    """

    cancelled: frozenset[int]
    lost: frozenset[int]
    control_version: int
    control: Control | None
