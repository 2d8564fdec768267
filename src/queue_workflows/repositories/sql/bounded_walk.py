"""A search that ends: rows newest first by their primary key, in steps, so many of them and no more.

A filter that few rows match has no index as a rule, and would read years of history to fill a page. Here a
call looks at so many rows below a position and says how far it came; what asks again goes on from there, and
neither new rows nor pruned ones disturb the position. Where an index has few rows that alone can match, all
of those are read instead, and the search is complete.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Generic, TypeVar

from queue_workflows import clock as time
from queue_workflows.repositories.sql.connection import Statements
from queue_workflows.repositories.sql.table import Filters

I = TypeVar("I")  # noqa: E741 - what the primary key is
# The first step is short, so that what finds enough among the newest rows does not ask where the rest ends.
STEPS: Final = (2_000, 48_000)
MOST: Final = sum(STEPS)
# So many rows of an index are read whole and sorted.
FEW: Final = 20_000
# Rows are numbered when they are inserted and dated when their transaction began: no transaction that
# enqueues is believed to last longer.
SLACK_S: Final = 3600.0
# found: of the next rows of the walk those that match. last: the row that the step ends with, unless there
# are fewer, or as many have matched as are wanted.
STEP: Final = """
WITH found AS MATERIALIZED (
    SELECT {selected} FROM (
        SELECT {read} FROM {table} WHERE {base}id < %(before)s::{type}
        ORDER BY id DESC LIMIT %(width)s::bigint
    ) AS {table}{where}
    ORDER BY id DESC
    LIMIT %(limit)s::bigint
)
SELECT last.id, (SELECT created_at FROM {table} WHERE id = last.id), statement_timestamp(), found.id, found.*
FROM (SELECT) AS step
LEFT JOIN LATERAL (
    SELECT id FROM {table}
    WHERE {base}id < %(before)s::{type} AND (SELECT count(*) FROM found) < %(limit)s::bigint
    ORDER BY id DESC
    OFFSET %(width)s::bigint - 1 LIMIT 1
) AS last ON true
LEFT JOIN found ON true
ORDER BY found.id DESC
"""
# Each branch is in the order of the index that serves it, or the planner might read the table from its end.
BRANCH: Final = "(SELECT {read} FROM {table} WHERE {served} ORDER BY {order} LIMIT %(few)s::bigint)"
HOW_MANY: Final = "SELECT count(*) FROM ({branches}) AS few"
OF_FEW: Final = """
SELECT id, {selected} FROM ({branches}) AS {table}{where}
ORDER BY id DESC
LIMIT %(limit)s::bigint
"""


@dataclass(frozen=True, slots=True)
class Served:
    """Rows that an index has, and the order in which it has them; fixed words of SQL."""

    where: str
    order: str


@dataclass(frozen=True, slots=True)
class Found(Generic[I]):
    """Rows that match, the newest first.

    `before` is where a further search begins, None if there is nothing further; `back_to` when the last row
    that was looked at was stored, if the bound ended the search.
    """

    rows: Sequence[Sequence[Any]]
    before: I | None
    back_to: datetime | None = None


class BoundedWalk(Generic[I]):
    """Searches one table; `selected` is what to answer with, `read` the columns for that and for filters."""

    def __init__(self, sql: Statements, *, table: str, key: str, read: str, selected: str) -> None:
        self._sql = sql
        self._marks = {"table": table, "type": key, "read": read, "selected": selected}

    def newest(
        self,
        filters: Filters,
        *,
        base: str = "",
        before: I,
        limit: int,
        newer_than_s: float | None = None,
        steps: Sequence[int] = STEPS,
        within_s: float | None = None,
    ) -> Found[I]:
        """What matches below a position; `base` narrows the walk to the rows of an index in its order.

        A step that would take longer than `within_s`, by what the one before took, looks at fewer rows: where
        each row lies on a page of its own a walk takes ten times as long as where they lie together.
        """
        statement = self.step(filters, base=base)
        found: list[Sequence[Any]] = []
        back_to: datetime | None = None
        rate = 0.0
        for step in steps:
            width = step if within_s is None or not rate else min(step, max(int(rate * within_s), steps[0]))
            params = filters.params | {"before": before, "width": width, "limit": limit - len(found)}
            began = time.monotonic()
            rows = self._sql.rows(statement, params)
            rate = width / max(time.monotonic() - began, 1e-6)
            last, back_to, now, last_found = *rows[0][:3], rows[-1][3]
            found += [row[4:] for row in rows if row[3] is not None]
            if len(found) == limit:
                return Found(found, last_found)
            if last is None or _is_past(newer_than_s, now, back_to):
                return Found(found, None)
            before = last
        return Found(found, before, back_to)

    def of_few(self, filters: Filters, served: Sequence[Served], *, before: I, limit: int) -> Found[I] | None:
        """What matches of the rows that indexes serve; None where these are many."""
        if not served:
            return None
        params = filters.params | {"few": FEW + 1}
        if self._sql.rows(self.how_many(served), params)[0][0] > FEW:
            return None
        filters.add("id < %(before)s::{type}".replace("{type}", self._marks["type"]), before=before)
        rows = self._sql.rows(self.lines_of_few(filters, served), params | {"before": before, "limit": limit})
        return Found([row[1:] for row in rows], rows[-1][0] if len(rows) == limit else None)

    def step(self, filters: Filters, *, base: str = "") -> str:
        """The statement of a step of the walk."""
        return self._written(STEP, {"where": filters.where, "base": f"{base} AND " if base else ""})

    def how_many(self, served: Sequence[Served]) -> str:
        """The statement that counts the rows that indexes serve."""
        return self._written(HOW_MANY, {"branches": self._branches(served)})

    def lines_of_few(self, filters: Filters, served: Sequence[Served]) -> str:
        """The statement that reads them."""
        return self._written(OF_FEW, {"where": filters.where, "branches": self._branches(served)})

    def _branches(self, served: Sequence[Served]) -> str:
        return " UNION ALL ".join(
            BRANCH.replace("{served}", one.where).replace("{order}", one.order) for one in served
        )

    def _written(self, template: str, own: dict[str, str]) -> str:
        for mark, fragment in (own | self._marks).items():
            template = template.replace(f"{{{mark}}}", fragment)
        return template


def _is_past(newer_than_s: float | None, now: datetime, moment: datetime) -> bool:
    """Whether nothing that is stored before this moment is as new as it has to be."""
    return newer_than_s is not None and (now - moment).total_seconds() > newer_than_s + SLACK_S
