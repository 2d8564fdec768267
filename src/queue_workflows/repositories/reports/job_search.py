"""Lists of jobs, the newest first: a page at a time, and at a cost that does not grow with what is stored."""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from heapq import merge
from typing import Final

from queue_workflows.errors import FilterRefused
from queue_workflows.repositories.reports.job_listing import JobFilter, written
from queue_workflows.repositories.sql import checks as check
from queue_workflows.repositories.sql.bounded_walk import SLACK_S, STEPS, BoundedWalk, Found, Served
from queue_workflows.repositories.sql.connection import Handle, Statements
from queue_workflows.repositories.sql.families import BY_NAME, INGEST, LARGEST_ID, NODE, Family
from queue_workflows.repositories.sql.table import LONGEST_PAGE
from queue_workflows.states import JobStatus

SELECTED: Final = """'{family}', id, status, queue, {title}, {run}, priority, generation, attempt, failures,
        max_attempts, crash_count, suspect, hold_reason, hold_key, claimed_by, created_at, run_at, started_at,
        finished_at, CASE WHEN errors <> '[]' THEN {error} END AS error"""
_READ: Final = """id, status, queue, priority, generation, attempt, failures, max_attempts, crash_count,
            suspect, hold_reason, hold_key, claimed_by, created_at, run_at, started_at, finished_at, errors"""
READ: Final = {
    INGEST.name: f"{_READ}, task_name",
    NODE.name: f"{_READ}, run_id, node_id, map_index, node_module",
}
# Statuses with an index of their own rows alone, and its order; of what is over, failures have one by id.
_INDEXED: Final = {
    JobStatus.QUEUED.value: "queue, priority DESC, position",
    JobStatus.SCHEDULED.value: "run_at",
    JobStatus.RUNNING.value: "claimed_by",
    JobStatus.AWAITING_INPUT.value: "expires_at",
}
# To look into an error costs as much as ten other rows, to put it into the form of its group a hundred.
_STEPS_BY_ERROR: Final = (1_000, 19_000)
_STEPS_BY_GROUP: Final = (1_000, 4_000)
# How many times the first step the second one is at most, for a look that is repeated all the time.
NARROW: Final = 4
_FAILED: Final = (JobStatus.FAILED.value,)
# halves: the half of the ids in which those stored before a moment end, which need not exist. Ids are about
# in the order of time, so what is above the last half is too young.
OLD_ENOUGH: Final = """
WITH RECURSIVE halves AS (
    SELECT 0::bigint AS low, LEAST(%(before)s::bigint, COALESCE((SELECT max(id) + 1 FROM {table}), 1)) AS high
    UNION ALL
    SELECT
        CASE WHEN probe.is_old THEN probe.middle ELSE halves.low END,
        CASE WHEN probe.is_old THEN halves.high ELSE probe.middle END
    FROM halves CROSS JOIN LATERAL (
        SELECT middle, COALESCE((
            SELECT created_at <= statement_timestamp() - make_interval(secs => %(age_s)s::float8) FROM {table}
            WHERE id <= middle ORDER BY id DESC LIMIT 1
        ), true) AS is_old
        FROM (SELECT halves.low + (halves.high - halves.low) / 2 AS middle) AS half
    ) AS probe
    WHERE halves.high - halves.low > 1000
)
SELECT min(high) FROM halves
"""
_PLACE: Final = re.compile(r"([a-z]+)([0-9]{1,19})")


@dataclass(frozen=True, slots=True)
class JobLine:
    """A job as a line of a list."""

    family: str
    id: int
    status: str
    queue: str
    title: str
    run_id: uuid.UUID | None
    priority: int
    generation: int
    attempt: int
    failures: int
    max_attempts: int
    crash_count: int
    suspect: bool
    hold_reason: str | None
    hold_key: str | None
    claimed_by: str | None
    created_at: datetime
    run_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    error: str | None

    @property
    def name(self) -> str:
        """The job as commands take it."""
        return f"{self.family}:{self.id}"

    @property
    def took(self) -> timedelta | None:
        """How long its last attempt ran, once it is over."""
        if self.started_at is None or self.finished_at is None:
            return None
        return self.finished_at - self.started_at


@dataclass(frozen=True, slots=True)
class JobPage:
    """A page of a list, the newest first.

    `cursor` is where the next one begins, None if nothing follows. `searched_back_to` is set if the search
    met its bound: all that matches and was enqueued since is on this page or the pages before.
    """

    lines: Sequence[JobLine]
    searched_back_to: datetime | None = None
    cursor: str | None = None


