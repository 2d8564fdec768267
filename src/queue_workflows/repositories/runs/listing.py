"""Runs by what operators look for: filters, counts, pages to act on; never their documents."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Final, NamedTuple

from queue_workflows.repositories.sql import checks as check
from queue_workflows.repositories.sql.arrays import array
from queue_workflows.repositories.sql.connection import Handle, Statements
from queue_workflows.repositories.sql.table import LONGEST_PAGE, Filters
from queue_workflows.states import RunStatus

COUNT: Final = "SELECT count(*) FROM (SELECT FROM workflow_runs{where} LIMIT %(limit)s::bigint) AS counted"
PAGE: Final = "SELECT id FROM workflow_runs{where} ORDER BY id LIMIT %(limit)s::bigint"
LAST_ID: Final = "SELECT id FROM workflow_runs ORDER BY id DESC LIMIT 1"
# By the primary key: what begins alike stands together.
NAMED: Final = """
SELECT id FROM workflow_runs WHERE id BETWEEN %(first)s::uuid AND %(last)s::uuid ORDER BY id LIMIT 3
"""
# Picked by an operator: how each stands.
PICKED: Final = "SELECT id, status, pinned_host FROM workflow_runs WHERE id = ANY (%(ids)s::uuid[])"
# Picked ones with events that were given up; of those there are few, and an index.
POISONED_AMONG: Final = """
SELECT DISTINCT run_id FROM workflow_dispatch_events
WHERE run_id = ANY (%(ids)s::uuid[]) AND poisoned_at IS NOT NULL
"""
# Through the index of poisoned events, of which there are few.
POISONED: Final = "id IN (SELECT run_id FROM workflow_dispatch_events WHERE poisoned_at IS NOT NULL)"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFilter:
    """What a run has to be; None is anything, labels must all be there. Ages count from its start."""

    workflow: str | None = None
    status: tuple[str, ...] | None = None
    labels: Mapping[str, Any] | None = None
    poisoned: bool | None = None
    older_than_s: float | None = None
    newer_than_s: float | None = None
    parent: uuid.UUID | None = None
    mode: str | None = None

    @property
    def is_empty(self) -> bool:
        """Whether it is about every run that there is, whatever its status."""
        return not any(getattr(self, one.name) for one in fields(self) if one.name not in ("status", "mode"))

    def where(self, *, after: uuid.UUID | None = None, until: uuid.UUID | None = None) -> Filters:
        """The conditions; statuses as literals, so that the indexes of their own can be used."""
        filters = Filters()
        filters.add("workflow_name = %(workflow)s::text", workflow=self.workflow)
        filters.add("mode = %(mode)s::text", mode=self.mode)
        filters.add("parent_run_id = %(parent)s::uuid", parent=self.parent)
        statuses = check.words_or_none("status", self.status, RunStatus)
        if statuses:
            literals = ", ".join(f"'{status}'" for status in sorted(statuses))
            filters.always(f"status IN ({literals})")
        labels = check.PayloadLimits().json_object("labels", dict(self.labels)) if self.labels else None
        filters.add("labels @> %(labels)s::jsonb", labels=labels)
        if self.poisoned:
            filters.always(POISONED)
        for name, sign in (("older_than_s", "<="), ("newer_than_s", ">=")):
            seconds = check.seconds_or_none(name, getattr(self, name))
            ago = f"statement_timestamp() - make_interval(secs => %({name})s::float8)"
            filters.add(f"created_at {sign} {ago}", **{name: seconds})
        filters.add("id > %(after)s::uuid", after=after)
        filters.add("id <= %(until)s::uuid", until=until)
        return filters


class PickedRun(NamedTuple):
    """How a run stands, and the host that it is pinned to; with `*` before the mark of a directory."""

    status: str
    pinned_host: str | None


class RunLinesRepository:
    """Finds runs on the caller's connection; changes nothing."""

    def __init__(self, conn: Handle) -> None:
        self._sql = Statements(conn, "workflow_runs")

    def count(self, wanted: RunFilter, *, at_most: int) -> int:
        """How many match; counting stops at `at_most`."""
        return int(self._page(COUNT, wanted.where(), at_most)[0][0])

    def last_id(self) -> uuid.UUID | None:
        """The newest run; None where there is none."""
        rows = self._sql.rows(LAST_ID, {})
        return rows[0][0] if rows else None

    def page(
        self, wanted: RunFilter, *, after: uuid.UUID | None, until: uuid.UUID, limit: int
    ) -> list[uuid.UUID]:
        """The next ids that match, the oldest first, none newer than `until`."""
        return [row[0] for row in self._page(PAGE, wanted.where(after=after, until=until), limit)]

    def named(self, beginning: str) -> list[uuid.UUID]:
        """Up to three runs with ids that begin with these hexadecimal digits."""
        params = {"first": uuid.UUID(beginning.ljust(32, "0")), "last": uuid.UUID(beginning.ljust(32, "f"))}
        return [row[0] for row in self._sql.rows(NAMED, params)]

    def picked(self, ids: Iterable[uuid.UUID]) -> dict[uuid.UUID, PickedRun]:
        """How those of these stand that are there, by their ids."""
        rows = self._sql.rows(PICKED, {"ids": array(map(str, ids))})
        return {run_id: PickedRun(status, host) for run_id, status, host in rows}

    def poisoned_among(self, ids: Iterable[uuid.UUID]) -> set[uuid.UUID]:
        """Which of these have events that were given up."""
        return {run_id for (run_id,) in self._sql.rows(POISONED_AMONG, {"ids": array(map(str, ids))})}

    def _page(self, template: str, filters: Filters, limit: int) -> Any:
        params = filters.params | {"limit": check.whole("limit", limit, 1, 10 * LONGEST_PAGE)}
        return self._sql.rows(template.replace("{where}", filters.where), params)
