"""Jobs that need a lock of the machine they run on: which job holds it, and which comes next.

What a job carries is the name of the lock. One that begins with `elsewhere:` names the rest of it, and says
that another host may take the job while the lock is held on the one that claimed it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import psycopg

from queue_workflows.config import HOOKS_QUEUE
from queue_workflows.repositories.claims.claim import KINDS, claim_params, with_claimed
from queue_workflows.repositories.claims.hold_lease import PUT_LOCKED_ASIDE, PUT_LOCKED_HOOKS_ASIDE
from queue_workflows.repositories.sql.arrays import texts
from queue_workflows.repositories.sql.checks import ELSEWHERE
from queue_workflows.repositories.sql.claimed_job import ClaimedJob, loaded
from queue_workflows.repositories.sql.connection import Handle, Statements
from queue_workflows.repositories.sql.families import FAMILIES, INGEST, NODE, Family, per_family

HOST_LOCK: Final = "host_lock"

# queues: each queue with jobs on hold for one of these, found by a jump to the next one in the index. freed:
# the first in line of each, for it is not known which of them has a worker where the lock is free; of hooks,
# which are one host's, the first that the host may run where it is. A suspect only where nothing else waits,
# as it is claimed last, and would keep the lock from what does; but a suspect hook keeps its place.
PROMOTE: Final = per_family(
    """
WITH RECURSIVE queues AS (
    SELECT key, (
        SELECT queue FROM {table}
        WHERE hold_reason = 'host_lock' AND hold_key = key
        ORDER BY queue LIMIT 1
    ) AS queue FROM unnest(%(keys)s::text[]) AS freed (key)
    UNION ALL
    SELECT key, (
        SELECT next.queue FROM {table} AS next
        WHERE hold_reason = 'host_lock' AND hold_key = key
            AND next.queue > queues.queue
        ORDER BY next.queue LIMIT 1
    ) FROM queues WHERE queues.queue IS NOT NULL
), freed AS MATERIALIZED (
    SELECT job.id FROM queues CROSS JOIN LATERAL (
        SELECT id FROM (
            SELECT id FROM {table} AS held
            WHERE hold_reason = 'host_lock' AND hold_key = queues.key
                AND held.queue = queues.queue AND (NOT suspect OR held.queue = 'hooks') {here}
            ORDER BY priority DESC, position
            LIMIT 1
            FOR NO KEY UPDATE SKIP LOCKED
        ) AS other
        UNION ALL
        SELECT id FROM (
            SELECT id FROM {table} AS held
            WHERE hold_reason = 'host_lock' AND hold_key = queues.key
                AND held.queue = queues.queue AND suspect AND held.queue <> 'hooks'
            ORDER BY priority DESC, position
            LIMIT 1
            FOR NO KEY UPDATE SKIP LOCKED
        ) AS suspect
        LIMIT 1
    ) AS job
)
UPDATE {table} AS job SET
    status = 'queued', run_at = statement_timestamp(), past_holds = {past_holds},
    hold_reason = NULL, hold_key = NULL
WHERE job.id = ANY (ARRAY(SELECT id FROM freed))
RETURNING job.id
""",
    here={
        NODE.name: "AND (held.queue <> 'hooks'"
        " OR COALESCE(held.pinned_host, %(host)s::text) IN (%(host)s::text, '*'))",
        INGEST.name: "",
    },
)
# first: the head of the queue; a suspect is no head, as it is claimed after all others. next: of each key
# the first that waits, unless the head comes before it, so that nobody is passed; not what is left to the
# host that claimed it, and is due again soon. A suspect is the first only where nothing else waits for the
# key, and is taken only where nothing else is queued. It is queued and claimed at once: in between no other
# host can claim it.
TAKE: Final = with_claimed(
    per_family(
        """
