"""Every kind of connection that verbs take, with its own ways to begin, to end and to set a savepoint.

A synchronous one lives in a thread of its own, so that a test awaits all of them alike and may wait for
locks; what is driven is always the owner's own interface, never SQL of ours.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any, Self

import asyncpg
import django
import psycopg
import psycopg2
import sqlalchemy as sa
from django.conf import settings
from psycopg.conninfo import conninfo_to_dict
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, create_async_engine
from sqlalchemy.orm import Session

SERIALIZABLE = "SERIALIZABLE"


class Brought:
    """One open connection of a kind; `awaited` says which form of a verb it takes."""

    awaited = False
    handle: Any

    def __init__(self, dsn: str, *, serializable: bool = False) -> None:
        self.dsn = dsn
        self.serializable = serializable
        self._thread = ThreadPoolExecutor(1)

    async def verb(self, owner: object, name: str, *args: Any, **options: Any) -> Any:
        """What a verb of a module or a task does on this connection, in its form for it."""
        form = getattr(owner, f"a{name}" if self.awaited else name)
        return await self.run(lambda: form(*args, conn=self.handle, **options))

    async def reading(self, repository: type[Any], name: str, *args: Any, **options: Any) -> Any:
        """What a repository's verb does on this connection, in its form for it."""

        def ask() -> Any:
            return getattr(repository(self.handle), f"a{name}" if self.awaited else name)(*args, **options)

        return await self.run(ask)

    async def run(self, act: Callable[[], Any]) -> Any:
        """What it returns, done where the connection lives, and awaited where that is what it asks for."""
        if self.awaited:
            done = act()
            return await done if isinstance(done, Awaitable) else done
        return await asyncio.get_running_loop().run_in_executor(self._thread, act)

    async def __aenter__(self) -> Self:
        await self.run(self.open)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.run(self.close)
        self._thread.shutdown()

    def open(self) -> Any:
        """Connect, and begin a transaction."""
        raise NotImplementedError

    def commit(self) -> Any:
        """Commit it."""
        raise NotImplementedError

    def rollback(self) -> Any:
        """Roll it back."""
        raise NotImplementedError

    def savepoint(self) -> Any:
        """What `back` takes."""
        raise NotImplementedError

    def back(self, savepoint: Any) -> Any:
        """Roll back to a savepoint, which is over then."""
        raise NotImplementedError

    def release(self, savepoint: Any) -> Any:
        """Keep what was done since a savepoint, which is over then."""
        raise NotImplementedError

    def fail(self) -> Any:
        """Have the server refuse a statement of the owner's own."""
        raise NotImplementedError

    def close(self) -> Any:
        """Close it, however it stands."""
        raise NotImplementedError


class Psycopg(Brought):
    """A connection of psycopg 3."""

    def open(self) -> None:
        self.handle = psycopg.connect(self.dsn)
        if self.serializable:
            self.handle.isolation_level = psycopg.IsolationLevel.SERIALIZABLE

    def commit(self) -> None:
        self.handle.commit()

    def rollback(self) -> None:
        self.handle.rollback()

    def savepoint(self) -> Any:
        # Outside of a transaction the block would be one, and commit.
        self.handle.execute("SELECT 1")
        block = self.handle.transaction()
        block.__enter__()
        return block

    def back(self, savepoint: Any) -> None:
        error = psycopg.Rollback(savepoint)
        savepoint.__exit__(psycopg.Rollback, error, None)

    def release(self, savepoint: Any) -> None:
        savepoint.__exit__(None, None, None)

    def fail(self) -> None:
        self.handle.execute("SELECT 1/0")

    def close(self) -> None:
        self.handle.close()


class Psycopg2(Brought):
    """A connection of psycopg2."""

    def open(self) -> None:
        self.handle = psycopg2.connect(self.dsn)
        if self.serializable:
            self.handle.set_session(isolation_level=SERIALIZABLE)

    def commit(self) -> None:
        self.handle.commit()

    def rollback(self) -> None:
        self.handle.rollback()

    def savepoint(self) -> None:
        self._execute("SAVEPOINT here")

    def back(self, savepoint: None) -> None:
        self._execute("ROLLBACK TO SAVEPOINT here")

    def release(self, savepoint: None) -> None:
        self._execute("RELEASE SAVEPOINT here")

    def fail(self) -> None:
        self._execute("SELECT 1/0")

    def close(self) -> None:
        self.handle.close()

    def _execute(self, sql: str) -> None:
        with self.handle.cursor() as cursor:
            cursor.execute(sql)


