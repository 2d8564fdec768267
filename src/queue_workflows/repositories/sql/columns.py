"""Checked rows on their way into a table, column by column: what all rows have in common is one value.

A statement is sent arrays, one for each column in which rows differ, so columns are what is needed; and to
look at a column at once is what makes a million rows cheap.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

from queue_workflows.repositories.sql.checks import Row

# What one statement sends at most.
CHUNK_ROWS: Final = 2000
CHUNK_BYTES: Final = 8_388_608


@dataclass(frozen=True, slots=True)
class Columns:
    """So many rows: `same` has one value for all of them, `each` a value for each."""

    count: int
    same: Mapping[str, Any]
    each: Mapping[str, Sequence[Any]]

    @classmethod
    def of(cls, names: Sequence[str], rows: Sequence[Row]) -> Self:
        """Columns of rows that have their values in the order of these names."""
        return cls.reduced(
            len(rows), {}, dict(zip(names, zip(*rows, strict=True), strict=True)) if rows else {}
        )

    @classmethod
    def reduced(cls, count: int, same: Mapping[str, Any], each: Mapping[str, Sequence[Any]]) -> Self:
        """Without the columns in which these rows do not differ."""
        alike = {name: values[0] for name, values in each.items() if values.count(values[0]) == count}
        differ = {name: values for name, values in each.items() if name not in alike}
        return cls(count, {**same, **alike}, differ)

    @classmethod
    def joined(cls, parts: Sequence[Self]) -> Self:
        """Rows one after the other, which all have the same columns."""
        if len(parts) == 1:
            return parts[0]
        same, each = dict[str, Any](), dict[str, Sequence[Any]]()
        for name in (*parts[0].same, *parts[0].each) if parts else ():
            first = parts[0].same.get(name)
            if all(name in part.same and part.same[name] == first for part in parts):
                same[name] = first
            else:
                each[name] = [value for part in parts for value in part.values(name)]
        return cls(sum(part.count for part in parts), same, each)

    def values(self, name: str) -> Sequence[Any]:
        """A column, one value for each row."""
        if not self.count:
            return []  # no rows have no columns
        return self.each[name] if name in self.each else [self.same[name]] * self.count

    def part(self, start: int, stop: int) -> Self:
        """Rows next to each other."""
        if start == 0 and stop >= self.count:
            return self
        each = {name: values[start:stop] for name, values in self.each.items()}
        return self.reduced(min(stop, self.count) - start, self.same, each)

    def picked(self, numbers: Sequence[int]) -> Self:
        """Some rows, in the order of these numbers."""
        each = {name: list(map(values.__getitem__, numbers)) for name, values in self.each.items()}
        return self.reduced(len(numbers), self.same, each)

    def with_column(self, name: str, values: Sequence[Any]) -> Self:
        """The rows with other values of a column."""
        same = {other: value for other, value in self.same.items() if other != name}
        return self.reduced(self.count, same, {**self.each, name: values})

    def bounds(self, large: Sequence[str]) -> Iterator[tuple[int, int]]:
        """Where to part it for statements of a bounded size; `large` are the columns that have a length."""
        columns = [self.each[name] for name in large if name in self.each]
        for start in range(0, self.count, CHUNK_ROWS):
            stop = min(start + CHUNK_ROWS, self.count)
            if sum(sum(map(len, filter(None, column[start:stop]))) for column in columns) <= CHUNK_BYTES:
                yield start, stop
            else:
                yield from _by_size(columns, start, stop)


def _by_size(columns: Sequence[Sequence[Any]], start: int, stop: int) -> Iterator[tuple[int, int]]:
    size = 0
    for at in range(start, stop):
        length = sum(_size(column[at]) for column in columns)
        if at > start and size + length > CHUNK_BYTES:
            yield start, at
            start, size = at, 0
        size += length
    yield start, stop


def _size(text: str | None) -> int:
    return len(text or "")
