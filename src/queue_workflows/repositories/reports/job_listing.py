"""Jobs of both families by what operators look for: filters, counts, groups of failures, pages to act on."""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from queue_workflows.errors import FilterRefused, PayloadError
from queue_workflows.repositories.sql import checks as check
from queue_workflows.repositories.sql.connection import Handle, Statements
from queue_workflows.repositories.sql.families import (
    BY_NAME,
    FAMILIES,
    INGEST,
    LARGEST_ID,
    NODE,
    Family,
    per_family,
)
from queue_workflows.repositories.sql.table import LONGEST_PAGE, Filters
from queue_workflows.states import JobStatus

# What both families can say of themselves; the title is what a person calls the job.
TITLES: Final = {
    INGEST.name: ("task_name", "NULL::uuid"),
    NODE.name: ("node_id || CASE WHEN map_index < 0 THEN '' ELSE '[' || map_index || ']' END", "run_id"),
}
ERROR: Final = "COALESCE(errors -> -1 ->> 'type' || ': ', '') || COALESCE(errors -> -1 ->> 'message', '')"
# Errors that differ in nothing but ids and numbers are one: words of hexadecimal digits first, then numbers.
# A word of six or more with a decimal digit in it is said without looking ahead, which would take four times
# as long.
_HEX: Final = "[0-9a-f-]"
_WORD: Final = (
    rf"[0-9]{_HEX}{{5,}}|[a-f-][0-9]{_HEX}{{4,}}|[a-f-]{{2}}[0-9]{_HEX}{{3,}}|[a-f-]{{3}}[0-9]{_HEX}{{2,}}"
    rf"|[a-f-]{{4}}[0-9]{_HEX}+|[a-f-]{{5,}}[0-9]{_HEX}*"
)
_ALIKE: Final = (
    rf"regexp_replace(regexp_replace({{text}}, '\y0x[0-9a-f]+\y|\y(?:{_WORD})\y', '#', 'gi'), "
    r"'[0-9]+([.,:][0-9]+)*', '#', 'g')"
)
NORMALISED: Final = _ALIKE.replace("{text}", ERROR)
COUNT: Final = "SELECT count(*) FROM (SELECT FROM {source}{where} LIMIT %(limit)s::bigint) AS counted"
LAST_ID: Final = "SELECT COALESCE(max(id), 0) FROM {table}"
# In the order of ids, as every statement that locks several rows: a statement that has one of them locked is
# waited for, and a row that has changed meanwhile is asked again whether it is meant.
PAGE: Final = """
SELECT id FROM {table}{where}
ORDER BY id
LIMIT %(limit)s::bigint
FOR NO KEY UPDATE
"""
# Of the history, where nothing changes but that a job is brought back, so there is nothing to lock.
MOVED_PAGE: Final = """
SELECT id FROM ingest_jobs_history{where}
ORDER BY id
LIMIT %(limit)s::bigint
"""
# latest: the failures before a position, read by when they ended, so many and no more, and none that ended
# too long ago; in words that their index alone serves, whatever the planner believes of the time. failed:
# those that are asked for. last: where the bound ended the look. forms: each error once, as its group has it.
FAILURES: Final = """
WITH latest AS MATERIALIZED (
    SELECT id, queue, {title} AS title, finished_at, errors FROM {table}
    WHERE status IN ('failed', '')
        AND (finished_at AT TIME ZONE 'UTC', id)
            < (%(before_at)s::timestamptz AT TIME ZONE 'UTC', %(before_id)s::bigint)
        AND finished_at AT TIME ZONE 'UTC'
            >= (statement_timestamp() - make_interval(secs => %(since_s)s::float8)) AT TIME ZONE 'UTC'
    ORDER BY finished_at AT TIME ZONE 'UTC' DESC, id DESC
    LIMIT %(most)s::bigint
), failed AS MATERIALIZED (
    SELECT id, queue, title, finished_at, {error} AS error FROM latest
    WHERE %(queue)s::text IS NULL OR queue = %(queue)s::text
), last AS (
    SELECT finished_at, id FROM latest
    WHERE (SELECT count(*) FROM latest) = %(most)s::bigint
    ORDER BY finished_at, id LIMIT 1
), forms AS MATERIALIZED (
    SELECT error, {form} AS form FROM (SELECT DISTINCT error FROM failed) AS each
), groups AS (
    SELECT queue, title, form, count(*) AS count, min(finished_at) AS first_at, max(finished_at) AS last_at,
        (array_agg(id ORDER BY finished_at DESC, id DESC))[1:3] AS latest
    FROM failed JOIN forms USING (error)
    GROUP BY queue, title, form
)
SELECT last.finished_at, last.id, '{family}', queue, title, form, count, first_at, last_at, latest
FROM (SELECT) AS look LEFT JOIN last ON true LEFT JOIN groups ON true
ORDER BY count DESC, last_at DESC
"""
FAILURES_READ: Final = 50_000
# Of that time, by index alone.
COUNT_FAILED: Final = """
SELECT count(*) FROM (
    SELECT FROM {table}
    WHERE status IN ('failed', '')
        AND finished_at AT TIME ZONE 'UTC'
            >= (statement_timestamp() - make_interval(secs => %(since_s)s::float8)) AT TIME ZONE 'UTC'
    LIMIT %(most)s::bigint
) AS failed
"""
# What a retry leaves alone is no part of it: nodes of a run that would not go on. The retry itself asks by
# locks.
_GOES_ON: Final = per_family(
    """EXISTS (
    SELECT FROM workflow_runs AS run
    WHERE run.id = {table}.run_id AND run.status NOT IN ({run_terminal}) AND run.cancel_requested_at IS NULL
) AND (NOT {is_planned} OR EXISTS (
    SELECT FROM workflow_dispatch_events AS event
    WHERE event.node_job_id = {table}.id AND event.generation = {table}.generation
        AND event.kind IN ({terminal})
))"""
)[NODE.name]


