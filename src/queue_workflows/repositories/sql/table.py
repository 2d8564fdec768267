"""One table as the repositories see it: its column list, which exists once, and rows as model instances."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from queue_workflows.models.columns import TYPES
from queue_workflows.repositories.sql.checks import PayloadLimits, moment_or_none, whole, words_or_none
from queue_workflows.repositories.sql.connection import AsyncHandle, Handle, Rows, Statements

if TYPE_CHECKING:
    from queue_workflows.models import Base

M = TypeVar("M", bound="Base")
LONGEST_PAGE = 10_000


class Table(Generic[M]):
    """Writes a table's columns into SQL, and makes detached instances of its model of what comes back.

    Columns are known from `models.columns`: the model, and SQLAlchemy with it, is loaded with the first row.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._types = TYPES[name]
        self._json = [column for column, kind in self._types.items() if kind == "JSONB"]
        self.columns = self.only(self._types)

    def only(self, names: Iterable[str]) -> str:
        """The list of some columns; JSON as text, so that no loader the caller registered can change it."""
        return ", ".join(
            f"{self.name}.{name}::text AS {name}" if name in self._json else f"{self.name}.{name}"
            for name in names
        )

    def sql(self, template: str) -> str:
        """A statement with `{columns}` written out."""
        return template.replace("{columns}", self.columns)

    def read(self, row: Sequence[Any]) -> dict[str, Any]:
        """The values of a row by column, for a caller that needs no instance of a model."""
        values = dict(zip(self._types, row, strict=True))
        for name in self._json:
            if values[name] is not None:
                values[name] = json.loads(values[name])
        return values

    def load(self, rows: Rows, **known: Any) -> list[M]:
        """Detached instances with every column loaded; `known` are values that the rows do not bring."""
        if not rows:
            return []
        from queue_workflows.models.tables import detached

        return [detached(self.name, self.read(row) | known) for row in rows]

    def page(
        self,
        filters: Filters,
        *,
        by: str,
        after: object,
        limit: int,
        newest_first: bool,
        source: str | None = None,
    ) -> tuple[str, dict[str, Any]]:
        """One page in the order of a unique column; `after` is its value where the page before ended.

        `source` is what has the rows, if that is more than the table.
        """
        sign, direction = ("<", "DESC") if newest_first else (">", "ASC")
        filters.add(f"{by} {sign} %(after)s::{self._types[by]}", after=after)
        params = filters.params | {"limit": whole("limit", limit, 1, LONGEST_PAGE)}
        template = "SELECT {columns} FROM {source}{where} ORDER BY {by} {direction} LIMIT %(limit)s"
        fixed = {
            "{source}": self.name if source is None else f"{source} AS {self.name}",
            "{where}": filters.where,
            "{by}": by,
            "{direction}": direction,
        }
        for mark, fragment in fixed.items():
            template = template.replace(mark, fragment)
        return self.sql(template), params


class Filters:
    """A WHERE clause of fixed fragments with bound values; what was not asked for adds nothing."""

    def __init__(self) -> None:
        self._fragments: list[str] = []
        self.params: dict[str, Any] = {}

    def add(self, fragment: str, **value: Any) -> None:
        """Add a condition unless its one value is None."""
        if None not in value.values():
            self._fragments.append(fragment)
            self.params |= value

    def always(self, fragment: str) -> None:
        """Add a condition without a value."""
        self._fragments.append(fragment)

    def status(self, value: str | Iterable[str] | None, allowed: type[StrEnum]) -> None:
        """Rows in one of these, as literals: a prepared statement can then use the partial indexes."""
        words = words_or_none("status", value, allowed)
        if words is not None:
            literals = ", ".join(f"'{word}'" for word in words)
            self.always(f"status IN ({literals})" if literals else "false")

    def created(self, since: datetime | None, before: datetime | None) -> None:
        """Rows created from `since` on and before `before`."""
        self.add(
            "created_at >= %(created_from)s::timestamptz", created_from=moment_or_none("created_from", since)
        )
        self.add(
            "created_at < %(created_before)s::timestamptz",
            created_before=moment_or_none("created_before", before),
        )

    @property
    def where(self) -> str:
        """The clause, or nothing."""
        return f" WHERE {' AND '.join(self._fragments)}" if self._fragments else ""


class Repository(Generic[M]):
    """What all repositories share: the caller's connection and transaction, which they use and never end."""

    _table: Table[M]

    def __init__(self, conn: Handle | AsyncHandle, *, payload_limits: PayloadLimits | None = None) -> None:
        self._sql = Statements(conn, self._table.name)
        self._limits = payload_limits or PayloadLimits()

    def _first(self, sql: str, params: dict[str, Any]) -> M | None:
        rows = self._sql.rows(sql, params)
        return self._table.load(rows[:1])[0] if rows else None

    def _all(self, sql: str, params: dict[str, Any]) -> list[M]:
        return self._table.load(self._sql.rows(sql, params))

    def _page(
        self,
        filters: Filters,
        *,
        by: str,
        after: object,
        limit: int,
        newest_first: bool,
        source: str | None = None,
    ) -> list[M]:
        sql, params = self._table.page(
            filters, by=by, after=after, limit=limit, newest_first=newest_first, source=source
        )
        return self._all(sql, params)

    def _counts(self, sql: str, params: dict[str, Any] | None = None) -> dict[str, dict[str, int]]:
        counts: dict[str, dict[str, int]] = {}
        for group, status, count in self._sql.rows(sql, params or {}):
            counts.setdefault(group, {})[status] = count
        return counts
