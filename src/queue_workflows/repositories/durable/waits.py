"""Where durable functions park: for a time, for an event, for jobs that they spawned; and what wakes them.

    the function waits ── WAIT: a step that waits, and `run_at` of its job, which still runs
    the attempt ends   ── on hold without a delay, which keeps `run_at` as it is
    an event, an end   ── is news: the sweep sets `run_at` to now, before or after that end

A waiter looks for its event while it has the lock of that event's name, and so does the sweep, which takes
only names that nobody has. So of a wait and an event that are stored at one moment, each by a transaction
that does not see the other, the sweep sees both.
"""

from __future__ import annotations

from collections.abc import Sequence
from json import loads
from typing import Any, Final, NamedTuple

from queue_workflows.repositories.durable.steps import FENCED, NewStep
from queue_workflows.repositories.sql.connection import AsyncHandle, Handle, Statements
from queue_workflows.repositories.sql.families import FAMILIES, per_family

ASLEEP: Final = "asleep"
EVENT: Final = "event"
CHILDREN: Final = "children"
PARKED: Final = (ASLEEP, EVENT, CHILDREN)
# The class of the locks of names; beside those of wakes and sweeps, 7714 and 7715.
_LOCK: Final = "7716, hashtext(%(waits_for)s::text)"
LOCK_NAME: Final = f"SELECT pg_advisory_xact_lock({_LOCK}) IS NULL"
# held: the job, locked, so that a wake comes before this or after it. there: the wait as it is stored by now.
# wait: until when, and what it has come to if it was asked about before and the answer was lost. event: the
# first of that name, if it came in time. taken: it is nobody else's. came: what the wait has come to. stored:
# that, or that it waits. parked: the job's time, while it still runs. A wait that goes on need not be on disk
# at once, as the end of the attempt, which comes after it, will be.
WAIT: Final = per_family(
    """
WITH held AS MATERIALIZED (
    SELECT job.id FROM {table} AS job WHERE {fenced} FOR NO KEY UPDATE
), there AS MATERIALIZED (
    SELECT status, result, wake_at FROM durable_steps
    WHERE job_family = '{name}' AND job_id = %(job_id)s::bigint AND name = %(name)s::text
        AND call = %(call)s::integer
), wait AS MATERIALIZED (
    SELECT COALESCE(
        (SELECT wake_at FROM there), statement_timestamp() + make_interval(secs => %(delay_s)s::float8)
    ) AS until, (SELECT result FROM there WHERE status = 'done') AS had
    FROM held
), event AS MATERIALIZED (
    SELECT event.id, event.payload FROM durable_events AS event, wait
    WHERE event.name = %(waits_for)s::text AND %(kind)s::text = 'event' AND wait.had IS NULL
        AND COALESCE(event.emitted_at <= wait.until, true)
    ORDER BY event.id
    LIMIT 1
), taken AS (
    DELETE FROM durable_events WHERE id = (SELECT id FROM event) RETURNING payload
), came AS MATERIALIZED (
    SELECT until, EXISTS (SELECT FROM taken) OR COALESCE(had ? 'payload', false) AS by_event,
        COALESCE(until <= statement_timestamp(), false) OR had IS NOT NULL AS by_time,
        COALESCE((SELECT payload FROM taken), had -> 'payload') AS payload
    FROM wait
), stored AS (
    INSERT INTO durable_steps AS step (job_family, job_id, name, call, position, kind, status, beside, result,
        attempt, version, waits_for, wake_at, finished_at)
    SELECT '{name}', %(job_id)s::bigint, %(name)s::text, %(call)s::integer, %(position)s::integer,
        %(kind)s::text, CASE WHEN by_event OR by_time THEN 'done' ELSE 'waiting' END, %(beside)s::boolean,
        CASE WHEN by_event THEN jsonb_build_object('payload', payload)
            WHEN by_time AND %(kind)s::text <> 'sleep' THEN '{"timed_out": true}'
            ELSE NULLIF(%(result)s::text, '')::jsonb END,
        %(attempt)s::integer, NULLIF(%(version)s::text, ''), %(waits_for)s::text, until,
        CASE WHEN by_event OR by_time THEN statement_timestamp() END
    FROM came
    ON CONFLICT (job_family, job_id, name, call) DO UPDATE SET
        status = excluded.status, result = excluded.result, attempt = excluded.attempt,
        finished_at = excluded.finished_at
    WHERE step.status = 'waiting'
), parked AS (
    UPDATE {table} AS job SET
        run_at = LEAST(
            CASE WHEN NOT %(is_first)s::boolean THEN job.run_at END, came.until,
            statement_timestamp() + make_interval(secs => %(look_s)s::float8)
        )
    FROM came
    WHERE job.id = %(job_id)s::bigint AND NOT by_event AND NOT by_time AND %(parks)s::boolean
)
SELECT by_event, by_time, payload::text, extract(epoch FROM until)::float8,
    extract(epoch FROM statement_timestamp())::float8,
    CASE WHEN NOT by_event AND (NOT by_time OR %(kind)s::text = 'sleep')
        THEN set_config('synchronous_commit', 'off', true) END
FROM came
""",
    fenced=FENCED,
)
# news: of the oldest, those of names that no waiter is about to look for.
NEWS: Final = """
SELECT id, name FROM (
    SELECT id, name FROM durable_events WHERE is_news ORDER BY id LIMIT 500 FOR UPDATE SKIP LOCKED
) AS news
WHERE pg_try_advisory_xact_lock(7716, hashtext(name))
"""
# A statement of its own, which sees what waiters stored until it was let in. due: jobs that wait for one of
# these names; for spawned jobs, if all of those are over. woken: in the order of ids, as other statements
# have it.
WAKE: Final = per_family(
    """
WITH due AS MATERIALIZED (
    SELECT job.id FROM {table} AS job
    WHERE job.id IN (
        SELECT step.job_id FROM durable_steps AS step
        WHERE step.status = 'waiting' AND step.waits_for = ANY (%(names)s::text[])
            AND step.job_family = '{name}' AND NOT (step.kind = 'children' AND EXISTS (
                SELECT FROM jsonb_array_elements_text(step.result -> 'children') AS spawned (id)
                JOIN ingest_jobs AS child ON child.id = spawned.id::bigint
                WHERE child.finished_at IS NULL
            ))
    ) AND (job.status = 'running' OR job.hold_reason IN ({parked}))
    ORDER BY job.id
    FOR NO KEY UPDATE
)
UPDATE {table} AS job SET run_at = statement_timestamp()
WHERE job.id = ANY (ARRAY(SELECT id FROM due))
RETURNING job.id
""",
    parked=", ".join(f"'{reason}'" for reason in PARKED),
)
# What tells of a child's end is over with that; an event is kept until a waiter takes it.
TOLD: Final = """
WITH gone AS (
    DELETE FROM durable_events WHERE id = ANY (%(ids)s::bigint[]) AND name LIKE 'qwf:%%' RETURNING id
), kept AS (
    UPDATE durable_events SET is_news = false
    WHERE id = ANY (%(ids)s::bigint[]) AND name NOT LIKE 'qwf:%%' RETURNING id
)
SELECT (SELECT count(*) FROM gone) + (SELECT count(*) FROM kept)
"""