class Django(Brought):
    """`django.db.connection`, inside `transaction.atomic`."""

    def open(self) -> None:
        if not settings.configured:
            settings.configure(DATABASES={}, USE_TZ=True)
            django.setup()
        from django.db import connection, connections, transaction

        given = conninfo_to_dict(self.dsn)
        options = {"isolation_level": psycopg.IsolationLevel.SERIALIZABLE} if self.serializable else {}
        named = {
            "ENGINE": "django.db.backends.postgresql",
            "NAME": given["dbname"],
            "USER": given["user"],
            "PASSWORD": given.get("password") or "",
            "HOST": given["host"],
            "PORT": given["port"],
            "OPTIONS": options,
        }
        connections.settings = connections.configure_settings({"default": named})
        self.handle = connection
        self.begin = transaction.atomic
        self.block = self._begun()

    def commit(self) -> None:
        self.block.__exit__(None, None, None)
        self.block = self._begun()

    def rollback(self) -> None:
        from django.db import transaction

        transaction.set_rollback(True)
        self.commit()

    def savepoint(self) -> Any:
        from django.db import transaction

        return transaction.savepoint()

    def back(self, savepoint: Any) -> None:
        from django.db import transaction

        transaction.savepoint_rollback(savepoint)

    def release(self, savepoint: Any) -> None:
        from django.db import transaction

        transaction.savepoint_commit(savepoint)

    def fail(self) -> None:
        with self.handle.cursor() as cursor:
            cursor.execute("SELECT 1/0")

    def close(self) -> None:
        from django.db import transaction

        transaction.set_rollback(True)
        self.block.__exit__(None, None, None)
        self.handle.close()

    def _begun(self) -> Any:
        block = self.begin()
        block.__enter__()
        return block


class SqlalchemySession(Brought):
    """A SQLAlchemy Session on psycopg."""

    driver = "psycopg"

    def open(self) -> None:
        self.engine = sa.create_engine(url(self.dsn, self.driver), **self.options())
        self.handle = self.made()

    def options(self) -> dict[str, Any]:
        return {"isolation_level": SERIALIZABLE} if self.serializable else {}

    def made(self) -> Any:
        return Session(self.engine)

    def commit(self) -> None:
        self.handle.commit()

    def rollback(self) -> None:
        self.handle.rollback()

    def savepoint(self) -> Any:
        return self.handle.begin_nested()

    def back(self, savepoint: Any) -> None:
        savepoint.rollback()

    def release(self, savepoint: Any) -> None:
        savepoint.commit()

    def fail(self) -> None:
        self.handle.execute(sa.text("SELECT 1/0"))

    def close(self) -> None:
        self.handle.close()
        self.engine.dispose()


class SqlalchemyConnection(SqlalchemySession):
    """A SQLAlchemy Connection on psycopg."""

    def made(self) -> Any:
        return self.engine.connect()


class SqlalchemySessionPsycopg2(SqlalchemySession):
    """A SQLAlchemy Session on psycopg2."""

    driver = "psycopg2"


class AsyncPsycopg(Brought):
    """An AsyncConnection of psycopg 3."""

    awaited = True

    async def open(self) -> None:
        self.handle = await psycopg.AsyncConnection.connect(self.dsn)
        if self.serializable:
            await self.handle.set_isolation_level(psycopg.IsolationLevel.SERIALIZABLE)

    async def commit(self) -> None:
        await self.handle.commit()

    async def rollback(self) -> None:
        await self.handle.rollback()

    async def savepoint(self) -> Any:
        await self.handle.execute("SELECT 1")
        block = self.handle.transaction()
        await block.__aenter__()
        return block

    async def back(self, savepoint: Any) -> None:
        error = psycopg.Rollback(savepoint)
        await savepoint.__aexit__(psycopg.Rollback, error, None)

    async def release(self, savepoint: Any) -> None:
        await savepoint.__aexit__(None, None, None)

    async def fail(self) -> None:
        await self.handle.execute("SELECT 1/0")

    async def close(self) -> None:
        await self.handle.close()


