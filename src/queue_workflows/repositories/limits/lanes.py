"""Lanes: where jobs of a limit's key wait while enough of that key stand in the queue already.

                 ┌─ fewer than FRONT of its key in the queue, and no lane ──> queued
    enqueued ────┤
                 └─ else ──> the lane: scheduled, `limit_full`, with its key ──admitted──> queued, at the end,
                                                          and moved up before a long backlog (`lane_turns`)

A key has a lane in each queue that has such jobs. Its jobs come out one by one, as there is room for them:
when a slot of the key is given back, when a job of the key was claimed, when the cap is raised. So a million
jobs of one key never stand in front of anybody's, and keys take turns, each by a few jobs at a time. Nobody
has to walk over what may not run.

A worker that frees a slot looks for the lane after its commit; a producer that put a job into the lane looks
for a free slot after its own. So one of them sees the other, and the maintenance tick finds what a crash
between the two has left.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from queue_workflows.repositories.limits.in_force import CAP
from queue_workflows.repositories.limits.lane_turns import ADVANCE, IN_FRONT, LONGEST_FRONT, Reached
from queue_workflows.repositories.sql.arrays import array, texts
from queue_workflows.repositories.sql.checks import LONGEST_S
from queue_workflows.repositories.sql.connection import Handle, Statements
from queue_workflows.repositories.sql.families import FAMILIES, IN_TURN, Family, per_family

LIMIT_FULL: Final = "limit_full"
# How many of a key may stand in the queue before others have to wait in its lane.
FRONT: Final = 16
# How many go into the lane at once, and how many lanes a tick looks at.
MOVED_AT_ONCE: Final = 4000
MENDED_AT_ONCE: Final = 1000
# No sweep promotes what is in a lane.
LANE_DELAY_S: Final = LONGEST_S
LANE_RUN_AT: Final = f"statement_timestamp() + make_interval(secs => {LANE_DELAY_S})"

# What is in a lane, by the words of the index of holds. Only what is scheduled has a reason to wait; to say
# so would let the planner take the index of what is due, where it expects next to nothing to be scheduled.
IN_LANE: Final = "hold_reason = 'limit_full'"

# others: what stands in any queue beside a job that found its key full. They move by id: without statistics
# the planner would also read an index of all that is queued.
MOVE_OTHERS: Final = per_family(
    """
WITH others AS MATERIALIZED (
    SELECT job.id FROM unnest(%(keys)s::text[]) AS full_key (key)
    CROSS JOIN LATERAL (
        SELECT id FROM {table}
        WHERE {in_front} AND limit_key = full_key.key
        LIMIT {at_once}
        FOR NO KEY UPDATE SKIP LOCKED
    ) AS job
    LIMIT {at_once}
)
UPDATE {table} AS job SET
    status = 'scheduled', hold_reason = 'limit_full', hold_key = job.limit_key,
    run_at = {lane_run_at}
WHERE job.id = ANY (ARRAY(SELECT id FROM others)) AND COALESCE(job.status = 'queued', false)
RETURNING job.id
""",
    in_front=IN_FRONT,
    at_once=str(MOVED_AT_ONCE),
    lane_run_at=LANE_RUN_AT,
)
# back: jobs that came into the queue many at once, as by a retry. room: how many of each key may stand there,
# none where it has a lane. surplus: those behind them.
MOVE_SURPLUS: Final = per_family(
    """
WITH back AS MATERIALIZED (
    SELECT id, queue, limit_key, priority, position FROM {table}
    WHERE id = ANY (%(ids)s::bigint[]) AND status = 'queued' AND limit_key IS NOT NULL
    ORDER BY id
    FOR NO KEY UPDATE SKIP LOCKED
), room AS MATERIALIZED (
    SELECT queue, limit_key, CASE
        WHEN (
            SELECT true FROM {table} AS lane
            WHERE {in_lane} AND hold_key = given.limit_key AND lane.queue = given.queue LIMIT 1
        ) IS NOT NULL THEN 0
        ELSE {front} + given.jobs - (
            SELECT count(*) FROM (
                SELECT FROM {table} AS front
                WHERE {in_front} AND front.limit_key = given.limit_key
                    AND front.queue = given.queue
                LIMIT {front} + given.jobs
            ) AS front
        )
    END AS room
    FROM (SELECT queue, limit_key, count(*) AS jobs FROM back GROUP BY queue, limit_key) AS given
), surplus AS MATERIALIZED (
    SELECT id FROM (
        SELECT *, row_number() OVER (PARTITION BY queue, limit_key ORDER BY priority DESC, position) AS nth
        FROM back
    ) AS back JOIN room USING (queue, limit_key)
    WHERE nth > room
)
UPDATE {table} AS job SET
    status = 'scheduled', hold_reason = 'limit_full', hold_key = job.limit_key, run_at = {lane_run_at}
