"""Where a job that came out of a lane stands in its queue: not behind a long backlog of jobs without a key.

    let out, at the end    u1  u2  u3  u4 … u90000  k1  k2  k3
    moved up               u1  k1  u2  k2  u3  k3  u4 … u90000

A job that stands more than `NEAR` jobs behind the head moves up, to right behind an unkeyed job that nobody
else has moved up behind. So jobs with a key and without go about one to one, however many keys and workers
there are. Nobody passes a job that was enqueued before it: ids say so. Where no unkeyed job is so near, a
worker that claims from the queue moves it up behind all of these `NEAR`, next time behind the `NEAR` after
them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from queue_workflows.repositories.sql.families import per_family
from queue_workflows.repositories.sql.low_water_marks import PRIORITIES, UNMARKED, Marks, marks_text

# How far a place is looked for, and how many move up at once; a job with fewer in front stays.
NEAR: Final = 128
# How many of a key may stand in the queue if they are claimed in batches: twice the last, up to this.
LONGEST_FRONT: Final = 400
# What of a key stands in a queue, by the words of the index of keys. Said as the claim says it, it would let
# the planner take the claim's index, with all that is queued, where it expects next to nothing to be.
IN_FRONT: Final = "COALESCE(status = 'queued', false)"

# out: the jobs that came out of the lanes of some keys, the keys in turn. line: the next jobs of each queue
# and priority in which one of them stands far back, behind what was claimed or moved up last; free is a job
# that has no key and nobody from a lane at the place behind it. ends: the last of each line that is long
# enough. moved: what stands behind it, and was enqueued before the job that is next there. locked: but for
# what is being claimed; by id, as without statistics the planner would also read an index of all that is
# queued. What is reckoned stays below a place that came out of the sequence, as others may be the last of
# all.
ADVANCE: Final = per_family(
    """
WITH out AS MATERIALIZED (
    SELECT job.*,
        CASE queue WHEN %(queue)s::text THEN (%(reached)s::bigint[])[10 - priority] ELSE 0 END AS reached
    FROM unnest(%(keys)s::text[]) AS given (key)
    CROSS JOIN LATERAL (
        SELECT id, queue, priority, position, row_number() OVER (ORDER BY position) AS nth
        FROM (
            SELECT id, queue, priority, position FROM {table}
            WHERE {in_front} AND limit_key = given.key AND {came_out}
            LIMIT {longest_front}
        ) AS front
    ) AS job
), line AS MATERIALIZED (
    SELECT waited.queue, waited.priority, job.*
    FROM (
        SELECT queue, priority, reached FROM out WHERE position - {near} > reached
        GROUP BY queue, priority, reached
    ) AS waited
    CROSS JOIN LATERAL (
        SELECT id, position, limit_key IS NULL AND taken IS NOT TRUE AS is_free,
            row_number() OVER (ORDER BY position, id) AS number
        FROM (
            SELECT id, position, limit_key, bool_or(limit_key IS NOT NULL AND {came_out}) OVER (
                ORDER BY position RANGE BETWEEN 1 FOLLOWING AND 1 FOLLOWING
            ) AS taken
            FROM (
                SELECT id, position, limit_key, past_holds FROM {table}
                WHERE status = 'queued' AND queue = waited.queue AND priority = waited.priority
                    AND position > waited.reached
                ORDER BY position
                LIMIT {near}
            ) AS next
        ) AS next
    ) AS job
), places AS MATERIALIZED (
    SELECT queue, priority, id, position, row_number() OVER (
        PARTITION BY queue, priority ORDER BY number
    ) AS turn
    FROM line WHERE is_free
), ends AS MATERIALIZED (
    SELECT queue, priority, id, position FROM line WHERE number = {near}
), moved AS MATERIALIZED (
    SELECT out.id, COALESCE(places.position, out.last) + 1 AS position
    FROM (
        SELECT out.*, ends.id AS last_id, ends.position AS last,
            row_number() OVER (PARTITION BY queue, priority ORDER BY out.nth, out.id) AS turn
        FROM out JOIN ends USING (queue, priority)
        WHERE out.position - 1 > ends.position
    ) AS out
    LEFT JOIN places USING (queue, priority, turn)
    WHERE turn <= {near}
        AND COALESCE(places.id, CASE queue WHEN %(queue)s::text THEN out.last_id END) > out.id
), locked AS MATERIALIZED (
    SELECT id FROM {table}
    WHERE id = ANY (ARRAY(SELECT id FROM moved)) AND COALESCE(status = 'queued', false)
    FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE {table} AS job SET position = (SELECT moved.position FROM moved WHERE moved.id = job.id)
WHERE job.id = ANY (ARRAY(SELECT id FROM locked))
RETURNING job.queue, job.priority, job.position
""",
    in_front=IN_FRONT,
    came_out="past_holds -> -1 ->> 'reason' = 'limit_full'",
    near=str(NEAR),
    longest_front=str(LONGEST_FRONT),
)


class Reached:
    """How far one queue has come, per priority: by one worker's claims, and by what it has moved up.

    So what moves up stands above that worker's marks. Others, with marks that may be higher, find it when
    they look at everything, like what was given back.
    """

    def __init__(self, queue: str = "") -> None:
        self._queue = queue
        self._moved = list(UNMARKED)
        self._marks: Marks | None = None

    def by(self, marks: Marks) -> None:
        """These learn from the claims."""
        self._marks = marks

    def params(self, keys: str) -> dict[str, Any]:
        """What the statement is given for these keys."""
        claimed = UNMARKED if self._marks is None else self._marks.reached
        return {
            "keys": keys,
            "queue": self._queue,
            "reached": marks_text([max(pair) for pair in zip(claimed, self._moved, strict=True)]),
        }

    def moved(self, rows: Sequence[Sequence[Any]]) -> None:
        """The queue, priority and place of each that moved up."""
        for queue, priority, position in rows:
            if queue == self._queue:
                place = PRIORITIES.index(priority)
                self._moved[place] = max(self._moved[place], position - 1)
