"""Moments beyond the ends of Python's calendar, which Postgres stores: `infinity`, the year 10000.

The driver refuses them, and with one of them its whole answer. Here each is the end of the calendar that is
nearer, as far from it as every time zone needs, so that one such row spoils no other.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final

import psycopg
from psycopg.abc import AdaptContext, Buffer
from psycopg.adapt import Loader
from psycopg.pq import Format

from queue_workflows.payload import YEARS

FIRST: Final = datetime(YEARS[0], 1, 1, tzinfo=UTC)
LAST: Final = datetime(YEARS[1], 12, 31, tzinfo=UTC)
_TYPE: Final = "timestamptz"


def moment_of(text: str) -> datetime:
    """A moment as the server writes it."""
    try:
        return datetime.fromisoformat(text).astimezone(UTC)
    except (ValueError, OverflowError):
        return FIRST if text.startswith("-") or text.endswith("BC") else LAST


def read_all_moments(cursor: psycopg.Cursor[Any] | psycopg.AsyncCursor[Any]) -> None:
    """Have this cursor read every moment there can be."""
    cursor.adapters.register_loader(_TYPE, _Moment)
    cursor.adapters.register_loader(_TYPE, _BinaryMoment)


class _Moment(Loader):
    """The driver's own loader, but for what that refuses."""

    def __init__(self, oid: int, context: AdaptContext | None = None) -> None:
        super().__init__(oid, context)
        usual = psycopg.adapters.get_loader(oid, self.format)
        assert usual is not None  # noqa: S101 - the driver has one for each type of its own
        self._usual = usual(oid, context)

    def load(self, data: Buffer) -> datetime:
        try:
            return self._usual.load(data)  # type: ignore[no-any-return]
        except psycopg.DataError:
            text = bytes(data).decode()
            return FIRST if text.startswith("-") or text.endswith("BC") else LAST


class _BinaryMoment(_Moment):
    """As `_Moment`, of what the server sends in the binary format: microseconds since 2000, with a sign."""

    format = Format.BINARY

    def load(self, data: Buffer) -> datetime:
        try:
            return self._usual.load(data)  # type: ignore[no-any-return]
        except psycopg.DataError:
            return FIRST if bytes(data)[0] & 0x80 else LAST
