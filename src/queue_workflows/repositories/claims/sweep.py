"""The sweeps that every worker, orchestrator and scheduler runs: promote what is due, reclaim what lapsed.

What a lapse counts. A job is blamed for the death of its worker only if it was alone with it:

    its worker held it alone      crash_count + 1, suspect from now on; `failed` at max_crashes
    its worker held several       nothing, but all of them are suspect
    the database was away since its last renewal, or the worker ended for a reason of its own     nothing
    all workers of its host fell silent together, two or more     nothing, `max_crashes` - 1 times at the
        most; it is suspect from the second time on, and after that the first two lines hold
    it is a suspect, and its worker had not written that it begins     nothing, four times at the most: a
        machine with too much to do had no answer to the claim, or no time for it

A job that begins at most once and has begun ends as `failed` in each of these cases: nobody knows how far
it came.

A suspect is claimed alone, and after whatever is not suspect: it goes to the end of its queue. (A hook keeps
its place, as its run waits for it.)

Whether a worker held several is asked of the rows that are still running, and sweeps may take them apart: one
lease lapses before another, a batch is full, two sweepers share them, the families have a statement each. So
a sweep that takes a job of several from a worker marks the others as it does, for their present attempt.

A worker of hooks holds many, each a process of its own, and listeners for as long as their runs last. So one
shared death makes no suspect of a hook, `TRUSTED` of them do, and one that has shared `_MOST_SHARED` is given
up, as background hooks are seldom alone. Beside a suspect of the foreground nobody else is doubted; beside
one of the background, on trial there, no other of the background that has been a suspect. See decision 0024.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from queue_workflows.repositories.limits.lane_turns import IN_FRONT
from queue_workflows.repositories.limits.lanes import FRONT, IN_LANE, LANE_RUN_AT, LIMIT_FULL
from queue_workflows.repositories.sql import checks as check
from queue_workflows.repositories.sql.arrays import texts
from queue_workflows.repositories.sql.families import IN_TURN, per_family
from queue_workflows.repositories.sql.table import LONGEST_PAGE
from queue_workflows.settings import check_queue_name
from queue_workflows.states import JobStatus

# Literals, so that a generic plan knows how few rows these are.
PROMOTED_AT_ONCE: Final = 500
RECLAIMED_AT_ONCE: Final = 200

# What the sweeps look for; `qwf explain` asks by the same words.
DUE: Final = "status = 'scheduled' AND run_at <= statement_timestamp()"
LAPSED: Final = "lease_expires_at < statement_timestamp()"

# due: in the order in which they fell due, by walking the index: the planner does not see how many at most,
# and takes that for a tenth. Of a table without statistics it would else expect few, read all and sort them.
# placed: the retries among them go to the end of the queue, in that order; what was on hold keeps its place.
# A job goes into its key's lane where the key has one, or enough in front; not by EXISTS, which the planner
# may turn into a hash of all lanes.
PROMOTE: Final = per_family(
    """
WITH due AS MATERIALIZED (
    SELECT id, hold_reason, position, limit_key, queue FROM {table}
    WHERE {due} AND {in_turn}
    ORDER BY run_at
    LIMIT (SELECT {at_once})
    FOR NO KEY UPDATE SKIP LOCKED
), placed AS MATERIALIZED (
    SELECT id, CASE WHEN hold_reason IS NULL THEN nextval('{sequence}') ELSE position END AS position,
        CASE WHEN limit_key IS NULL THEN false ELSE (
            (
                SELECT true FROM {table} AS lane
                WHERE {in_lane} AND hold_key = due.limit_key AND lane.queue = due.queue LIMIT 1
            ) IS NOT NULL
            OR due.nth + (
                SELECT count(*) FROM (
                    SELECT FROM {table} AS front
                    WHERE {in_front} AND front.limit_key = due.limit_key AND front.queue = due.queue
                    LIMIT {front}
                ) AS front
            ) > {front}
        ) END AS laned
    FROM (SELECT *, row_number() OVER (PARTITION BY queue, limit_key) AS nth FROM due LIMIT {at_once}) AS due
)
UPDATE {table} AS job SET
    status = CASE WHEN placed.laned THEN 'scheduled' ELSE 'queued' END,
    run_at = CASE WHEN placed.laned THEN {lane_run_at} ELSE job.run_at END,
    hold_reason = CASE WHEN placed.laned THEN '{limit_full}' END,
    hold_key = CASE WHEN placed.laned THEN job.limit_key END,
    position = placed.position, past_holds = {past_holds}
