"""The claim of workers that keep models loaded: the same as any other, in another order.

    priority
      └─ the oldest, if this worker has passed others for long enough  (turn 0)
         └─ jobs with a model that this worker has loaded               (turn 1)
            └─ all of them, but what an idle worker has loaded          (turn 2)
               └─ host_priority, from the end that this host prefers
                  └─ age

Each turn reads the first few rows of an index, so what it costs depends on how many models are loaded and not
on how many jobs or models there are. The first of those rows that nobody else is claiming is taken, and none
but that is locked. There are no low-water marks: in this order what stands before a claimed row may well be
there still.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from queue_workflows.repositories.claims.claim import CLAIMABLE, CLAIMING, passing_by, with_claimed
from queue_workflows.repositories.sql import checks as check
from queue_workflows.repositories.sql.arrays import array, texts
from queue_workflows.repositories.sql.claimed_job import ClaimedNodeJob, loaded
from queue_workflows.repositories.sql.connection import Handle, Statements
from queue_workflows.repositories.sql.families import NODE, per_family

First: TypeAlias = Literal["high", "low"]

# Of each turn so many are looked at: as many workers may claim at one moment before one finds nothing.
LOOKED_AT: Final = 16
# Only rows of this queue are in the indexes of this order; in words that no other index serves.
_HERE: Final = """COALESCE(status = 'queued' AND queue = 'gpu', false)
                    AND NOT suspect AND priority = level.priority"""
# By the index of every claim, which is in the order of age: that the queue is `gpu` is kept from the planner,
# which would else sort what the other indexes have.
_BY_AGE: Final = "status = 'queued' AND queue = (SELECT %(queue)s::text) AND NOT suspect"
# peers: what workers have loaded that have nothing to do, as far as they were heard of lately.
PEERS: Final = """peers AS MATERIALIZED (
    SELECT ARRAY(
        SELECT jsonb_array_elements_text(worker.cached_models) FROM worker_heartbeats AS worker
        WHERE %(yield_s)s::float8 > 0 AND worker.queue = %(queue)s::text AND worker.state = 'idle'
            AND worker.worker_id <> %(worker_id)s::text AND worker.last_flagged_dead_at IS NULL
            AND worker.last_seen > statement_timestamp() - make_interval(secs => %(fresh_s)s::float8)
    ) AS models
)"""
# What is left to them: a job that came just now, for a model that they have.
LEFT_TO_PEERS: Final = """(
    required_model = ANY (peers.models)
    AND run_at > statement_timestamp() - make_interval(secs => %(yield_s)s::float8)
) IS TRUE"""
# candidates: the first rows in the order above, none of them locked. A priority is looked at only if those
# before it have too few. next: the first of them that nobody else is claiming. `held` is its status out of
# the candidates: said of the table it would have the planner read the whole index of what is queued. The
# claim returns whether an older one of its priority is still there, and what it took.
_CLAIM: Final = """
WITH {peers}, candidates AS MATERIALIZED (
    SELECT job.id, level.priority, job.turn, job.host_priority, job.position, 'queued' AS held
    FROM unnest('{9,8,7,6,5,4,3,2,1,0}'::smallint[]) AS level (priority)
    CROSS JOIN LATERAL (
        SELECT found.* FROM (
            SELECT 0 AS turn, 0::smallint AS host_priority, oldest.id, oldest.position FROM (
                SELECT id, position FROM {table}
                WHERE {by_age} AND priority = level.priority AND level.priority = ANY (%(oldest)s::smallint[])
                ORDER BY position LIMIT {looked_at}
            ) AS oldest
            UNION ALL
            SELECT 1, head.host_priority, head.id, head.position
            FROM unnest(%(warm)s::text[]) AS model (name)
            CROSS JOIN LATERAL (
                SELECT id, host_priority, position FROM {table}
                WHERE {here} AND required_model = model.name
                ORDER BY host_priority {direction}, position LIMIT {looked_at}
            ) AS head
            UNION ALL
            SELECT 2, head.host_priority, head.id, head.position FROM peers CROSS JOIN LATERAL (
                SELECT id, host_priority, position, required_model, run_at FROM {table}
                WHERE {here}
                ORDER BY host_priority {direction}, position LIMIT {looked_at}
            ) AS head
            WHERE NOT {left_to_peers}
        ) AS found
        ORDER BY found.turn, found.host_priority {direction}, found.position
        LIMIT {looked_at}
    ) AS job
    LIMIT {looked_at}
), next AS MATERIALIZED (
    SELECT job.id FROM candidates JOIN {table} AS job ON job.id = candidates.id
    WHERE job.id = ANY (ARRAY(SELECT id FROM candidates)) AND job.status = candidates.held
    ORDER BY candidates.priority DESC, candidates.turn, candidates.host_priority {direction},
        candidates.position
    LIMIT 1
    FOR NO KEY UPDATE OF job SKIP LOCKED
)
{claiming} AND {asynchronously}
RETURNING (
    SELECT position FROM {table} WHERE {by_age} AND priority = job.priority ORDER BY position LIMIT 1
) IS DISTINCT FROM job.position, {claimed}
"""


def _in_direction(direction: str) -> str:
    """The claim that takes the ends of `host_priority` in this order; a fixed word."""
    sql = with_claimed(
        per_family(
            _CLAIM,
            peers=PEERS,
            claiming=CLAIMING,
            here=_HERE,
            by_age=_BY_AGE,
            left_to_peers=LEFT_TO_PEERS,
            # How many it is, is kept from the planner too: beyond the rows that it expects of a model on
            # average it would read and sort all of them, however many one model has.
            looked_at=f"(SELECT {LOOKED_AT})",
            direction=direction,
        )
    )
    return sql[NODE.name]


# Whether there is anything but suspects: what was not claimed may be taken by others.
IS_QUEUED: Final = "SELECT EXISTS (SELECT FROM workflow_node_jobs WHERE {claimable})".replace(
    "{claimable}", CLAIMABLE
)

CLAIM_WARM: Final[Mapping[First, str]] = {"high": _in_direction("DESC"), "low": _in_direction("ASC")}
# For a worker that passes by the modules that it does not know.
IS_QUEUED_BUT: Final = passing_by({NODE.name: IS_QUEUED})[NODE.name]
CLAIM_WARM_BUT: Final[Mapping[First, str]] = {
    first: passing_by({NODE.name: sql})[NODE.name] for first, sql in CLAIM_WARM.items()
}


class Preference(NamedTuple):
    """What a worker would rather have now: what it has loaded, or the oldest job whatever its model.

    The latter in the priorities that `oldest` names.
    A job younger than `yield_s` is left to an idle worker that was heard of in the last `fresh_s` seconds.
    """

    warm: tuple[str, ...] = ()
    oldest: Collection[int] = ()
    yield_s: float = 0.0
    fresh_s: float = 30.0
    first: First = "high"


class WarmClaim(NamedTuple):
    """The job, if there was one, and whether an older one of its priority was passed for it."""

    job: ClaimedNodeJob | None
    has_passed: bool


class AffinityRepository:
    """The claim in this order, on a psycopg connection in autocommit or in a pipeline of one."""

    def __init__(self, conn: Handle) -> None:
        self._sql = Statements(conn, "workflow_node_jobs")

    def ask(
        self,
        queue: str,
        preference: Preference,
        *,
        worker_id: str,
        lease_s: float,
        but: Sequence[str] = (),
    ) -> Callable[[], WarmClaim]:
        """One job, on its way until the answer is called for; no suspect, none of the modules in `but`."""
        params = claim_params(queue, preference, worker_id, lease_s)
        if but:
            rows = self._sql.ask(CLAIM_WARM_BUT[preference.first], params | {"but": texts(but)})
        else:
            rows = self._sql.ask(CLAIM_WARM[preference.first], params)

        def answer() -> WarmClaim:
            found = rows()
            if not found:
                return WarmClaim(None, has_passed=False)
            (row,) = found
            return WarmClaim(loaded(ClaimedNodeJob, [row[1:]])[0], has_passed=row[0])

        return answer

    def is_anything_queued(self, queue: str, *, but: Sequence[str] = ()) -> bool:
        """Whether a claim that brought nothing does not prove that there is nothing."""
        if not but:
            return bool(self._sql.rows(IS_QUEUED, {"queue": queue})[0][0])
        return bool(self._sql.rows(IS_QUEUED_BUT, {"queue": queue, "but": texts(but)})[0][0])


def claim_params(queue: str, preference: Preference, worker_id: str, lease_s: float) -> dict[str, Any]:
    """What the statement is given."""
    return {
        "queue": queue,
        "worker_id": check.text("worker_id", worker_id),
        "lease_s": check.seconds("lease_s", lease_s),
        "warm": texts(preference.warm),
        "oldest": array(map(str, preference.oldest)),
        "yield_s": check.seconds_or_none("yield_s", preference.yield_s, zero=True),
        "fresh_s": check.seconds("fresh_s", preference.fresh_s),
        "relaxed": True,
    }
