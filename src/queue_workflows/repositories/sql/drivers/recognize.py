"""Which kind a caller's connection is. No driver is loaded for that: one that is not has made none."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from importlib import import_module
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

import psycopg

from queue_workflows.repositories.sql.drivers.databases import (
    of_asyncpg,
    of_django,
    of_psycopg,
    of_psycopg2,
    of_sqlalchemy,
)
from queue_workflows.repositories.sql.drivers.handles import Asker, AsyncHandle, Handle
from queue_workflows.repositories.sql.drivers.psycopg_connection import on_async_psycopg, on_psycopg
from queue_workflows.repositories.sql.drivers.refusals import must_be_awaited, refusal

T = TypeVar("T")
_Runner: TypeAlias = Callable[[Any, Callable[[], Any]], Awaitable[Any]]


def _from(module: str, name: str) -> Callable[[Any, str], Asker]:
    """What asks a driver's connections; the module is loaded for the first of them."""

    def asker(handle: Any, table: str) -> Asker:
        loaded: Asker = getattr(import_module(f"{__package__}.{module}"), name)(handle, table)
        return loaded

    return asker


async def _run_sync(handle: Any, flow: Callable[[], T]) -> T:
    from queue_workflows.repositories.sql.drivers.sqlalchemy_handles import run_sync

    result: T = await run_sync(handle, flow)
    return result


async def _run_flow(_handle: object, flow: Callable[[], T]) -> T:
    from queue_workflows.repositories.sql.drivers.flow import run_flow

    return await run_flow(flow)


class _Kind(NamedTuple):
    """A class by the module that has it.

    With how its objects are asked, how they say which database they are to, and how a flow on them is
    awaited.
    """

    module: str
    name: str
    asker: Callable[[Any, str], Asker]
    database: Callable[[Any], str | None]
    run: _Runner | None = None

    def has_made(self, handle: object) -> bool:
        made_by = getattr(sys.modules.get(self.module), self.name, None)
        return made_by is not None and isinstance(handle, made_by)


_KINDS: Final = (
    _Kind("psycopg", "Connection", on_psycopg, of_psycopg),
    _Kind("psycopg", "AsyncConnection", on_async_psycopg, of_psycopg, _run_flow),
    _Kind("sqlalchemy.orm", "Session", _from("sqlalchemy_handles", "on_session"), of_sqlalchemy),
    _Kind(
        "sqlalchemy.orm", "scoped_session", _from("sqlalchemy_handles", "on_scoped_session"), of_sqlalchemy
    ),
    _Kind("sqlalchemy", "Connection", _from("sqlalchemy_handles", "on_connection"), of_sqlalchemy),
    _Kind(
        "sqlalchemy.ext.asyncio",
        "AsyncSession",
        _from("sqlalchemy_handles", "on_async_session"),
        of_sqlalchemy,
        _run_sync,
    ),
    _Kind(
        "sqlalchemy.ext.asyncio",
        "async_scoped_session",
        _from("sqlalchemy_handles", "on_async_scoped_session"),
        of_sqlalchemy,
        _run_sync,
    ),
    _Kind(
        "sqlalchemy.ext.asyncio",
        "AsyncConnection",
        _from("sqlalchemy_handles", "on_async_connection"),
        of_sqlalchemy,
        _run_sync,
    ),
    # Of a pool's connections too.
    _Kind("asyncpg", "Connection", _from("asyncpg_connection", "on_asyncpg"), of_asyncpg, _run_flow),
    _Kind(
        "django.db.backends.base.base",
        "BaseDatabaseWrapper",
        _from("django_connection", "on_django"),
        of_django,
    ),
    _Kind(
        "django.utils.connection", "ConnectionProxy", _from("django_connection", "on_django_proxy"), of_django
    ),
    _Kind("psycopg2.extensions", "connection", _from("psycopg2_connection", "on_psycopg2"), of_psycopg2),
)

# What a class was found to be: to look through all of them costs as much as to ask a statement.
_found: Final[dict[type, _Kind]] = {}


def asker_of(handle: object, table: str) -> Asker:
    """What asks statements on a connection; `table` finds the database where a Session has several."""
    if isinstance(handle, psycopg.Connection):
        return on_psycopg(handle, table)
    return _kind_of(handle).asker(handle, table)


async def awaited(handle: AsyncHandle | None, flow: Callable[[Handle | None], T]) -> T:
    """What a verb returns on an asynchronous connection; each of its statements is awaited.

    Without a connection it does its work in a thread, in a transaction of its own.
    """
    if handle is None:
        return await asyncio.to_thread(flow, None)
    run = _kind_of(handle).run
    if run is None:
        raise must_be_awaited(handle)
    # Its statements take it for a synchronous one, which within the flow it is.
    usable: Any = handle
    result: T = await run(handle, lambda: flow(usable))
    return result


def database_of(handle: object) -> str | None:
    """The name of the database, as its client says it; None where only the server would know."""
    try:
        return _kind_of(handle).database(handle)
    except Exception:
        # It is closed, or has several: a statement on it finds that out.
        return None


def _kind_of(handle: object) -> _Kind:
    if (known := _found.get(type(handle))) is not None:
        return known
    for kind in _KINDS:
        if kind.has_made(handle):
            _found[type(handle)] = kind
            return kind
    raise refusal(handle)
