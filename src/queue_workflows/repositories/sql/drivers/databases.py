"""Which database a connection is to, as its client says it: nothing is asked of a server."""

from __future__ import annotations

from typing import Any


def database_of(handle: Any) -> str | None:
    """Its name; None where only the server would know."""
    for read in (_of_psycopg, _of_sqlalchemy, _of_asyncpg, _of_psycopg2, _of_django):
        try:
            if (found := read(handle)) is not None:
                return str(found)
        except Exception:  # noqa: S112 - a kind that it is not, or one that is closed
            continue
    return None


def _of_psycopg(handle: Any) -> Any:
    return handle.pgconn.db.decode()


def _of_sqlalchemy(handle: Any) -> Any:
    bind = handle.get_bind() if hasattr(handle, "get_bind") else handle
    url = bind.engine.url
    return url.database or url.query.get("dbname")


def _of_asyncpg(handle: Any) -> Any:
    return handle._params.database


def _of_psycopg2(handle: Any) -> Any:
    return handle.info.dbname


def _of_django(handle: Any) -> Any:
    return handle.settings_dict["NAME"]