# Of a filter: on hold, whatever the reason.
ANY_HOLD: Final = "any"
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_LATEST: Final = datetime.max.replace(tzinfo=UTC)
# Of a cursor; microseconds up to the year 9999.
_FAILED_PLACE: Final = re.compile(r"(ingest|node)([0-9]{1,17})\.([0-9]{1,19})")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFilter:
    """What a job has to be; None is anything. Ages count from when it was enqueued."""

    family: str | None = None
    queue: str | None = None
    status: tuple[str, ...] | None = None
    task: str | None = None
    node: str | None = None
    run_id: uuid.UUID | None = None
    error: str | None = None
    worker: str | None = None
    # Why it is on hold, or `ANY_HOLD`.
    held: str | None = None
    older_than_s: float | None = None
    newer_than_s: float | None = None
    ended_within_s: float | None = None
    # Whether its run, if it is a node's, would go on with another try.
    goes_on: bool | None = None

    @property
    def is_empty(self) -> bool:
        """Whether it is about every job that there is, whatever its status."""
        return all(getattr(self, one.name) is None for one in fields(self) if one.name != "status")

    def families(self) -> list[Family]:
        """The families that it can match."""
        if self.task is not None and (self.node is not None or self.run_id is not None):
            raise PayloadError("a task is of ingest jobs, a node and a run of node jobs", path="task")
        if self.family is not None:
            return [BY_NAME[self.family]]
        if self.task is not None:
            return [INGEST]
        return [NODE] if self.node is not None or self.run_id is not None else list(FAMILIES)

    def where(self, family: Family, *, after: int | None = None) -> Filters:
        """The conditions in one family's table."""
        filters = Filters()
        for name in ("queue", "task", "node", "error", "worker", "held"):
            check.text_or_none(name, getattr(self, name), max_bytes=check.TEXT_BYTES)
        filters.add("queue = %(queue)s::text", queue=self.queue)
        filters.status(self.status, JobStatus)
        filters.add("task_name = %(task)s::text", task=self.task)
        filters.add("%(node)s::text IN (node_id, node_module)", node=self.node)
        filters.add("run_id = %(run_id)s::uuid", run_id=self.run_id)
        filters.add("claimed_by = %(worker)s::text", worker=self.worker)
        filters.add("hold_reason = %(held)s::text", held=None if self.held == ANY_HOLD else self.held)
        if self.held == ANY_HOLD:
            filters.always("hold_reason IS NOT NULL")
        contains = f"strpos(lower({ERROR}), lower(%(error)s::text)) > 0"
        # A text without the mark of an id or number is a group's text only where it is an error's own.
        is_one = f" OR {NORMALISED} = %(error)s::text" if self.error is not None and "#" in self.error else ""
        filters.add(f"errors <> '[]' AND ({contains}{is_one})", error=self.error)
        for name, sign in (("older_than_s", "<="), ("newer_than_s", ">=")):
            seconds = check.seconds_or_none(name, getattr(self, name))
            ago = f"statement_timestamp() - make_interval(secs => %({name})s::float8)"
            filters.add(f"created_at {sign} {ago}", **{name: seconds})
        filters.add(
            "finished_at >= statement_timestamp() - make_interval(secs => %(ended_within_s)s::float8)",
            ended_within_s=check.seconds_or_none("ended_within_s", self.ended_within_s),
        )
        if self.goes_on and family is NODE:
            filters.always(_GOES_ON)
        filters.add("id > %(after)s::bigint", after=after)
        return filters


@dataclass(frozen=True, slots=True)
class Failures:
    """Failed jobs of one queue and task with last errors that are alike; `latest` are some of their ids."""

    family: str
    queue: str
    title: str
    error: str
    count: int
    first_at: datetime
    last_at: datetime
    latest: list[int]


@dataclass(frozen=True, slots=True)
class FailedLately:
    """Groups of failures; `cursor` is where a further look begins, None if nothing follows.

    `looked_back_to` is set if the look met its bound: what failed since is in these groups or those before.
    """

    groups: Sequence[Failures]
    cursor: str | None = None
    looked_back_to: datetime | None = None


