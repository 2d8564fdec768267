"""The claim: the next jobs of a queue become one worker's, for the length of a lease.

A worker walks the queue's index, highest priority first, from a low-water mark per priority: what it claimed
before stands below the mark, and with it the dead entries that a snapshot held open elsewhere keeps alive,
which would else make every claim dearer than the one before. Late commits and requeued rows stand below the
mark too, and what was locked and let go is passed by above it, so a claim without marks follows whenever one
came up short, and once per poll in any case.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

from queue_workflows.errors import PayloadError
from queue_workflows.repositories.sql import checks as check
from queue_workflows.repositories.sql.claimed_job import (
    ClaimedIngestJob,
    ClaimedJob,
    ClaimedNodeJob,
    returned,
)
from queue_workflows.repositories.sql.families import INGEST, NODE, per_family
from queue_workflows.repositories.sql.low_water_marks import UNMARKED, marks_text
from queue_workflows.repositories.sql.table import LONGEST_PAGE
from queue_workflows.settings import check_queue_name

# What a worker of a queue may claim; `qwf explain` asks by the same words. A suspect comes after all others,
# and only a worker that is alone with it takes it: in the words of an index that no other can be taken for.
CLAIMABLE: Final = "status = 'queued' AND queue = %(queue)s::text AND NOT suspect"
CLAIMABLE_ALONE: Final = "COALESCE(status = 'queued' AND suspect, false) AND queue = %(queue)s::text"
# What most likely is innocent comes first: its worker died beside others, and not alone with it.
SUSPECTS_IN_ORDER: Final = "crash_count, priority DESC, position"
# next: the first claimable rows that nobody else is claiming. The array's order is that of the priorities,
# the index's that of the positions, so nothing is sorted and the outer LIMIT stops after the last row that is
# wanted: no row is locked beyond it. Past a negative mark, what another transaction is or was at is passed by
# unasked: to try for a lock costs more than to read the row, and each of sixteen workers would try for most
# rows that the others claim. No node is passed by so, as the foreign keys of their events leave a trace on
# nodes. The status is a literal, so that the partial index is usable in a generic plan.
NEXT: Final = {
    NODE.name: """next AS MATERIALIZED (
    SELECT job.id
    FROM unnest('{9,8,7,6,5,4,3,2,1,0}'::smallint[], %(marks)s::bigint[]) AS mark (priority, position)
    CROSS JOIN LATERAL (
        SELECT id FROM {table}
        WHERE status = 'queued' AND queue = %(queue)s::text AND NOT suspect
            AND priority = mark.priority AND position > mark.position
        ORDER BY position
        LIMIT %(limit)s::bigint
        FOR NO KEY UPDATE SKIP LOCKED
    ) AS job
    LIMIT %(limit)s::bigint
)""",
    INGEST.name: """next AS MATERIALIZED (
    SELECT job.id
    FROM unnest('{9,8,7,6,5,4,3,2,1,0}'::smallint[], %(marks)s::bigint[]) AS mark (priority, position)
    CROSS JOIN LATERAL (
        SELECT id FROM {table}
        WHERE status = 'queued' AND queue = %(queue)s::text AND NOT suspect
            AND priority = mark.priority AND position > abs(mark.position)
            AND (mark.position >= 0 OR xmax = '0'::xid)
        ORDER BY position
        LIMIT %(limit)s::bigint
        FOR NO KEY UPDATE SKIP LOCKED
    ) AS job
    LIMIT %(limit)s::bigint
)""",
}
# The ids go to the UPDATE as an array: joined to a LIMIT that a generic plan does not know, they cost a scan.
CLAIMING: Final = """UPDATE {table} AS job SET
    status = 'running', attempt = job.attempt + 1, claimed_by = %(worker_id)s::text, progress = NULL,
    started_at = statement_timestamp(),
    lease_expires_at = statement_timestamp() + make_interval(secs => %(lease_s)s::float8)
WHERE job.id = ANY (ARRAY(SELECT id FROM next))"""


def with_claimed(statements: Mapping[str, str]) -> Mapping[str, str]:
    """Each family's statement with the columns of its claimed jobs."""
    return {name: sql.replace("{claimed}", returned(KINDS[name])) for name, sql in statements.items()}


KINDS: Final[Mapping[str, type[ClaimedJob]]] = {NODE.name: ClaimedNodeJob, INGEST.name: ClaimedIngestJob}

# What a worker takes that has met tasks or modules which it does not know: no job of theirs. In words that no
# index serves. Statements that claim are there twice, so that a worker that knows all it meets pays nothing.
_NOT_SUSPECT: Final[Mapping[str, str]] = {
    NODE.name: "AND NOT suspect AND (node_module = ANY (%(but)s::text[])) IS NOT TRUE",
    INGEST.name: "AND NOT suspect AND (task_name = ANY (%(but)s::text[])) IS NOT TRUE",
}
_SUSPECT: Final[Mapping[str, str]] = {
    NODE.name: "AND suspect, false) AND (node_module = ANY (%(but)s::text[])) IS NOT TRUE",
    INGEST.name: "AND suspect, false) AND (task_name = ANY (%(but)s::text[])) IS NOT TRUE",
}