WITH first AS MATERIALIZED (
    SELECT priority, position FROM {table}
    WHERE status = 'queued' AND queue = %(queue)s::text AND (NOT suspect OR queue = 'hooks')
    ORDER BY priority DESC, position
    LIMIT 1
), next AS MATERIALIZED (
    SELECT held.id
    FROM unnest(%(keys)s::text[]) AS offered (key) CROSS JOIN LATERAL (
        SELECT id, priority, position FROM (
            SELECT id, priority, position FROM {table}
            WHERE hold_reason = 'host_lock' AND hold_key = offered.key AND queue = %(queue)s::text
                AND (NOT suspect OR (%(alone)s::boolean AND queue = 'hooks'))
                AND (offered.key LIKE 'elsewhere:%%' OR run_at > statement_timestamp() + interval '1 hour')
            ORDER BY priority DESC, position
            LIMIT 1
            FOR NO KEY UPDATE SKIP LOCKED
        ) AS other
        UNION ALL
        SELECT id, priority, position FROM (
            SELECT id, priority, position FROM {table}
            WHERE hold_reason = 'host_lock' AND hold_key = offered.key AND queue = %(queue)s::text
                AND suspect AND queue <> 'hooks'
                AND (offered.key LIKE 'elsewhere:%%' OR run_at > statement_timestamp() + interval '1 hour')
            ORDER BY priority DESC, position
            LIMIT 1
            FOR NO KEY UPDATE SKIP LOCKED
        ) AS suspect
        WHERE %(alone)s::boolean AND NOT EXISTS (SELECT FROM first)
        LIMIT 1
    ) AS held
    WHERE NOT EXISTS (
        SELECT FROM first WHERE (-first.priority, first.position) < (-held.priority, held.position)
    )
    LIMIT %(limit)s::bigint
)
UPDATE {table} AS job SET
    status = 'running', run_at = statement_timestamp(), past_holds = {past_holds},
    hold_reason = NULL, hold_key = NULL, attempt = job.attempt + 1, claimed_by = %(worker_id)s::text,
    progress = NULL, started_at = statement_timestamp(),
    lease_expires_at = statement_timestamp() + make_interval(secs => %(lease_s)s::float8)
WHERE job.id = ANY (ARRAY(SELECT id FROM next)) AND {asynchronously}
RETURNING {claimed}
""",
    )
)
# Few jobs run, whatever waits.
HOLDERS: Final = per_family(
    """
SELECT id, claimed_by, started_at FROM {table}
WHERE status = 'running' AND host_lock = ANY (%(keys)s::text[])
ORDER BY started_at
LIMIT 100
"""
)
ALL_HOLDERS: Final = " UNION ALL ".join(
    f"SELECT '{family.name}', holder.* FROM ({HOLDERS[family.name]}) AS holder"  # noqa: S608
    for family in FAMILIES
)


@dataclass(frozen=True, slots=True)
class LockHolder:
    """A job that runs with the lock, by its worker's name on which host."""

    family: str
    job_id: int
    worker_id: str
    since: datetime


def lock_of(key: str) -> str:
    """The lock's own name."""
    return key.removeprefix(ELSEWHERE)


def keys_of(names: Iterable[str]) -> list[str]:
    """All that jobs may carry that need one of these locks."""
    return [key for name in names for key in (name, ELSEWHERE + name)]


class HostLockRepository:
    """On the caller's connection, over the jobs of both families."""

    def __init__(self, conn: Handle | psycopg.Connection[Any]) -> None:
        self._sql = Statements(conn, "ingest_jobs")

    def promote(self, keys: Iterable[str], *, host: str) -> int:
        """Queue the first job of each queue that waits for one of these, free on this host; how many."""
        params = {"keys": texts(dict.fromkeys(keys)), "host": host}
        return sum(len(self._sql.rows(PROMOTE[family.name], params)) for family in FAMILIES)

    def put_aside(
        self, family: Family, queue: str, keys: Iterable[str], *, host: str, delay_s: float
    ) -> list[str]:
        """Hold what is queued for these, a few thousand rows at a time; the keys of limits that they have.

        Of hooks only what the host may claim: where they are another's, the lock may be free.
        """
        params = {"queue": queue, "names": texts(sorted(set(keys))), "reason": HOST_LOCK, "delay_s": delay_s}
        params |= {"host": host, "crowd": 1}
        sql = PUT_LOCKED_HOOKS_ASIDE if queue == HOOKS_QUEUE else PUT_LOCKED_ASIDE[family.name]
        rows = self._sql.rows(sql, params)
        return [limit_key for _, limit_key in rows if limit_key is not None]

    def take(
        self,
        family: Family,
        keys: Iterable[str],
        *,
        queue: str,
        worker_id: str,
        lease_s: float,
        limit: int,
        alone: bool,
    ) -> list[ClaimedJob]:
        """Claim the first job of a queue that waits for each of these, where nobody stands before it."""
        params = claim_params(
            queue, worker_id=worker_id, lease_s=lease_s, limit=limit, alone=alone, positions=()
        )
        params |= {"keys": texts(dict.fromkeys(keys)), "relaxed": self._sql.commits_each}
        return loaded(KINDS[family.name], self._sql.rows(TAKE[family.name], params))
