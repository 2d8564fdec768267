"""What is over, with all that tells where its time went: a bounded number of jobs of each span of time.

Nothing is written for this while a job waits. What a row keeps anyway is read by when the job ended: so many
of each slice, the first ones, so that a day of millions costs as much as one of thousands.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, NamedTuple

from queue_workflows.repositories.sql import checks as check
from queue_workflows.repositories.sql.connection import Handle, Statements
from queue_workflows.repositories.sql.families import INGEST, LARGEST_ID, NODE, Family, per_family
from queue_workflows.repositories.sql.table import LONGEST_PAGE

# slice: a span of time. job: the first that ended in it, by the index of what is over. Of their errors the
# times alone, without messages.
ENDED: Final = per_family(
    """
SELECT slice.number, job.id, job.queue, job.status, job.attempt, job.claimed_by, {own},
    COALESCE(job.past_holds::text, '[]'),
    CASE WHEN jsonb_array_length(job.errors) = 0 THEN '[]' ELSE (
        SELECT json_agg(json_build_object(
            'at', entry -> 'at', 'attempt', entry -> 'attempt', 'kind', entry -> 'kind',
            'worker_id', entry -> 'worker_id', 'since', entry -> 'since', 'again_s', entry -> 'again_s',
            'due', entry -> 'due'
        ))::text FROM jsonb_array_elements(job.errors) AS entry
    ) END, job.run_at, job.created_at, job.started_at, job.finished_at
FROM unnest(%(begins)s::timestamptz[], %(ends)s::timestamptz[])
    WITH ORDINALITY AS slice (begins, ends, number)
CROSS JOIN LATERAL (
    SELECT id, queue, status, attempt, claimed_by, past_holds, errors, run_at, created_at, started_at,
        finished_at{of_family}
    FROM {source}
    WHERE finished_at >= slice.begins AND finished_at < slice.ends
    ORDER BY finished_at
    LIMIT %(each)s::bigint
) AS job
""",
    of_family={NODE.name: ", kind, run_id", INGEST.name: ""},
    own={
        NODE.name: "job.kind, (SELECT run.started_at FROM workflow_runs AS run WHERE run.id = job.run_id)",
        INGEST.name: "'task', NULL::timestamptz",
    },
)
# How many ended in each of these spans, as far as they are counted: the index alone is read.
HOW_MANY: Final = per_family("""
SELECT slice.number, (
    SELECT count(*) FROM (
        SELECT FROM {source}
        WHERE finished_at >= slice.begins AND finished_at < slice.ends
        ORDER BY finished_at
        LIMIT %(most)s::bigint
    ) AS ended
)
FROM unnest(%(begins)s::timestamptz[], %(ends)s::timestamptz[])
    WITH ORDINALITY AS slice (begins, ends, number)
""")
# When jobs ran, of every queue, as above; what ended while it waited to be tried again ran no more by then.
RAN: Final = per_family("""
SELECT slice.number, job.id, job.queue,
    CASE WHEN job.claimed_by IS NOT NULL THEN job.started_at END, job.finished_at
FROM unnest(%(begins)s::timestamptz[], %(ends)s::timestamptz[])
    WITH ORDINALITY AS slice (begins, ends, number)
