"""What the code of workers knows: which version of the host app has which tasks or node modules.

Each content is one row, named by its digest; workers that run the same code share it. It is written when the
first of them starts, and seen again once a minute, not with each beat. So after the last worker of a version
is gone it is still known what it could do, and until when.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import datetime
from typing import Final, NamedTuple

from queue_workflows.repositories.sql import checks as check
from queue_workflows.repositories.sql.arrays import texts
from queue_workflows.repositories.sql.connection import Handle, Rows, Statements
from queue_workflows.settings import check_queue_name

# Of more contents of a queue those are forgotten that were seen longest ago, unless a worker has them.
KEPT: Final = 100
SEEN: Final = """
SELECT extract(epoch FROM statement_timestamp() - last_seen)::float8 FROM worker_code
WHERE digest = %(digest)s::text
"""
SEE: Final = """
UPDATE worker_code SET last_seen = statement_timestamp()
WHERE digest = (
    SELECT digest FROM worker_code WHERE digest = %(digest)s::text FOR NO KEY UPDATE SKIP LOCKED
)
RETURNING digest
"""
PUBLISH: Final = """
INSERT INTO worker_code (digest, queue, app_version, names, is_open)
VALUES (
    %(digest)s::text, %(queue)s::text, %(app_version)s::text, %(names)s::jsonb, %(is_open)s::boolean
)
ON CONFLICT (digest) DO UPDATE SET last_seen = statement_timestamp()
RETURNING digest
"""
# beyond: the contents of a queue that were seen longest ago.
FORGET: Final = """
WITH beyond AS MATERIALIZED (
    SELECT digest FROM worker_code WHERE queue = %(queue)s::text
    ORDER BY last_seen DESC
    OFFSET {kept}
)
DELETE FROM worker_code WHERE digest = ANY (ARRAY(SELECT digest FROM beyond))
    AND NOT EXISTS (SELECT FROM worker_heartbeats WHERE versions ->> 'code' = worker_code.digest)
RETURNING digest
""".replace("{kept}", str(KEPT))
# A worker that claims from the queue, by its last beat, or will once its operator wants it on again: what a
# paused one knows is waited for, as a pause is to change nothing else.
_IS_ALIVE: Final = """worker.queue = {queue} AND worker.state NOT IN ('quarantined', 'stopping')
        AND worker.last_seen > statement_timestamp() - make_interval(secs => %(stale_s)s::float8)"""
# A worker of an engine that publishes nothing may know everything. What is looked up by a function of the
# host app's is known when it was asked for: until then nobody but that worker can tell.
_MAY_KNOW: Final = """(code.digest IS NULL OR code.is_open OR code.names ? {published})
            AND (worker.load -> 'lacks' ?| ARRAY[{name}, {published}]) IS NOT TRUE"""
# Of some names those that a living worker of the queue may know, but for the one that asks.
KNOWN_ELSEWHERE: Final = (
    """
SELECT met.name FROM unnest(%(names)s::text[]) AS met (name)
WHERE EXISTS (
    SELECT FROM worker_heartbeats AS worker
    LEFT JOIN worker_code AS code ON code.digest = worker.versions ->> 'code'
    WHERE {is_alive} AND worker.worker_id <> %(worker_id)s::text
        AND {may_know}
)
""".replace("{is_alive}", _IS_ALIVE)
    .replace("{may_know}", _MAY_KNOW)
    .replace("{queue}", "%(queue)s::text")
    .replace("{published}", "met.name")
    .replace("{name}", "met.name")
)
# asked: the names, each on a queue, and as what workers publish it. alive: how many workers that has, how
# many of them may know the name, and how many of those are paused or off.
# last: the content with the name that was seen last, by itself or by a worker that has it, or had until it
# went silent.
WHICH_KNOW: Final = (
    """
