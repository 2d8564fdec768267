"""Lists of runs, the newest first: a page at a time, and at a cost that does not grow with what is stored."""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any, Final

from queue_workflows.errors import FilterRefused
from queue_workflows.repositories.runs.listing import RunFilter
from queue_workflows.repositories.sql import checks as check
from queue_workflows.repositories.sql.bounded_walk import BoundedWalk, Served
from queue_workflows.repositories.sql.connection import Handle, Statements
from queue_workflows.repositories.sql.table import LONGEST_PAGE
from queue_workflows.states import RunStatus

SELECTED: Final = """id, workflow_name, status, mode, priority, nodes_left, nodes_active, nodes_failed,
        labels::text AS labels, statement_timestamp() AS at, created_at, started_at, finished_at,
        error::text AS error, cancel_requested_at, cancel_reason, parent_run_id, dedupe_key, hold_reason,
        EXISTS (
            SELECT FROM workflow_dispatch_events AS event
            WHERE event.run_id = workflow_runs.id AND event.poisoned_at IS NOT NULL
        ) AS poisoned"""
READ: Final = """id, workflow_name, status, mode, priority, nodes_left, nodes_active, nodes_failed, labels,
            created_at, started_at, finished_at, error, cancel_requested_at, cancel_reason, parent_run_id,
            dedupe_key, hold_reason"""
# Poisoned events have an index, and are few.
_POISONED: Final = Served(
    "id = ANY (ARRAY(SELECT run_id FROM workflow_dispatch_events WHERE poisoned_at IS NOT NULL))", "id"
)
# A run may have started a hundred thousand others.
_CHILDREN: Final = Served("parent_run_id = %(parent)s::uuid", "parent_run_id, parent_node_job_id")
_RUNNING: Final = (RunStatus.RUNNING.value,)
_NEWEST: Final = uuid.UUID(int=2**128 - 1)


@dataclass(frozen=True, slots=True)
class RunLine:
    """A run as a line of a list; `at` is the database's clock."""

    id: uuid.UUID
    workflow: str
    status: str
    mode: str
    priority: int
    nodes_left: int
    nodes_active: int
    nodes_failed: int
    labels: dict[str, Any]
    at: datetime
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    error: dict[str, Any] | None
    cancel_requested_at: datetime | None
    cancel_reason: str | None
    parent_run_id: uuid.UUID | None
    dedupe_key: str | None
    hold_reason: str | None
    poisoned: bool


@dataclass(frozen=True, slots=True)
class RunPage:
    """A page of a list, the newest first.

    `cursor` is where the next one begins, None if nothing follows. `searched_back_to` is when the last run
    that was looked at was started, if the search met its bound.
    """

    lines: Sequence[RunLine]
    searched_back_to: datetime | None = None
    cursor: str | None = None


class RunSearch:
    """Searches runs on the caller's connection; changes nothing."""

    def __init__(self, conn: Handle) -> None:
        self._walk = walk_of(Statements(conn, "workflow_runs"))

    def page(self, wanted: RunFilter, *, limit: int = 50, before: str | None = None) -> RunPage:
        """The newest runs that match, or the next ones from the cursor of a page on."""
        check.whole("limit", limit, 1, LONGEST_PAGE)
        place = _NEWEST if before is None else _place(before)
        found = self._walk.of_few(wanted.where(), served_by_indexes(wanted), before=place, limit=limit)
        if found is None:
            base = "status = 'running'" if wanted.status == _RUNNING else ""
            found = self._walk.newest(
                wanted.where(), base=base, before=place, limit=limit, newer_than_s=wanted.newer_than_s
            )
        cursor = None if found.before is None else found.before.hex
        return RunPage([_line(row) for row in found.rows], found.back_to, cursor)


def walk_of(sql: Statements) -> BoundedWalk[uuid.UUID]:
    """The search of the table of runs."""
    return BoundedWalk(sql, table="workflow_runs", key="uuid", read=READ, selected=SELECTED)


def served_by_indexes(wanted: RunFilter) -> list[Served]:
    """The index that has all rows which can match, unless others can as well."""
    if wanted.parent is not None:
        return [_CHILDREN]
    return [_POISONED] if wanted.poisoned else []


def _place(cursor: str) -> uuid.UUID:
    try:
        return uuid.UUID(cursor)
    except ValueError:
        said = f"{cursor!r:.80} is no place in this list: take what the page before it ends with"
        raise FilterRefused(said, word=cursor) from None


def _line(row: Any) -> RunLine:
    values = list(row)
    names = [one.name for one in fields(RunLine)]
    for name in ("labels", "error"):
        place = names.index(name)
        values[place] = None if values[place] is None else json.loads(values[place])
    return RunLine(*values)