CROSS JOIN LATERAL (
    SELECT id, queue, claimed_by, started_at, finished_at FROM {source}
    WHERE finished_at >= slice.begins AND finished_at < slice.ends
    ORDER BY finished_at
    LIMIT %(each)s::bigint
) AS job
UNION ALL
SELECT NULL, NULL, queue, min(started_at), NULL FROM {table} WHERE status = 'running' GROUP BY queue
""")
# ended: what ended from a moment on, as far as it is read. The first row says how much that is, the others
# which of it are of a queue and ran at that moment.
RAN_AT: Final = per_family("""
WITH ended AS MATERIALIZED (
    SELECT id, queue, claimed_by, started_at, finished_at FROM {source}
    WHERE finished_at >= %(at)s::timestamptz
    ORDER BY finished_at
    LIMIT %(most)s::bigint
)
SELECT count(*), NULL::timestamptz, NULL::timestamptz FROM ended
UNION ALL
SELECT NULL, started_at, finished_at FROM ended
WHERE queue = %(queue)s::text AND started_at < %(at)s::timestamptz AND claimed_by IS NOT NULL
""")
# Since when some job of a queue runs, of both families; and the clock, alone where none does.
AT_WORK: Final = """
SELECT statement_timestamp(), at_work.* FROM (SELECT) AS look LEFT JOIN (
    SELECT 'node', queue, min(started_at) FROM workflow_node_jobs WHERE status = 'running' GROUP BY queue
    UNION ALL
    SELECT 'ingest', queue, min(started_at) FROM ingest_jobs WHERE status = 'running' GROUP BY queue
) AS at_work (family, queue, since) ON true
"""


class Slice(NamedTuple):
    """A span of time of which a bounded number of jobs is read."""

    begin: datetime
    end: datetime


class Ran(NamedTuple):
    """A job that ran, in which slice it ended; one that runs is in none, and stands for all of its queue."""

    slice: int | None
    id: int | None
    queue: str
    started_at: datetime | None
    finished_at: datetime | None


@dataclass(frozen=True, slots=True)
class EndedJob:
    """A job that is over with all the moments of its row; `errors` have no messages."""

    slice: int
    id: int
    queue: str
    status: str
    attempt: int
    claimed_by: str | None
    kind: str
    waits_since: datetime | None
    past_holds: list[dict[str, Any]]
    errors: list[dict[str, Any]]
    run_at: datetime
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime
    # What is over is on hold for nothing.
    hold_reason: None = None
    hold_key: None = None


class WaitRepository:
    """Reads one family's jobs that are over on the caller's connection; changes nothing."""

    def __init__(self, conn: Handle, family: Family) -> None:
        self._sql = Statements(conn, family.table)
        self._name = family.name

    def ended(self, slices: Sequence[Slice], *, each: int) -> Iterator[EndedJob]:
        """The first jobs that ended in each of these spans, at most `each`; numbered from 0."""
        for number, *row in self._sql.rows(ENDED[self._name], _params(slices, each)):
            yield EndedJob(number - 1, *row[:7], *map(_listed, row[7:9]), *row[9:])

    def how_many(self, slices: Sequence[Slice], *, most: int) -> list[int]:
        """How many ended in each of these spans; of one that says `most` there may be more."""
        params = _spans(slices) | {"most": check.whole("most", most, 1, LARGEST_ID)}
        return [jobs for _, jobs in sorted(map(tuple, self._sql.rows(HOW_MANY[self._name], params)))]

    def ran(self, slices: Sequence[Slice], *, each: int) -> list[Ran]:
        """When these ran, and since when some job of a queue does now."""
        rows = self._sql.rows(RAN[self._name], _params(slices, each))
        return [Ran(None if number is None else number - 1, *row) for number, *row in rows]

    def ran_at(self, queue: str, at: datetime, *, most: int) -> tuple[list[tuple[datetime, datetime]], bool]:
        """When jobs of a queue ran that did so at this moment and are over; whether that is all of them, as
        only so many ends after it are read.
        """
        params = {"queue": queue, "at": at, "most": check.whole("most", most, 1, LARGEST_ID)}
        (count, _, _), *spans = sorted(
            self._sql.rows(RAN_AT[self._name], params), key=lambda row: row[0] is None
        )
        return [(started_at, finished_at) for _, started_at, finished_at in spans], count < most


def at_work(conn: Handle) -> tuple[datetime, dict[str, list[Ran]]]:
    """The database's clock, and by family since when some job of a queue runs."""
    rows = Statements(conn, INGEST.table).rows(AT_WORK, {})
    found: dict[str, list[Ran]] = {NODE.name: [], INGEST.name: []}
    for _, family, queue, since in rows:
        if family is not None:
            found[family].append(Ran(None, None, queue, since, None))
    return rows[0][0], found


def _params(slices: Sequence[Slice], each: int) -> dict[str, Any]:
    return _spans(slices) | {"each": check.whole("each", each, 1, LONGEST_PAGE)}


def _spans(slices: Sequence[Slice]) -> dict[str, Any]:
    return {"begins": [one.begin for one in slices], "ends": [one.end for one in slices]}


def _listed(text: str) -> list[dict[str, Any]]:
    """Of most jobs there is nothing to read."""
    entries: list[dict[str, Any]] = [] if text == "[]" else json.loads(text)
    return entries