SELECT asked.queue, asked.name, alive.workers, alive.knowing, alive.resting, last.app_version, last.until
FROM unnest(
    %(queues_known)s::text[], %(names_known)s::text[], %(names_published)s::text[]
) AS asked (queue, name, published)
CROSS JOIN LATERAL (
    SELECT count(*) AS workers, count(*) FILTER (WHERE {may_know}) AS knowing,
        count(*) FILTER (WHERE worker.state IN ('paused', 'parked') AND {may_know}) AS resting
    FROM worker_heartbeats AS worker
    LEFT JOIN worker_code AS code ON code.digest = worker.versions ->> 'code'
    WHERE {is_alive}
) AS alive
LEFT JOIN LATERAL (
    SELECT code.app_version, GREATEST(code.last_seen, (
        SELECT max(worker.last_seen) FROM worker_heartbeats AS worker
        WHERE worker.versions ->> 'code' = code.digest
    )) AS until
    FROM worker_code AS code
    WHERE code.queue = asked.queue AND code.names ? asked.published
    ORDER BY until DESC
    LIMIT 1
) AS last ON true
""".replace("{is_alive}", _IS_ALIVE)
    .replace("{may_know}", _MAY_KNOW)
    .replace("{queue}", "asked.queue")
    .replace("{published}", "asked.published")
    .replace("{name}", "asked.name")
)
# Those last seen first, of any queue: what their workers say of the code of durable functions.
LAST_SEEN: Final = """
SELECT digest, array_agg(name.value ORDER BY name.value)
FROM worker_code AS code
CROSS JOIN LATERAL jsonb_array_elements_text(code.names) AS name (value)
WHERE name.value LIKE '%%#%%'
GROUP BY code.digest, code.last_seen
ORDER BY code.last_seen DESC, digest
"""
OF: Final = """
SELECT digest, queue, app_version, names::text, is_open, first_seen, last_seen FROM worker_code
WHERE digest = ANY (%(digests)s::text[])
"""


class CodeOfWorkers(NamedTuple):
    """What workers know that run the same code; with `is_open` there may be more that only a look finds."""

    digest: str
    queue: str
    app_version: str | None
    names: list[str]
    is_open: bool
    first_seen: datetime
    last_seen: datetime


class KnowingWorkers(NamedTuple):
    """How many workers of a queue live, how many of them may know a name, and which version did last.

    Of those that may know it some are `resting`: they claim nothing until they are on again.
    """

    workers: int
    knowing: int
    resting: int
    # Whether any version that is remembered knew it; it may have said no version.
    was_known: bool
    app_version: str | None
    until: datetime | None

    @classmethod
    def by_name(cls, rows: Rows) -> dict[tuple[str, str], KnowingWorkers]:
        """The rows of `WHICH_KNOW`, by queue and name."""
        return {
            (queue, name): cls(
                int(workers), int(knowing), int(resting), until is not None, app_version, until
            )
            for queue, name, workers, knowing, resting, app_version, until in rows
        }


class WorkerCodeRepository:
    """Reads and writes what workers know, on the caller's connection."""

    def __init__(self, conn: Handle) -> None:
        self._sql = Statements(conn, "worker_code")

    def age_s(self, digest: str) -> float | None:
        """How long ago this content was seen last; None where it is not there."""
        rows = self._sql.rows(SEEN, {"digest": digest})
        return float(rows[0][0]) if rows else None

    def see(self, digest: str) -> None:
        """It is seen now, unless another worker says so at this moment."""
        self._sql.rows(SEE, {"digest": digest})

    def publish(
        self, digest: str, *, queue: str, app_version: str | None, names: Iterable[str], is_open: bool
    ) -> None:
        """Write a content, and forget those of its queue that were seen longest ago."""
        params = {
            "digest": check.text("digest", digest),
            "queue": check_queue_name(queue),
            "app_version": check.text_or_none("app_version", app_version),
            "names": json.dumps(list(names), ensure_ascii=False),
            "is_open": check.flag("is_open", is_open),
        }
        self._sql.rows(PUBLISH, params)
        self._sql.rows(FORGET, {"queue": queue})

    def code_names(self) -> list[list[str]]:
        """What workers said of the code of durable functions, as `onboard@2#5f3a…`, the last seen first."""
        return [names for _, names in self._sql.rows(LAST_SEEN, {})]

    def known_elsewhere(
        self, queue: str, names: Iterable[str], *, worker_id: str, stale_s: float
    ) -> frozenset[str]:
        """Of these names those that another living worker of the queue may know."""
        params = {
            "queue": check_queue_name(queue),
            "names": texts(sorted(names)),
            "worker_id": worker_id,
            "stale_s": check.seconds("stale_s", stale_s),
        }
        return frozenset(name for (name,) in self._sql.rows(KNOWN_ELSEWHERE, params))

    def of(self, digests: Iterable[str]) -> dict[str, CodeOfWorkers]:
        """These contents by their digests, as far as they are there."""
        wanted = sorted(set(digests))
        if not wanted:
            return {}
        rows = self._sql.rows(OF, {"digests": texts(wanted)})
        found = (
            CodeOfWorkers(digest, queue, app_version, json.loads(names), *rest)
            for digest, queue, app_version, names, *rest in rows
        )
        return {one.digest: one for one in found}