@dataclass(frozen=True, slots=True)
class _FailedBefore:
    """A position among the failures of a family."""

    at: datetime
    id: int

    def in_text(self) -> str:
        """As a part of a cursor."""
        return f"{(self.at - _EPOCH) // timedelta(microseconds=1)}.{self.id}"


class SelectingRepository:
    """Finds jobs of either family on the caller's connection; changes nothing."""

    def __init__(self, conn: Handle) -> None:
        self._conn = conn

    def count(self, wanted: JobFilter, *, at_most: int) -> int:
        """How many match; counting stops at `at_most`, of both families together."""
        counted = 0
        for family in wanted.families():
            if counted < at_most:
                counted += int(self._page(COUNT, family, wanted, at_most - counted)[0][0])
        return counted

    def last_id(self, family: Family) -> int:
        """The newest id of a family; 0 where there is none."""
        return int(Statements(self._conn, family.table).rows(written(LAST_ID, family), {})[0][0])

    def lock_page(self, family: Family, wanted: JobFilter, *, after: int, limit: int) -> list[int]:
        """The next ids that match, their rows locked until the caller's transaction ends."""
        return [row[0] for row in self._page(PAGE, family, wanted, limit, after=after)]

    def moved_page(self, family: Family, wanted: JobFilter, *, after: int, limit: int) -> list[int]:
        """The next ids that match in the history by months, none for a family or statuses without one."""
        if family.source(wanted.status) == family.table:
            return []
        return [row[0] for row in self._page(MOVED_PAGE, family, wanted, limit, after=after)]

    def failures(
        self,
        *,
        since_s: float,
        queue: str | None = None,
        most: int = FAILURES_READ,
        before: str | None = None,
    ) -> FailedLately:
        """What failed in the last so many seconds, alike errors together, the most frequent first.

        At most so many of each family are looked at, the latest first, or those from a cursor on.
        """
        check.whole("most", most, 1, FAILURES_READ)
        asked = {
            "since_s": check.seconds("since_s", since_s),
            "queue": check.text_or_none("queue", queue),
            "most": most,
        }
        found: list[Failures] = []
        ends: dict[str, _FailedBefore] = {}
        for name, place in _failed_before(before).items():
            params = asked | {"before_at": place.at, "before_id": place.id}
            sql = Statements(self._conn, BY_NAME[name].table)
            rows = sql.rows(written(FAILURES, BY_NAME[name]), params)
            found += [Failures(*row[2:]) for row in rows if row[6] is not None]
            if rows[0][0] is not None:
                ends[name] = _FailedBefore(*rows[0][:2])
        found.sort(key=lambda group: (-group.count, -group.last_at.timestamp()))
        if not ends:
            return FailedLately(found)
        cursor = "".join(f"{name}{place.in_text()}" for name, place in ends.items())
        return FailedLately(found, cursor, max(place.at for place in ends.values()))

    def count_failed(self, *, since_s: float, at_most: int) -> int:
        """How many failed in the last so many seconds, on whatever queue; counting stops at `at_most`."""
        params = {"since_s": check.seconds("since_s", since_s), "most": at_most}
        sql = " UNION ALL ".join(f"({written(COUNT_FAILED, family)})" for family in FAMILIES)
        rows = Statements(self._conn, INGEST.table).rows(sql, params)
        return min(sum(int(row[0]) for row in rows), at_most)

    def _page(
        self, template: str, family: Family, wanted: JobFilter, limit: int, *, after: int | None = None
    ) -> Any:
        filters = wanted.where(family, after=after)
        sql = written(template, family).replace("{source}", family.source(wanted.status))
        sql = sql.replace("{where}", filters.where)
        params = filters.params | {"limit": check.whole("limit", limit, 1, 10 * LONGEST_PAGE)}
        return Statements(self._conn, family.table).rows(sql, params)


def _failed_before(cursor: str | None) -> dict[str, _FailedBefore]:
    """By each family that is looked at where that begins."""
    if cursor is None:
        return {family.name: _FailedBefore(_LATEST, LARGEST_ID) for family in FAMILIES}
    parts = _FAILED_PLACE.findall(cursor)
    if not parts or "".join(f"{name}{at}.{job}" for name, at, job in parts) != cursor:
        said = f"{cursor!r:.80} is no place in this list: take what the look before it ends with"
        raise FilterRefused(said, word=cursor)
    return {
        name: _FailedBefore(_EPOCH + timedelta(microseconds=int(at)), min(int(job), LARGEST_ID))
        for name, at, job in parts
    }


def written(template: str, family: Family) -> str:
    """A statement for one family, with its names and what is read of its errors."""
    title, run = TITLES[family.name]
    known: Mapping[str, str] = {
        "family": family.name,
        "table": family.table,
        "title": title,
        "run": run,
        "error": ERROR,
        "form": _ALIKE.replace("{text}", "error"),
    }
    for mark, fragment in known.items():
        template = template.replace(f"{{{mark}}}", fragment)
    return template