FROM placed
WHERE job.id = ANY (ARRAY(SELECT id FROM placed)) AND job.id = placed.id
RETURNING job.id
""",
    due=DUE,
    in_turn=IN_TURN,
    at_once=str(PROMOTED_AT_ONCE),
    in_lane=IN_LANE,
    in_front=IN_FRONT,
    front=str(FRONT),
    lane_run_at=LANE_RUN_AT,
    limit_full=LIMIT_FULL,
)
# freed: what waited for one of these keys, in the order in which it would be claimed, which is that of the
# index for each key: a worker that frees one slot reads one row of the thousands that wait.
PROMOTE_HELD: Final = per_family(
    """
WITH freed AS MATERIALIZED (
    SELECT job.id FROM unnest(%(keys)s::text[]) AS freed (key)
    CROSS JOIN LATERAL (
        SELECT id, priority, position FROM {table}
        WHERE hold_reason = %(reason)s::text AND hold_key = freed.key
            AND queue = %(queue)s::text
        ORDER BY priority DESC, position
        LIMIT %(limit)s::bigint
        FOR NO KEY UPDATE SKIP LOCKED
    ) AS job
    ORDER BY job.priority DESC, job.position
    LIMIT %(limit)s::bigint
)
UPDATE {table} AS job SET
    status = 'queued', run_at = statement_timestamp(), past_holds = {past_holds},
    hold_reason = NULL, hold_key = NULL
WHERE job.id = ANY (ARRAY(SELECT id FROM freed))
RETURNING job.id
"""
)

# keys: each key that some job waits for, found by a jump to the next one in the index. waiting: the first of
# the queue; by order, as for a LIMIT alone the planner would read the table.
HELD_KEYS: Final = per_family(
    """