WHERE job.id = ANY (ARRAY(SELECT id FROM surplus)) AND job.status = 'queued'
RETURNING job.id
""",
    in_lane=IN_LANE,
    in_front=IN_FRONT,
    front=str(FRONT),
    lane_run_at=LANE_RUN_AT,
)
# given: keys, with how many of each were claimed or ended just now. lane: each queue in which the key has a
# lane. queues: these, found by a jump through the index from one to the next. capped: how many slots of a key
# are not held, less one that is left to the other family where that has a lane and nobody in front, and this
# one took the last slot; with `for_the_other` it lets out nothing of a key of which this family took the last
# slot. crowded: each lane with the place of its first job, and how many stand in front of it. roomy: how many
# may come out, where a key with several lanes leaves a slot to each that is older and has nobody in front.
# next: these jobs. placed: at the end of the queue, the keys in turn.
ADMIT: Final = per_family(
    """
WITH given AS MATERIALIZED (
    SELECT * FROM unnest(%(keys)s::text[], %(counts)s::integer[]) AS given (key, recent)
), lane AS MATERIALIZED (
    SELECT given.key, given.recent, lane.queue
    FROM given CROSS JOIN LATERAL (
        WITH RECURSIVE queues AS (
            (
                SELECT queue FROM {table} WHERE {in_lane} AND hold_key = given.key
                ORDER BY queue LIMIT 1
            )
            UNION ALL
            SELECT (
                SELECT after.queue FROM {table} AS after
                WHERE {in_lane} AND after.hold_key = given.key AND after.queue > queues.queue
                ORDER BY after.queue LIMIT 1
            )
            FROM queues WHERE queues.queue IS NOT NULL
        )
        SELECT queue FROM queues WHERE queue IS NOT NULL
    ) AS lane
), capped AS MATERIALIZED (
    SELECT key, cap - held.slots - CASE
        WHEN held.last IS DISTINCT FROM '{name}'
            OR (SELECT true FROM {other} WHERE {in_lane} AND hold_key = key LIMIT 1) IS NULL
            OR (SELECT true FROM {other} WHERE {in_front} AND limit_key = key LIMIT 1) THEN 0
        ELSE 1
    END AS free
    FROM (SELECT key, {cap} AS cap FROM (SELECT DISTINCT key FROM lane) AS keys) AS capped
    CROSS JOIN LATERAL (
        SELECT count(*) FILTER (WHERE lease_expires_at > statement_timestamp()) AS slots,
            (array_agg(job_family ORDER BY acquired_at DESC))[1] AS last
        FROM limit_slots WHERE cap IS NOT NULL AND limit_key = key
    ) AS held
    WHERE NOT %(for_the_other)s::boolean OR held.last <> '{name}'
), crowded AS MATERIALIZED (
    SELECT lane.key, lane.queue, lane.recent, capped.free,
        (
            SELECT position FROM {table} AS head
            WHERE {in_lane} AND hold_key = lane.key AND head.queue = lane.queue
            ORDER BY priority DESC, position LIMIT 1
        ) AS head,
        (
            SELECT count(*) FROM (
                SELECT FROM {table} AS front
                WHERE {in_front} AND front.limit_key = lane.key AND front.queue = lane.queue
                LIMIT {longest_front}
            ) AS front
        ) AS front
    FROM lane JOIN capped USING (key)
), roomy AS MATERIALIZED (
    SELECT key, queue, LEAST(
        GREATEST({front}, LEAST(2 * recent, {longest_front})),
        free - (sum((front = 0)::integer) OVER older - (front = 0)::integer)
    ) - front AS room
    FROM crowded
    WINDOW older AS (PARTITION BY key ORDER BY head, queue)
), next AS MATERIALIZED (
    SELECT job.id, job.nth FROM roomy CROSS JOIN LATERAL (
        SELECT id, row_number() OVER () AS nth FROM (
            SELECT id FROM {table}
            WHERE {in_lane} AND hold_key = roomy.key AND queue = roomy.queue
            ORDER BY priority DESC, position
            LIMIT GREATEST(roomy.room, 0)
            FOR NO KEY UPDATE SKIP LOCKED
        ) AS job
    ) AS job
    WHERE roomy.room > 0
), placed AS MATERIALIZED (
    SELECT id, nextval('{sequence}') AS position FROM (SELECT id FROM next ORDER BY nth, id) AS next
)
UPDATE {table} AS job SET
    status = 'queued', position = placed.position, run_at = statement_timestamp(),
    past_holds = {past_holds}, hold_reason = NULL, hold_key = NULL