def passing_by(statements: Mapping[str, str]) -> Mapping[str, str]:
    """Each family's statement, which passes by the jobs of the names that it is given as `but`."""
    return {
        name: sql.replace("AND NOT suspect", _NOT_SUSPECT[name]).replace(
            "AND suspect, false)", _SUSPECT[name]
        )
        for name, sql in statements.items()
    }


CLAIM: Final = with_claimed(
    per_family(
        """
WITH {next}
{claiming} AND {asynchronously}
RETURNING {claimed}
""",
        next=NEXT,
        claiming=CLAIMING,
    )
)
CLAIM_BUT: Final = passing_by(CLAIM)
# For a worker that holds nothing else: one job, a suspect where there is no other.
# next: of the others the first, as by a claim, and after all of them the first suspect. The branches of the
# union are read in their order, the second only where the first has nothing. For a worker's turn of the
# suspects the one that waits longest comes before the others.
CLAIM_ALONE: Final = with_claimed(
    per_family(
        """
WITH next AS MATERIALIZED (
    SELECT id FROM (
        SELECT id FROM (
            SELECT id FROM {table} WHERE {claimable_alone} AND %(suspects_first)s::boolean
            ORDER BY position LIMIT 1 FOR NO KEY UPDATE SKIP LOCKED
        ) AS oldest
        UNION ALL
        SELECT id FROM (
            SELECT job.id
            FROM unnest('{9,8,7,6,5,4,3,2,1,0}'::smallint[], %(marks)s::bigint[]) AS mark (priority, position)
            CROSS JOIN LATERAL (
                SELECT id FROM {table}
                WHERE {claimable}
                    AND priority = mark.priority AND {past_the_mark}
                ORDER BY position
                LIMIT 1
                FOR NO KEY UPDATE SKIP LOCKED
            ) AS job
            LIMIT 1
        ) AS other
        UNION ALL
        SELECT id FROM (
            SELECT id FROM {table} WHERE {claimable_alone}
            ORDER BY {suspects_in_order} LIMIT 1 FOR NO KEY UPDATE SKIP LOCKED
        ) AS suspect
    ) AS found
    LIMIT 1
)
{claiming} AND {asynchronously}
RETURNING {claimed}
""",
        claimable=CLAIMABLE,
        claimable_alone=CLAIMABLE_ALONE,
        suspects_in_order=SUSPECTS_IN_ORDER,
        past_the_mark={
            NODE.name: "position > mark.position",
            INGEST.name: "position > abs(mark.position) AND (mark.position >= 0 OR xmax = '0'::xid)",
        },
        claiming=CLAIMING,
    )
)
CLAIM_ALONE_BUT: Final = passing_by(CLAIM_ALONE)
# Whether a suspect waits for a worker that is alone.
HAS_SUSPECT: Final = per_family(
    """
SELECT true FROM {table} WHERE {claimable_alone}
ORDER BY {suspects_in_order}
LIMIT 1
""",
    claimable_alone=CLAIMABLE_ALONE,
    suspects_in_order=SUSPECTS_IN_ORDER,
)
HAS_SUSPECT_BUT: Final = passing_by(HAS_SUSPECT)


def claim_params(
    queue: str,
    *,
    worker_id: str,
    lease_s: float,
    limit: int,
    alone: bool,
    positions: Sequence[int],
    suspects_first: bool = False,
) -> dict[str, Any]:
    """What every statement that claims is given."""
    return {
        "queue": queue,
        "worker_id": worker_id,
        "lease_s": lease_s,
        "limit": limit,
        "alone": alone,
        "suspects_first": suspects_first,
        "marks": marks_text(positions),
    }


def checked_params(
    queue: str, *, worker_id: str, lease_s: float, limit: int, positions: Sequence[int], alone: bool
) -> dict[str, Any]:
    """What every statement that claims is given, checked, for a worker that claims over and over."""
    return _standing(queue, worker_id, lease_s, limit, alone) | {"marks": marks_text(positions)}


@lru_cache(maxsize=64, typed=True)
def _standing(queue: str, worker_id: str, lease_s: float, limit: int, alone: bool) -> dict[str, Any]:
    """What a worker says in each of its claims; checked once, as it says it a thousand times a second."""
    if alone and limit != 1:
        raise PayloadError("a claim of one that is alone asks for one job", path="limit")
    return claim_params(
        check_queue_name(queue),
        worker_id=check.text("worker_id", worker_id),
        lease_s=check.seconds("lease_s", lease_s),
        limit=check.whole("limit", limit, 1, LONGEST_PAGE),
        alone=alone,
        positions=UNMARKED,
    )