class Came(NamedTuple):
    """What a wait has come to: its event, its time, or neither yet; moments are seconds since the epoch."""

    by_event: bool
    by_time: bool
    payload: Any
    until: float | None
    now: float

    @property
    def is_over(self) -> bool:
        """Whether the function goes on."""
        return self.by_event or self.by_time


class WaitRepository:
    """Parks and wakes, on the caller's connection, within a transaction of the caller's."""

    def __init__(self, conn: Handle | AsyncHandle, family: str) -> None:
        self._family = family
        self._sql = Statements(conn, "durable_steps")

    def lock_name(self, waits_for: str) -> None:
        """Keep the sweep from this name until the transaction ends."""
        self._sql.rows(LOCK_NAME, {"waits_for": waits_for})

    def wait(
        self,
        step: NewStep,
        *,
        delay_s: float | None,
        waits_for: str | None,
        look_s: float,
        parks: bool,
        is_first: bool,
    ) -> Came | None:
        """Store that a job waits, or what it has got; None if its attempt is over.

        It looks again after `look_s` in any case, and at the earliest of all that this attempt waits for.
        """
        params = {
            **step.fence._asdict(),
            "name": step.name,
            "call": step.call,
            "position": step.position,
            "kind": step.kind.value,
            "beside": step.beside,
            "result": step.result or "",
            "version": step.version or "",
            "delay_s": delay_s,
            "waits_for": waits_for,
            "look_s": look_s,
            "parks": parks,
            "is_first": is_first,
        }
        rows = self._sql.rows(WAIT[self._family], params)
        if not rows:
            return None
        by_event, by_time, payload, until, now, _ = rows[0]
        return Came(by_event, by_time, None if payload is None else loads(payload), until, now)


class NewsRepository:
    """What the sweep does with news, on a connection in a transaction of its own."""

    def __init__(self, conn: Handle) -> None:
        self._sql = Statements(conn, "durable_events")

    def news(self) -> dict[int, str]:
        """Events by their ids of which nobody was told, at most 500, held until the transaction ends."""
        return {row[0]: row[1] for row in self._sql.rows(NEWS, {})}

    def wake(self, names: Sequence[str]) -> int:
        """Have those that wait for these names due now; how many."""
        params = {"names": sorted(set(names))}
        return sum(len(self._sql.rows(WAKE[family.name], params)) for family in FAMILIES)

    def told(self, ids: Sequence[int]) -> None:
        """Of these nobody need be told again."""
        self._sql.rows(TOLD, {"ids": list(ids)})
