"""What a verb says to a connection that it cannot use: one clear error, and nothing is written."""

from __future__ import annotations

import asyncio
import sqlite3
import uuid
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column
from support.connections.kept import own_connection
from support.connections.kinds import KINDS, Brought, Django, url
from support.connections.writing import WRITING, Stage, everything

import queue_workflows as qwf
from queue_workflows import IngestJobRepository, NewIngestJob, UnusableConnection
from queue_workflows.config import reset_config
from queue_workflows.db.connections.own import close_own
from queue_workflows.errors import FailedTransaction, OtherDatabase, SchemaError
from queue_workflows.repositories.sql.drivers.databases import is_made_by_django

every_kind = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
ONE = {"queue": "fetch"}
DOCUMENT = {"name": "small", "nodes": [{"id": "a", "module": "m"}]}


@pytest.fixture(autouse=True)
def nothing_configured() -> Iterator[None]:
    """Each test configures what it is about."""
    reset_config()
    yield
    reset_config()


NOWHERE = Stage(uuid.uuid4(), uuid.uuid4(), 1, 1)


async def look(on: Brought, _: Stage) -> list[str]:
    """The reading verb."""
    await on.verb(qwf, "ingest_snapshot")
    return []


async def read(on: Brought, _: Stage) -> list[str]:
    """A reading of a repository."""
    await on.reading(IngestJobRepository, "counts")
    return []


class Given(Brought):
    """Something that was never opened, handed to one form of the verbs or the other."""

    def __init__(self, handle: object, *, awaited: bool) -> None:
        self.handle, self.awaited = handle, awaited

    async def run(self, act: Callable[[], Any]) -> Any:
        return await act() if self.awaited else act()


def written(*dsns: str) -> list[str]:
    """All that is stored there."""
    found = list[str]()
    for dsn in dsns:
        with psycopg.connect(dsn) as connection:
            found += everything(connection)
    return found


async def refused(
    brought: Brought, kind: type[Exception], *, has_forms: bool = True, of_repositories: bool = True
) -> Any:
    """What every verb that takes a connection says, which must be one and the same."""
    said = dict[str, object]()
    acts = [verb.act for verb in WRITING if verb.is_awaitable or not has_forms]
    for act in (*acts, look, read):
        if not of_repositories and "reading" in act.__code__.co_names:
            continue
        with pytest.raises(kind) as error:
            await act(brought, NOWHERE)
        said[act.__name__] = type(error.value), getattr(error.value, "state", None), str(error.value)
    assert len(set(said.values())) == 1, said
    return error.value


@every_kind
def test_a_closed_one(kind: type[Brought], qwf_dsn: str) -> None:
    """It is named with its class; a Session opens another transaction, and Django another connection."""
    if "Session" in kind.__name__ or kind.__name__ == "Django":
        pytest.skip("it is never closed for good")

    async def scene() -> None:
        brought = kind(qwf_dsn)
        await brought.run(brought.open)
        await brought.run(brought.close)
        error = await refused(brought, UnusableConnection, has_forms=kind.awaited)
        assert error.state == "closed"
        assert error.kind.endswith(type(brought.handle).__name__)

    before = written(qwf_dsn)
    asyncio.run(scene())
    assert written(qwf_dsn) == before


@every_kind
def test_one_in_a_failed_transaction(kind: type[Brought], qwf_dsn: str) -> None:
    """It says that the transaction has failed and is to be rolled back; after that the verb works."""

    async def scene() -> None:
        async with kind(qwf_dsn) as brought:
            with pytest.raises(Exception):  # noqa: B017, PT011 - each driver has its own
                await brought.run(brought.fail)
            error = await refused(brought, FailedTransaction, has_forms=kind.awaited)
            assert "roll it back" in str(error)
            await brought.run(brought.rollback)
            assert (await brought.verb(qwf, "enqueue_ingest_job", "t", **ONE)).created
            await brought.run(brought.rollback)

    before = written(qwf_dsn)
    asyncio.run(scene())
    assert written(qwf_dsn) == before


def test_a_session_that_was_closed_for_good(qwf_dsn: str) -> None:
    """One that does not reset as it is closed, as others do."""
    session = Session(sa.create_engine(url(qwf_dsn, "psycopg")), close_resets_only=False)
    session.close()
    error = asyncio.run(refused(Given(session, awaited=False), UnusableConnection))
    assert (error.kind, error.state) == ("sqlalchemy.orm.session.Session", "closed")


class Base(DeclarativeBase):
    """The application's own."""


class Order(Base):
    """A row that cannot be stored, as its table is not there."""

    __tablename__ = "orders_of_nobody"
    id: Mapped[int] = mapped_column(primary_key=True)