class JobSearch:
    """Searches jobs of both families on the caller's connection; changes nothing.

    With `within_s` a search that would take longer, of each family, looks at fewer jobs and says so. One that
    is `narrow` always does, and as far however long that takes: repeated, it says the same.
    """

    def __init__(self, conn: Handle, *, within_s: float | None = None, narrow: bool = False) -> None:
        self._conn = conn
        self._within_s = within_s
        self._is_narrow = narrow

    def page(self, wanted: JobFilter, *, limit: int = 50, before: str | None = None) -> JobPage:
        """The newest jobs that match, or the next ones from the cursor of a page on."""
        check.whole("limit", limit, 1, LONGEST_PAGE)
        places = _places(wanted, before)
        found = {
            name: self._newest(BY_NAME[name], wanted, place, limit)
            for name, place in places.items()
            if place > 0
        }
        lines = {name: [JobLine(*row) for row in one.rows] for name, one in found.items()}
        # Each family stays in the order of its ids, by which the next page goes on.
        shown = list(merge(*lines.values(), key=_age, reverse=True))[:limit]
        later = {
            name: _next_place(lines[name], sum(line.family == name for line in shown), one)
            for name, one in found.items()
        }
        bounds = [one.back_to for one in found.values() if one.back_to is not None]
        return JobPage(
            sorted(shown, key=_age, reverse=True),
            max(bounds, default=None),
            _cursor({**places, **later}) if any(later.values()) else None,
        )

    def _newest(self, family: Family, wanted: JobFilter, before: int, limit: int) -> Found[int]:
        sql = Statements(self._conn, family.table)
        filters = wanted.where(family)
        statuses = None if (wanted.status or wanted.held) is None else _statuses(wanted, family)
        if statuses is not None and not statuses:
            return Found([], None)
        # What waits or runs is in the table alone.
        served = served_by_indexes(wanted, family)
        few = walk_of(sql, family).of_few(wanted.where(family), served, before=before, limit=limit)
        if few is not None:
            return few
        if wanted.older_than_s is not None:
            before = self._old_enough(family, wanted.older_than_s, before)
        base = "status = 'failed'" if wanted.status == _FAILED else ""
        return walk_of(sql, family, family.source(statuses)).newest(
            filters,
            base=base,
            before=before,
            limit=limit,
            newer_than_s=wanted.newer_than_s,
            steps=_steps(wanted.error, narrow=self._is_narrow),
            within_s=self._within_s,
        )

    def _old_enough(self, family: Family, older_than_s: float, before: int) -> int:
        """Where to begin, so that what is too young need not be passed by."""
        params = {"before": before, "age_s": max(older_than_s - SLACK_S, 0.0)}
        sql = OLD_ENOUGH.replace("{table}", family.source())
        return int(Statements(self._conn, family.table).rows(sql, params)[0][0])


def walk_of(sql: Statements, family: Family, source: str | None = None) -> BoundedWalk[int]:
    """The search of one family's table, or of the view over that and its history."""
    selected = written(SELECTED, family)
    return BoundedWalk(
        sql, table=source or family.table, key="bigint", read=READ[family.name], selected=selected
    )


def served_by_indexes(wanted: JobFilter, family: Family) -> list[Served]:
    """The indexes that have all rows which can match, unless others can as well."""
    if wanted.run_id is not None:
        return [Served("run_id = %(run_id)s::uuid", "run_id, node_id, map_index")]
    statuses = _statuses(wanted, family)
    if not statuses or not statuses <= _INDEXED.keys():
        return []
    of_queue = " AND queue = %(queue)s::text" if wanted.queue is not None else ""
    return [
        Served(f"status = '{status}'" + (of_queue if status == JobStatus.QUEUED else ""), _INDEXED[status])
        for status in sorted(statuses)
    ]


def _steps(error: str | None, *, narrow: bool) -> Sequence[int]:
    """How many rows are looked at, by what that costs."""
    if error is None:
        first, second = STEPS
    else:
        first, second = _STEPS_BY_GROUP if "#" in error else _STEPS_BY_ERROR
    return first, min(second, NARROW * first) if narrow else second


def _statuses(wanted: JobFilter, family: Family) -> set[str]:
    """The statuses that are asked for and that the family has."""
    asked = set(wanted.status or ())
    if wanted.held is not None:
        # A hold is of what is scheduled, which the table holds to.
        asked = (asked or {JobStatus.SCHEDULED.value}) & {JobStatus.SCHEDULED.value}
    return asked & {status.value for status in family.statuses}


def _age(line: JobLine) -> tuple[datetime, int]:
    return line.created_at, line.id


def _next_place(lines: Sequence[JobLine], shown: int, found: Found[int]) -> int:
    """The place after what is shown, right before what is not; 0 at the end."""
    return lines[shown].id + 1 if shown < len(lines) else found.before or 0


def _cursor(places: Mapping[str, int]) -> str:
    return ".".join(f"{name}{place}" for name, place in places.items())


def _places(wanted: JobFilter, cursor: str | None) -> dict[str, int]:
    """Where each family's search begins; 0 where it is through."""
    families = [family.name for family in wanted.families()]
    if cursor is None:
        return dict.fromkeys(families, LARGEST_ID)
    found = [_PLACE.fullmatch(part) for part in cursor.split(".")]
    places = {place[1]: int(place[2]) for place in found if place is not None}
    if list(places) != families or len(found) != len(families) or max(places.values()) > LARGEST_ID:
        said = f"{cursor!r:.80} is no place in this list: take what the page before it ends with"
        raise FilterRefused(said, word=cursor)
    return places