WITH RECURSIVE keys AS (
    (
        SELECT hold_key FROM {table} WHERE hold_reason = %(reason)s::text
            AND hold_key IS NOT NULL
        ORDER BY hold_key LIMIT 1
    )
    UNION ALL
    SELECT (
        SELECT next.hold_key FROM {table} AS next
        WHERE next.hold_reason = %(reason)s::text
            AND next.hold_key > keys.hold_key
        ORDER BY next.hold_key LIMIT 1
    ) FROM keys WHERE keys.hold_key IS NOT NULL
)
SELECT keys.hold_key FROM keys
CROSS JOIN LATERAL (
    SELECT FROM {table} AS job
    WHERE job.hold_reason = %(reason)s::text AND job.hold_key = keys.hold_key
        AND job.queue = %(queue)s::text
    ORDER BY job.priority DESC, job.position LIMIT 1
) AS waiting
WHERE keys.hold_key IS NOT NULL
LIMIT %(limit)s::bigint
"""
)

# The mark that a job carries for the attempt in which its worker lost another one.
_MARK: Final = "jsonb_build_array(jsonb_build_object('kind', 'suspect', 'attempt', attempt))"
# How many deaths a hook has shared until it is claimed alone, and given up; fewer than errors are kept of it,
# each with a mark of suspicion. A background hook has its whole run's deaths, and seldom such a mark.
TRUSTED: Final = 2
_MOST_SHARED: Final = 5
_MOST_SHARED_BEHIND: Final = 9
# Of a hook: the shared deaths of this generation that its errors tell.
SHARED_BEFORE: Final = """CASE WHEN queue = 'hooks' THEN jsonb_array_length(jsonb_path_query_array(
            errors, '$[*] ? (@.kind == "worker_lost" && @.shared_in == $generation)',
            jsonb_build_object('generation', generation))) END"""
# How often it was excused in this generation that a whole host was silent, or that a suspect had not begun,
# as a job's errors tell; not what a host that came back has withdrawn. There are fewer excuses than errors
# are kept, whatever `max_crashes` is.
_EXCUSED_BEFORE: Final = """jsonb_array_length(jsonb_path_query_array(
            errors, '$[*] ? (@.excused_in == $generation && !exists(@.withdrawn))',
            jsonb_build_object('generation', generation)))"""
_MOST_SILENT: Final = 5
# lapsed: rows to take back. workers: how many jobs each of their holders has, of both families, and whether
# one of them is a suspect, or one on trial in the background. judged: which job is to blame, which shares (1)
# a death that it may be to blame for, and what becomes of the row. own_beside, other_beside: what else these
# workers hold, in this family and in the other one. own_marked, other_marked: suspect from now on, and in
# this attempt not to blame. ended: back to its place in the queue, unless it is cancelled, has killed too
# many workers, or has begun and may not begin again.
_RECLAIM: Final = """
WITH lapsed AS MATERIALIZED (
    SELECT id, claimed_by, crash_count, cancel_requested_at, suspect, {shared_before} AS shared_before,
        COALESCE(max_crashes, %(max_crashes)s::integer) AS max_crashes,
        begun_generation IS NOT DISTINCT FROM generation AS has_begun, {unbegun} AS is_unbegun,
        {is_background} AS is_behind,
        CASE WHEN {is_background} THEN {most_shared_behind} ELSE {most_shared} END AS most_shared,
        errors @> {mark} AS marked, {blameless} AS is_excused, {together} AS is_silent, {excused} AS excused
    FROM {table}
    WHERE status = 'running' AND {lapsed} AND {ours}
    LIMIT {at_once}
    FOR NO KEY UPDATE SKIP LOCKED
), workers AS MATERIALIZED (
    SELECT claimed_by,
        (SELECT count(*) FROM {table} AS job
            WHERE job.status = 'running' AND job.claimed_by = worker.claimed_by)
        + (SELECT count(*) FROM {other} AS job
            WHERE job.status = 'running' AND job.claimed_by = worker.claimed_by) AS jobs,
        EXISTS (SELECT FROM {table} AS job WHERE job.status = 'running'
            AND job.claimed_by = worker.claimed_by AND job.suspect AND NOT {is_background}) AS has_suspect,
        EXISTS (SELECT FROM {table} AS job WHERE job.status = 'running'
            AND job.claimed_by = worker.claimed_by AND job.suspect AND {is_background}) AS has_trial
    FROM (SELECT DISTINCT claimed_by FROM lapsed) AS worker
), judged AS MATERIALIZED (
    SELECT id, claimed_by, blameless, crash_count + (NOT blameless AND alone)::integer AS crashes,
        NOT blameless AND alone AS counted, NOT blameless AND NOT alone AS shared, shares, most_shared,
        has_begun, is_silent, together, unbegun,
        shares >= COALESCE({trusted} - shared_before, 0) AND shares > 0
            OR together AND excused > 0 AND shared_before IS NULL AS doubted,
        CASE
            WHEN cancel_requested_at IS NOT NULL THEN 'cancelled'
            WHEN has_begun THEN 'failed'
            WHEN NOT blameless AND alone AND crash_count + 1 >= max_crashes THEN 'failed'
            WHEN shares > 0 AND shared_before + shares >= most_shared THEN 'failed'
            ELSE 'queued'
        END AS status
    FROM lapsed JOIN workers USING (claimed_by),
        LATERAL (SELECT is_silent AND NOT is_excused
            AND excused < GREATEST(LEAST(max_crashes, {most_silent}) - 1, 1) AS together) AS silence,
        LATERAL (SELECT is_unbegun AND NOT is_excused AND NOT together
            AND excused < {most_silent} - 1 AS unbegun) AS delay,
        LATERAL (SELECT is_excused OR together OR unbegun AS blameless) AS excuse,
        LATERAL (SELECT jobs <= 1 AND NOT marked AS alone) AS was,
        LATERAL (SELECT (NOT blameless AND NOT alone AND (shared_before IS NULL OR CASE
            WHEN NOT is_behind THEN suspect OR NOT has_suspect
            ELSE NOT has_suspect AND (suspect OR NOT has_trial OR shared_before < {trusted})
        END))::integer AS shares) AS part
), own_beside AS MATERIALIZED (
    SELECT id FROM {table}
    WHERE status = 'running' AND claimed_by = ANY (ARRAY(SELECT claimed_by FROM judged WHERE shared))
        AND id <> ALL (ARRAY(SELECT id FROM lapsed)) AND NOT errors @> {mark}
    FOR NO KEY UPDATE SKIP LOCKED
), own_marked AS (
    UPDATE {table} AS job SET suspect = job.suspect OR job.queue <> 'hooks',
        errors = {errors} || jsonb_build_object(
        'kind', 'suspect', 'message', 'its worker lost another of its jobs while it ran',
        'attempt', job.attempt, 'worker_id', job.claimed_by, 'at', statement_timestamp())
    WHERE job.id = ANY (ARRAY(SELECT id FROM own_beside))
), other_beside AS MATERIALIZED (
    SELECT id FROM {other}
    WHERE status = 'running' AND claimed_by = ANY (ARRAY(SELECT claimed_by FROM judged WHERE shared))
        AND id <> ALL ('{empty}'::bigint[]) AND NOT errors @> {mark}
    FOR NO KEY UPDATE SKIP LOCKED
), other_marked AS (
    UPDATE {other} AS job SET suspect = job.suspect OR job.queue <> 'hooks',
        errors = {errors} || jsonb_build_object(
        'kind', 'suspect', 'message', 'its worker lost another of its jobs while it ran',
        'attempt', job.attempt, 'worker_id', job.claimed_by, 'at', statement_timestamp())
    WHERE job.id = ANY (ARRAY(SELECT id FROM other_beside))
), ended AS (
    UPDATE {table} AS job SET
        status = judged.status, lease_expires_at = NULL,
        claimed_by = CASE WHEN judged.status <> 'queued' THEN job.claimed_by END,
        finished_at = CASE WHEN judged.status <> 'queued' THEN statement_timestamp() END,
        position = CASE WHEN judged.status = 'queued' AND job.queue <> 'hooks'
            AND (judged.counted OR judged.doubted) THEN nextval('{sequence}') ELSE job.position END,
        crash_count = judged.crashes, suspect = job.suspect OR judged.counted OR judged.doubted,
        errors = {errors} || (jsonb_build_object(
            'kind', 'worker_lost', 'message', CASE
                WHEN judged.status = 'failed' AND judged.has_begun
                    THEN 'its worker was lost after it had begun, and it begins at most once'
                WHEN judged.status = 'failed' AND judged.shared THEN format('%%s workers died while it ran'
                    ' beside other hooks: it ends them, or one of those does', judged.most_shared)
                WHEN judged.status = 'failed' THEN format(
                    'it killed its worker %%s times, each time running alone', judged.crashes)
                WHEN judged.counted AND judged.is_silent THEN 'its host fell silent again, with all of its'
                    ' workers, and it ran alone on its worker'
                WHEN judged.counted THEN 'its worker died while it ran alone'
                WHEN judged.shared THEN 'its worker died while it held several jobs'
                WHEN judged.together THEN 'its host fell silent, with all of its workers'
                WHEN judged.unbegun THEN 'its lease lapsed before it had begun'
                ELSE {excuse}
            END || CASE WHEN judged.blameless OR {how} = '' THEN '' ELSE ': ' || {how} END,
            'counted', judged.counted, 'since', job.started_at,
            'at', statement_timestamp(), 'attempt', job.attempt,
            'worker_id', job.claimed_by)
            || CASE WHEN judged.doubted THEN jsonb_build_object('doubted', true) ELSE '{empty}' END
            || CASE WHEN judged.together OR judged.unbegun
                THEN jsonb_build_object('excused_in', job.generation) ELSE '{empty}' END
            || CASE WHEN job.queue = 'hooks' AND judged.shares > 0
                THEN jsonb_build_object('shared_in', job.generation) ELSE '{empty}' END)
    FROM judged
    WHERE job.id = ANY (ARRAY(SELECT id FROM judged)) AND job.id = judged.id
    RETURNING {ended}, judged.claimed_by AS lost_worker, judged.counted, job.suspect, job.queue
){events}
SELECT id, status, attempt, lost_worker, counted, suspect, queue FROM ended
"""
# Whether the server came back since: statistics that it threw away say so too, which it does when it recovers
# from a crash without a new postmaster. And what the sweeper itself saw of an outage.
_WAS_AWAY: Final = """(SELECT GREATEST(
        pg_postmaster_start_time(), (SELECT stats_reset FROM pg_stat_archiver),
        statement_timestamp() - make_interval(secs => %(recovered_s)s::float8)
    )) > GREATEST(
        started_at, lease_expires_at - make_interval(secs => %(lease_s)s::float8)
    )"""
# one: the worker with the lapsed lease, silent for so long that another of its host would have been heard
# since. One that was there at the same time and was heard last when it was says that it is the host, unless
# anybody was heard of there later. An incarnation that followed another says nothing of it.
# apart: how far the last beats of a host may lie apart. Two by the clock; and as a worker with too much to do
# beats late, up to four, where half of the silence is longer than that.
_TOGETHER: Final = """EXISTS (
        SELECT FROM worker_heartbeats AS one, LATERAL (
            SELECT make_interval(secs => %(beat_s)s::float8) AS beat
        ) AS every, LATERAL (
            SELECT GREATEST(
                2 * every.beat, LEAST(4 * every.beat, (statement_timestamp() - one.last_seen) / 2)
            ) AS apart
        ) AS beats
        WHERE one.worker_id = {table}.claimed_by AND one.last_seen < statement_timestamp() - 3 * every.beat
            AND EXISTS (
                SELECT FROM worker_heartbeats AS beside
                WHERE beside.host_label = one.host_label AND beside.worker_id <> one.worker_id
                    AND beside.last_seen > one.last_seen - beats.apart
                    AND beside.started_at < one.last_seen AND beside.last_seen > one.started_at
            ) AND NOT EXISTS (
                SELECT FROM worker_heartbeats AS later
                WHERE later.host_label = one.host_label AND later.last_seen > one.last_seen + beats.apart
            )
    )"""
# A worker writes that the function of a suspect begins. Where its supervisor takes jobs back it knows by
# itself what had begun; of hooks in the background nothing is written.
_UNBEGUN: Final = "suspect AND queue <> 'hooks' AND begun_generation IS DISTINCT FROM -attempt"
_SHARED: Final = {
    "mark": _MARK,
    "shared_before": SHARED_BEFORE,
    "trusted": str(TRUSTED),
    "most_shared": str(_MOST_SHARED),
    "most_shared_behind": str(_MOST_SHARED_BEHIND),
    "most_silent": str(_MOST_SILENT),
    "empty": "{}",
    "at_once": str(RECLAIMED_AT_ONCE),
}
RECLAIM: Final = per_family(
    _RECLAIM,
    lapsed=LAPSED,
    ours=IN_TURN,
    blameless=_WAS_AWAY,
    together=_TOGETHER,
    unbegun=_UNBEGUN,
    excused=_EXCUSED_BEFORE,
    excuse="'its lease lapsed while the database was away'",
    how="''",
    **_SHARED,
)
RECLAIM_WORKER: Final = per_family(
    _RECLAIM,
    lapsed="claimed_by = %(worker_id)s::text",
    ours="id <> ALL (%(kept)s::bigint[])",
    blameless="NOT %(crashed)s::boolean",
    together="false",
    unbegun="false",
    excused="0",
    excuse="'its worker ended without giving it back'",
    how="%(how)s::text",
    **_SHARED,
)


@dataclass(frozen=True, slots=True)
class Reclaimed:
    """A job taken from a worker that is gone: what became of it, and whether it is blamed for that."""

    id: int
    status: JobStatus
    attempt: int
    lost_worker: str
    counted: bool
    suspect: bool
    queue: str


def reclaimed(rows: Sequence[Sequence[Any]]) -> list[Reclaimed]:
    """What a reclaim took."""
    return [Reclaimed(row[0], JobStatus(row[1]), *row[2:]) for row in rows]


def promotion_params(reason: str, keys: Iterable[str], *, queue: str, limit: int) -> dict[str, Any]:
    """What a statement is given that queues what waits for one of some keys."""
    return {
        "reason": check.text("reason", reason),
        # They may be what a row says it waits for, which can be anything.
        "keys": texts(dict.fromkeys(keys)),
        "queue": check_queue_name(queue),
        "limit": check.whole("limit", limit, 1, LONGEST_PAGE),
    }
