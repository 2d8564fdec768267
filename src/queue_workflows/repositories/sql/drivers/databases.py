"""Which database a connection is to, as its client says it: nothing is asked of a server."""

from __future__ import annotations

import sys
from collections.abc import Collection
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


def is_made_by_django(handle: Any, name: str, configured: Collection[str]) -> bool:
    """Whether it is Django's connection, and its test runner made this database in place of a configured one.

    Then the settings have the name that it gave: that of `TEST`, or a configured one behind `test_`, with
    more behind it where tests run beside each other.
    """
    settings = getattr(handle, "settings_dict", None)
    testing = getattr(sys.modules.get("django.test.utils"), "_TestState", None)
    if settings is None or not hasattr(testing, "saved_data"):
        return False
    stated = (settings.get("TEST") or {}).get("NAME")
    makes = [*(f"test_{one}" for one in configured), *([stated] if stated else [])]
    return any(name == make or name.startswith(f"{make}_") for make in makes)