@pytest.mark.parametrize(
    "kind", [kind for kind in KINDS if "Session" in kind.__name__], ids=lambda kind: kind.__name__
)
def test_a_session_after_a_flush_that_failed(kind: type[Brought], qwf_dsn: str) -> None:
    """SQLAlchemy sends nothing more until it is rolled back: a failed transaction as any other."""

    async def scene() -> None:
        async with kind(qwf_dsn) as brought:
            brought.handle.add(Order(id=1))
            with pytest.raises(sa.exc.ProgrammingError):
                await brought.run(brought.handle.flush)
            error = await refused(brought, FailedTransaction, has_forms=kind.awaited)
            assert "roll it back" in str(error)
            await brought.run(brought.rollback)
            assert (await brought.verb(qwf, "enqueue_ingest_job", "t", **ONE)).created
            await brought.run(brought.rollback)

    before = written(qwf_dsn)
    asyncio.run(scene())
    assert written(qwf_dsn) == before


@every_kind
def test_a_database_without_the_schema(kind: type[Brought], qwf_new_database: Any) -> None:
    """It is named, with the command that makes the schema."""
    dsn = qwf_new_database(template=False)
    name = conninfo_to_dict(dsn)["dbname"]

    async def scene() -> None:
        for verb, args, options in (
            ("enqueue_ingest_job", ("t",), ONE),
            ("enqueue_many", ([NewIngestJob(task_name="t", queue="fetch")] * 2,), {}),
            ("start_run", (DOCUMENT,), {}),
        ):
            async with kind(dsn) as brought:
                with pytest.raises(SchemaError, match="run `qwf db upgrade`") as error:
                    await brought.verb(qwf, verb, *args, **options)
                assert f"{name!r}" in str(error.value)
                assert "does not exist" in str(error.value)

    asyncio.run(scene())


@pytest.fixture
def other_dsn(qwf_dsn: str, qwf_template: str) -> Iterator[str]:
    """Another database with the schema, which no fixture of ours has made."""
    name = f"{conninfo_to_dict(qwf_dsn)['dbname']}_other"
    with own_connection(qwf_dsn) as connection:
        connection.execute(f'CREATE DATABASE "{name}" TEMPLATE "{qwf_template}"')
    yield make_conninfo(qwf_dsn, dbname=name)
    with own_connection(qwf_dsn) as connection:
        connection.execute(f'DROP DATABASE "{name}" WITH (FORCE)')


@every_kind
def test_one_of_another_database(kind: type[Brought], qwf_dsn: str, other_dsn: str) -> None:
    """Both are named, and the configured one is taken; a repository is of the database that it is given."""
    ours, other = (str(conninfo_to_dict(dsn)["dbname"]) for dsn in (qwf_dsn, other_dsn))
    qwf.configure(db_url=qwf_dsn)

    async def scene() -> None:
        async with kind(other_dsn) as brought:
            error = await refused(brought, OtherDatabase, of_repositories=False)
            assert await brought.reading(IngestJobRepository, "counts") == {}
            assert (error.database, error.configured) == (other, (ours,))
            assert f"{other!r}" in str(error)
            assert f"{ours!r}" in str(error)
        async with kind(qwf_dsn) as brought:
            assert (await brought.verb(qwf, "enqueue_ingest_job", "t", **ONE)).created
            await brought.run(brought.rollback)

    before = written(qwf_dsn, other_dsn)
    asyncio.run(scene())
    assert written(qwf_dsn, other_dsn) == before


def test_a_database_that_djangos_test_runner_made(qwf_dsn: str, other_dsn: str) -> None:
    """It stands for the configured one, by its name or by the one in `TEST`, as long as tests run."""
    from django.db import connection
    from django.test.utils import setup_test_environment, teardown_test_environment

    made = str(conninfo_to_dict(other_dsn)["dbname"])

    async def enqueue() -> None:
        async with Django(other_dsn) as brought:
            # The server is asked for the name where names differ, so this is all that speaks for it.
            connection.settings_dict["TEST"]["NAME"] = stated
            await brought.verb(qwf, "enqueue_ingest_job", "t", **ONE)

    qwf.configure(db_url=make_conninfo(qwf_dsn, dbname="shop"))
    stated: str | None = made
    with pytest.raises(OtherDatabase):
        asyncio.run(enqueue())
    asyncio.run(_django_is_set_up(other_dsn))
    setup_test_environment()
    try:
        asyncio.run(enqueue())
        stated = made.removesuffix("_other")
        asyncio.run(enqueue())
        stated = None
        with pytest.raises(OtherDatabase):
            asyncio.run(enqueue())
    finally:
        teardown_test_environment()


async def _django_is_set_up(dsn: str) -> None:
    """Its settings are there once a connection was opened."""
    async with Django(dsn):
        pass


