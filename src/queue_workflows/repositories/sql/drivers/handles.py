"""The connections that verbs and repositories take, by their types, and what a statement brings back."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

if TYPE_CHECKING:
    import psycopg
    from sqlalchemy import Connection
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session
    from sqlalchemy.orm import Session, scoped_session


class DjangoConnection(Protocol):
    """What `django.db.connection` is, or one of `django.db.connections`."""

    vendor: str
    in_atomic_block: bool

    def ensure_connection(self) -> None: ...


class Psycopg2Connection(Protocol):
    """What `psycopg2.connect` returns."""

    @property
    def closed(self) -> int: ...

    def get_backend_pid(self) -> int: ...


class AsyncpgConnection(Protocol):
    """What `asyncpg.connect` returns, or `acquire` of one of its pools."""

    def is_in_transaction(self) -> bool: ...

    def fetch(self, query: str, *args: Any) -> Awaitable[Sequence[Any]]: ...


# What the verbs take as they are, and what their awaitable forms take.
Handle: TypeAlias = (
    "Session | scoped_session[Any] | Connection | psycopg.Connection[Any]"
    " | DjangoConnection | Psycopg2Connection"
)
AsyncHandle: TypeAlias = (
    "AsyncSession | async_scoped_session[Any] | AsyncConnection | psycopg.AsyncConnection[Any]"
    " | AsyncpgConnection"
)
Params: TypeAlias = Mapping[str, Any]
Rows: TypeAlias = Sequence[Sequence[Any]]


class Answer(NamedTuple):
    """What a statement brought: its rows, for a caller that wants them, and how many they are."""

    rows: Callable[[], Rows]
    number: Callable[[], int]

    def __call__(self) -> Rows:
        return self.rows()


Asker: TypeAlias = Callable[[str, Params], Answer]


def answered(rows: Rows) -> Answer:
    """Rows that are there already."""
    return Answer(lambda: rows, lambda: len(rows))
