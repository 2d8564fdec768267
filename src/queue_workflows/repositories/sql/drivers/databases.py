"""Which database a connection is to, as its client says it: nothing is asked of a server."""

from __future__ import annotations

from typing import Any


def of_psycopg(connection: Any) -> str:
    """Of either connection of psycopg 3."""
    name: bytes = connection.pgconn.db
    return name.decode()


def of_sqlalchemy(handle: Any) -> str | None:
    """Of a Session's or Connection's engine; None where that was made without an address."""
    bind = handle.get_bind() if hasattr(handle, "get_bind") else handle
    url = bind.engine.url
    name: str | None = url.database or url.query.get("dbname")
    return name


def of_asyncpg(connection: Any) -> str:
    """As it was connected to."""
    name: str = connection._params.database
    return name


def of_psycopg2(connection: Any) -> str:
    """As libpq has it."""
    name: str = connection.info.dbname
    return name


def of_django(connection: Any) -> str:
    """As the settings have it, which in a test are those of the test's own."""
    name: str = connection.settings_dict["NAME"]
    return name
