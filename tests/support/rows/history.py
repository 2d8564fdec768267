"""Jobs that are over, some days ago, and the history by months that they move to."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
from support.rows.jobs import CLEAR
from support.rows.runs import settings

from queue_workflows.engine.upkeep.history import HistoryMoving
from queue_workflows.repositories.history import HistoryRepository

# Back to how a database is in which nobody has ever asked for history by months.
FORGET = """
DO $$
DECLARE month text;
BEGIN
    FOR month IN
        SELECT inhrelid::regclass FROM pg_inherits WHERE inhparent = 'ingest_jobs_history'::regclass
    LOOP
        EXECUTE 'DROP TABLE ' || month;
    END LOOP;
    DELETE FROM history_modes;
END
$$
"""
# One a minute, the last so many days ago; each says in its args which it is.
OVER = """
INSERT INTO ingest_jobs (
    task_name, queue, args, status, result, attempt, claimed_by, created_at, started_at, finished_at
)
SELECT 'task', 'fetch', jsonb_build_object('n', n), %(status)s, '{"done": true}', 1, 'host:fetch:1',
    moment - interval '1 hour', moment - interval '1 minute', moment
FROM (
    SELECT n, now() - make_interval(days => %(days)s) - make_interval(mins => %(count)s - n) AS moment
    FROM generate_series(1, %(count)s) AS n
) AS each
RETURNING id
"""


@contextmanager
def cleared(dsn: str) -> Iterator[psycopg.Connection[Any]]:
    """Empty tables without a history, before and after, and a connection in autocommit."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(CLEAR)
        connection.execute(FORGET)
        try:
            yield connection
        finally:
            connection.execute(CLEAR)
            connection.execute(FORGET)


def over(
    connection: psycopg.Connection[Any], count: int = 1, *, days: int = 3, status: str = "completed"
) -> list[int]:
    """Jobs that ended so many days ago; their ids."""
    rows = connection.execute(OVER, {"count": count, "days": days, "status": status})
    return [job_id for (job_id,) in rows]


def by_months(connection: psycopg.Connection[Any], wanted: bool = True) -> None:
    """As `qwf db history` says it."""
    HistoryRepository(connection).set_by_months(wanted)


def settle(connection: psycopg.Connection[Any], **given: Any) -> None:
    """Move, in whichever direction, until there is nothing more to do."""
    moving = HistoryMoving(settings(**given))
    while moving.move(connection):
        pass


def places(connection: psycopg.Connection[Any]) -> tuple[list[int], list[int]]:
    """The ids in the table, and those in the history."""
    table = [row[0] for row in connection.execute("SELECT id FROM ingest_jobs ORDER BY id")]
    return table, [row[0] for row in connection.execute("SELECT id FROM ingest_jobs_history ORDER BY id")]


def rows(connection: psycopg.Connection[Any]) -> list[Any]:
    """All jobs, wherever they are, with all their columns."""
    asked = "SELECT to_jsonb(job) FROM ingest_jobs_and_history AS job ORDER BY id"
    return [row[0] for row in connection.execute(asked)]