FROM placed
WHERE job.id = ANY (ARRAY(SELECT id FROM placed)) AND job.id = placed.id
RETURNING job.id
""",
    in_lane=IN_LANE,
    in_front=IN_FRONT,
    cap=CAP.replace("{key}", "key"),
    front=str(FRONT),
    longest_front=str(LONGEST_FRONT),
)
# keys: the next ones after a key that have a lane in some queue, each found by a jump.
LANES: Final = per_family(
    """
WITH RECURSIVE keys AS (
    (
        SELECT hold_key, 1 AS number FROM {table} WHERE {in_lane} AND hold_key > %(after)s::text AND {in_turn}
        ORDER BY hold_key LIMIT 1
    )
    UNION ALL
    SELECT (
        SELECT next.hold_key FROM {table} AS next WHERE {in_lane} AND next.hold_key > keys.hold_key
        ORDER BY next.hold_key LIMIT 1
    ), number + 1
    FROM keys WHERE keys.hold_key IS NOT NULL AND number < {at_once}
)
SELECT hold_key FROM keys WHERE hold_key IS NOT NULL
""",
    in_lane=IN_LANE,
    in_turn=IN_TURN,
    at_once=str(MENDED_AT_ONCE),
)


class LaneRepository:
    """The lanes of one family's jobs, on the caller's connection."""

    def __init__(self, conn: Handle, family: Family) -> None:
        self._sql = Statements(conn, family.table)
        self._name = family.name
        self._other = next(other.name for other in FAMILIES if other is not family)

    def move_others(self, keys: Iterable[str]) -> int:
        """Put into the lanes what stands in the queues of both families for full keys; how many.

        Of each family at most `MOVED_AT_ONCE`. A family or queue with a few in front all the time would else
        have each slot before the others, which have to be woken.
        """
        params = {"keys": texts(sorted(set(keys)))}
        return sum(len(self._sql.rows(sql, params)) for sql in MOVE_OTHERS.values())

    def admit(self, recent: Mapping[str, int] | Iterable[str], reached: Reached | None = None) -> int:
        """Let out of the lanes of these keys what there is room for; how many.

        `recent` says how many jobs of a key were claimed or ended just now, so that a key which is worked on
        in batches does not wait for its jobs one by one; `reached` is how far a queue has come.
        """
        params = admit_params(recent)
        return self._admitted(self._name, params, reached or Reached())

    def admit_freed(self, recent: Mapping[str, int] | Iterable[str], reached: Reached | None = None) -> None:
        """`admit` after slots were given back, also for the other family's lanes where that one is next."""
        self.admit(recent, reached)
        self._admitted(self._other, admit_params(recent, for_the_other=True), Reached())

    def send_admit(self, recent: Mapping[str, int], reached: Reached) -> Callable[[], None]:
        """`admit_freed` in a pipeline, without waiting for the answers; what to call when it is over."""
        params = admit_params(recent)
        self._sql.send(ADMIT[self._name], params)
        moved = self._sql.ask(ADVANCE[self._name], reached.params(params["keys"]))
        others = self._sql.ask(ADMIT[self._other], admit_params(recent, for_the_other=True))

        def done() -> None:
            reached.moved(moved())
            if others():
                self._sql.rows(ADVANCE[self._other], Reached().params(params["keys"]))

        return done

    def _admitted(self, name: str, params: dict[str, Any], reached: Reached) -> int:
        if admitted := len(self._sql.rows(ADMIT[name], params)):
            reached.moved(self._sql.rows(ADVANCE[name], reached.params(params["keys"])))
        return admitted

    def mend(self, after: str) -> str:
        """Let out what there is room for, lane by lane from a key on; where it stopped, empty at the end.

        Jobs that came out before and found no place near the head have another try.
        """
        keys = self.keys(after, in_turn=True)
        if keys:
            self._sql.rows(ADMIT[self._name], admit_params(keys))
            self._sql.rows(ADVANCE[self._name], Reached().params(texts(keys)))
        return keys[-1] if len(keys) == MENDED_AT_ONCE else ""

    def keys(self, after: str = "", *, in_turn: bool = False) -> list[str]:
        """The next keys that have a lane in some queue; `in_turn` leaves them to a sweep that runs now."""
        rows = self._sql.rows(LANES[self._name], {"after": after, "in_turn": in_turn})
        return [key for (key,) in rows]


def admit_params(recent: Mapping[str, int] | Iterable[str], *, for_the_other: bool = False) -> dict[str, Any]:
    """Keys in one order, each with its count; `for_the_other` is for the lanes of the other family."""
    counts = dict(recent) if isinstance(recent, Mapping) else dict.fromkeys(recent, 0)
    keys: Sequence[str] = sorted(counts)
    return {
        "keys": texts(keys),
        "counts": array(str(counts[key]) for key in keys),
        "for_the_other": for_the_other,
    }


def counted(keys: Iterable[str | None]) -> dict[str, int]:
    """How many there are of each key; jobs without one need nothing."""
    return dict(Counter(key for key in keys if key is not None))