class Asyncpg(Brought):
    """A connection of asyncpg."""

    awaited = True

    async def open(self) -> None:
        self.handle = await asyncpg.connect(**asyncpg_options(self.dsn))
        await self._begin()

    async def _begin(self) -> None:
        self.block = self.handle.transaction(isolation="serializable" if self.serializable else None)
        await self.block.start()

    async def commit(self) -> None:
        await self.block.commit()
        await self._begin()

    async def rollback(self) -> None:
        await self.block.rollback()
        await self._begin()

    async def savepoint(self) -> Any:
        block = self.handle.transaction()
        await block.start()
        return block

    async def back(self, savepoint: Any) -> None:
        await savepoint.rollback()

    async def release(self, savepoint: Any) -> None:
        await savepoint.commit()

    async def fail(self) -> None:
        await self.handle.execute("SELECT 1/0")

    async def close(self) -> None:
        await self.handle.close()


class AsyncpgPool(Asyncpg):
    """A connection of a pool of asyncpg."""

    async def open(self) -> None:
        self.pool = await asyncpg.create_pool(**asyncpg_options(self.dsn), min_size=1, max_size=1)
        self.handle = await self.pool.acquire()
        await self._begin()

    async def close(self) -> None:
        if self.handle._con is not None:
            await self.pool.release(self.handle)
        await self.pool.close()


class SqlalchemyAsyncSession(Brought):
    """A SQLAlchemy AsyncSession on psycopg."""

    awaited = True
    driver = "psycopg_async"

    async def open(self) -> None:
        options = {"isolation_level": SERIALIZABLE} if self.serializable else {}
        self.engine = create_async_engine(url(self.dsn, self.driver), **options)
        self.handle = await self.made()

    async def made(self) -> Any:
        return AsyncSession(self.engine)

    async def commit(self) -> None:
        await self.handle.commit()

    async def rollback(self) -> None:
        await self.handle.rollback()

    async def savepoint(self) -> Any:
        return await self.handle.begin_nested()

    async def back(self, savepoint: Any) -> None:
        await savepoint.rollback()

    async def release(self, savepoint: Any) -> None:
        await savepoint.commit()

    async def fail(self) -> None:
        await self.handle.execute(sa.text("SELECT 1/0"))

    async def close(self) -> None:
        await self.handle.close()
        await self.engine.dispose()


class SqlalchemyAsyncConnection(SqlalchemyAsyncSession):
    """A SQLAlchemy AsyncConnection on psycopg."""

    async def made(self) -> AsyncConnection:
        return await self.engine.connect()


class SqlalchemyAsyncSessionAsyncpg(SqlalchemyAsyncSession):
    """A SQLAlchemy AsyncSession on asyncpg."""

    driver = "asyncpg"


class SqlalchemyAsyncConnectionAsyncpg(SqlalchemyAsyncConnection):
    """A SQLAlchemy AsyncConnection on asyncpg."""

    driver = "asyncpg"


KINDS: tuple[type[Brought], ...] = (
    Psycopg,
    Psycopg2,
    Django,
    SqlalchemySession,
    SqlalchemyConnection,
    SqlalchemySessionPsycopg2,
    AsyncPsycopg,
    Asyncpg,
    AsyncpgPool,
    SqlalchemyAsyncSession,
    SqlalchemyAsyncConnection,
    SqlalchemyAsyncSessionAsyncpg,
    SqlalchemyAsyncConnectionAsyncpg,
)


def url(dsn: str, driver: str) -> sa.URL:
    """A DSN as SQLAlchemy takes it for a driver; a socket's directory stands in the query."""
    given = conninfo_to_dict(dsn)
    place = {"host": str(given["host"]), "port": str(given["port"])}
    return sa.URL.create(
        f"postgresql+{driver}",
        username=given["user"],
        password=given.get("password"),
        database=given["dbname"],
        query=place,
    )


def asyncpg_options(dsn: str) -> dict[str, Any]:
    """A DSN as asyncpg takes it."""
    given = conninfo_to_dict(dsn)
    return {
        "host": given["host"],
        "port": int(given["port"]),
        "user": given["user"],
        "password": given.get("password"),
        "database": given["dbname"],
    }


@asynccontextmanager
async def waiting_for_lock(dsn: str, started: Awaitable[Any]) -> AsyncIterator[asyncio.Task[Any]]:
    """What was started, once the server says that it waits for a lock."""
    task = asyncio.ensure_future(started)
    of_ours = "FROM pg_stat_activity WHERE datname = current_database()"
    waits = f"SELECT count(*) {of_ours} AND wait_event_type = 'Lock'"
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as eye:
        while not task.done():
            cursor = await eye.execute(waits)
            if await cursor.fetchone() == (1,):
                break
            await asyncio.sleep(0.01)
    assert not task.done(), f"it did not wait: {task}"
    yield task
    await task