@pytest.mark.parametrize(
    ("name", "is_one"),
    [
        ("test_shop", True),
        ("test_shop_2", True),
        ("test_shop_gw0", True),
        ("test_other", False),
        ("shop_test", False),
    ],
)
def test_the_names_that_django_gives(name: str, is_one: bool, monkeypatch: Any) -> None:
    """`test_` and the configured name, with a number where tests run beside each other."""
    from django.test import utils

    handle = SimpleNamespace(settings_dict={"NAME": name, "TEST": {"NAME": None}})
    assert not is_made_by_django(handle, name, {"shop"})
    monkeypatch.setattr(utils._TestState, "saved_data", object(), raising=False)
    assert is_made_by_django(handle, name, {"shop"}) is is_one
    assert not is_made_by_django(object(), name, {"shop"})


def test_a_database_behind_another_name(qwf_dsn: str, other_dsn: str, monkeypatch: Any) -> None:
    """Where a proxy gives a database another name, the server's own name decides."""
    qwf.configure(db_url=other_dsn)
    with psycopg.connect(other_dsn) as connection:

        class Alias(psycopg.Connection[Any]):
            """A connection whose client knows the database as something else."""

        connection.__class__ = Alias
        monkeypatch.setattr(
            "queue_workflows.repositories.sql.configured_database.database_of", lambda _: "alias"
        )
        assert qwf.enqueue_ingest_job("t", conn=connection, **ONE).created
        connection.rollback()


def test_a_configured_database_behind_another_name(qwf_dsn: str, other_dsn: str, monkeypatch: Any) -> None:
    """Where only the workers go through such a proxy, what the server calls theirs decides as well."""
    qwf.configure(db_url=other_dsn)
    monkeypatch.setattr(
        "queue_workflows.repositories.sql.configured_database._configured", lambda: frozenset({"alias"})
    )
    with psycopg.connect(other_dsn) as connection:
        assert qwf.enqueue_ingest_job("t", conn=connection, **ONE).created
        connection.rollback()
    monkeypatch.setattr("queue_workflows.repositories.sql.configured_database._of_tests", set())
    with psycopg.connect(qwf_dsn) as connection, pytest.raises(OtherDatabase):
        qwf.enqueue_ingest_job("t", conn=connection, **ONE)
    close_own()


@every_kind
def test_a_verb_in_the_wrong_form(kind: type[Brought], qwf_dsn: str) -> None:
    """An awaitable verb with a synchronous connection, or the other way round, names the right form."""

    async def scene() -> None:
        async with kind(qwf_dsn) as brought:
            wrong = Given(brought.handle, awaited=not brought.awaited)
            error = await refused(wrong, UnusableConnection)
            assert error.state == ("asynchronous" if brought.awaited else "synchronous")
            assert "`a` in front" in str(error)

    before = written(qwf_dsn)
    asyncio.run(scene())
    assert written(qwf_dsn) == before


@pytest.mark.parametrize("awaited", [False, True], ids=["called", "awaited"])
@pytest.mark.parametrize("handle", ["postgresql://host/db", 7], ids=str)
def test_something_else_entirely(handle: Any, awaited: bool) -> None:
    """In either form of a verb it is named, with what is wanted."""
    error = asyncio.run(refused(Given(handle, awaited=awaited), UnusableConnection))
    assert "psycopg 3 connection" in str(error)
    assert error.kind == f"{type(handle).__module__}.{type(handle).__qualname__}"


def test_other_databases_than_postgres() -> None:
    """A driver's, SQLAlchemy's and Django's connections to SQLite are named with what they are on."""
    raw = sqlite3.connect(":memory:")
    assert asyncio.run(refused(Given(raw, awaited=False), UnusableConnection)).kind == "sqlite3.Connection"
    raw.close()
    with sa.create_engine("sqlite://").connect() as connection:
        error = asyncio.run(refused(Given(connection, awaited=False), UnusableConnection))
    assert error.state == "on sqlite+pysqlite"
    from django.db.backends.sqlite3.base import DatabaseWrapper

    lite: Any = DatabaseWrapper(
        {"NAME": ":memory:", "ENGINE": "django.db.backends.sqlite3", "TIME_ZONE": None}
    )
    assert asyncio.run(refused(Given(lite, awaited=False), UnusableConnection)).state == "on sqlite"


def test_an_asynchronous_session_on_another_driver() -> None:
    """It is named with its driver before anything is connected."""

    class Dialect(sa.dialects.postgresql.psycopg.PGDialectAsync_psycopg):
        driver = "psqlpy"

    engine = create_async_engine(
        "postgresql+psycopg_async://", async_creator=lambda: pytest.fail("connected")
    )
    engine.sync_engine.dialect = Dialect(dbapi=engine.dialect.dbapi)
    error = asyncio.run(refused(Given(AsyncSession(engine), awaited=True), UnusableConnection))
    assert error.state == "on postgresql+psqlpy"
