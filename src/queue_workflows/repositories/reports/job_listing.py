"""Jobs of both families by what operators look for: filters, counts, groups of failures, pages to act on."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any, Final

from queue_workflows.errors import PayloadError
from queue_workflows.repositories.sql import checks as check
from queue_workflows.repositories.sql.connection import Handle, Statements
from queue_workflows.repositories.sql.families import BY_NAME, FAMILIES, INGEST, NODE, Family, per_family
from queue_workflows.repositories.sql.table import LONGEST_PAGE, Filters
from queue_workflows.states import JobStatus

# What both families can say of themselves; the title is what a person calls the job.
TITLES: Final = {
    INGEST.name: ("task_name", "NULL::uuid"),
    NODE.name: ("node_id || CASE WHEN map_index < 0 THEN '' ELSE '[' || map_index || ']' END", "run_id"),
}
ERROR: Final = "COALESCE(errors -> -1 ->> 'type' || ': ', '') || COALESCE(errors -> -1 ->> 'message', '')"
# Errors that differ in nothing but ids and numbers are one: words of hexadecimal digits first, then numbers.
NORMALISED: Final = (
    r"regexp_replace(regexp_replace("
    r"COALESCE(errors -> -1 ->> 'type' || ': ', '') || COALESCE(errors -> -1 ->> 'message', ''), "
    r"'\y0x[0-9a-f]+\y|\y(?=[0-9a-f-]*[0-9])[0-9a-f-]{6,}\y', '#', 'gi'), '[0-9]+([.,:][0-9]+)*', '#', 'g')"
)
COUNT: Final = "SELECT count(*) FROM (SELECT FROM {table}{where} LIMIT %(limit)s::bigint) AS counted"
LAST_ID: Final = "SELECT COALESCE(max(id), 0) FROM {table}"
# In the order of ids, as every statement that locks several rows: a statement that has one of them locked is
# waited for, and a row that has changed meanwhile is asked again whether it is meant.
PAGE: Final = """
SELECT id FROM {table}{where}
ORDER BY id
LIMIT %(limit)s::bigint
FOR NO KEY UPDATE
"""
# failed: the latest failures, read by when they ended, so that years of finished jobs cost nothing.
FAILURES: Final = """
WITH failed AS MATERIALIZED (
    SELECT id, queue, {title} AS title, finished_at, crash_count, errors FROM {table}
    WHERE status = 'failed'
        AND finished_at >= statement_timestamp() - make_interval(secs => %(since_s)s::float8)
        AND (%(queue)s::text IS NULL OR queue = %(queue)s::text)
    ORDER BY finished_at DESC
    LIMIT %(most)s::bigint
)
SELECT '{family}', queue, title, {normalised} AS error, count(*), min(finished_at), max(finished_at),
    (array_agg(id ORDER BY finished_at DESC))[1:3]
FROM failed
GROUP BY queue, title, error
ORDER BY count(*) DESC, max(finished_at) DESC
"""
FAILURES_READ: Final = 50_000
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
        for name in ("queue", "task", "node", "error", "worker"):
            check.text_or_none(name, getattr(self, name), max_bytes=check.TEXT_BYTES)
        filters.add("queue = %(queue)s::text", queue=self.queue)
        filters.status(self.status, JobStatus)
        filters.add("task_name = %(task)s::text", task=self.task)
        filters.add("%(node)s::text IN (node_id, node_module)", node=self.node)
        filters.add("run_id = %(run_id)s::uuid", run_id=self.run_id)
        filters.add("claimed_by = %(worker)s::text", worker=self.worker)
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


class SelectingRepository:
    """Finds jobs of either family on the caller's connection; changes nothing."""

    def __init__(self, conn: Handle) -> None:
        self._conn = conn

    def count(self, wanted: JobFilter, *, at_most: int) -> int:
        """How many match; counting stops at `at_most` in each family."""
        return sum(self._page(COUNT, family, wanted, at_most)[0][0] for family in wanted.families())

    def last_id(self, family: Family) -> int:
        """The newest id of a family; 0 where there is none."""
        return int(Statements(self._conn, family.table).rows(written(LAST_ID, family), {})[0][0])

    def lock_page(self, family: Family, wanted: JobFilter, *, after: int, limit: int) -> list[int]:
        """The next ids that match, their rows locked until the caller's transaction ends."""
        return [row[0] for row in self._page(PAGE, family, wanted, limit, after=after)]

    def failures(self, *, since_s: float, queue: str | None = None) -> list[Failures]:
        """What failed in the last so many seconds, alike errors together, the most frequent first.

        At most the latest `FAILURES_READ` of each family are looked at.
        """
        params = {
            "since_s": check.seconds("since_s", since_s),
            "queue": check.text_or_none("queue", queue),
            "most": FAILURES_READ,
        }
        found = [
            Failures(*row)
            for family in FAMILIES
            for row in Statements(self._conn, family.table).rows(written(FAILURES, family), params)
        ]
        return sorted(found, key=lambda group: (-group.count, -group.last_at.timestamp()))

    def _page(
        self, template: str, family: Family, wanted: JobFilter, limit: int, *, after: int | None = None
    ) -> Any:
        filters = wanted.where(family, after=after)
        sql = written(template, family).replace("{where}", filters.where)
        params = filters.params | {"limit": check.whole("limit", limit, 1, 10 * LONGEST_PAGE)}
        return Statements(self._conn, family.table).rows(sql, params)


def written(template: str, family: Family) -> str:
    """A statement for one family, with its names and what is read of its errors."""
    title, run = TITLES[family.name]
    known: Mapping[str, str] = {
        "family": family.name,
        "table": family.table,
        "title": title,
        "run": run,
        "error": ERROR,
        "normalised": NORMALISED,
    }
    for mark, fragment in known.items():
        template = template.replace(f"{{{mark}}}", fragment)
    return template
