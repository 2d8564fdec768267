"""The shop on a database of its tests: our tables are there already, its own come from its migrations."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from alembic import command
from alembic.config import Config
from fastapi.testclient import TestClient
from sqlalchemy import NullPool
from sqlalchemy.ext.asyncio import create_async_engine

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="session")
def qwf_dsn(qwf_server) -> Iterator[str]:
    """One database for all test files, as the shop has one engine; `qwf_jobs` is on it too."""
    with qwf_server.database() as dsn:
        yield dsn


@pytest.fixture(scope="session")
def client(qwf_dsn: str) -> Iterator[TestClient]:
    """The service, imported once its database is known."""
    url = qwf_dsn.replace("postgresql://", "postgresql+asyncpg://")
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("DATABASE_URL", url)
        patched.setenv("SECRET_KEY", "a secret of the tests")
        patched.setenv("STAFF_PASSWORD", "a password of the tests")
        command.upgrade(Config(ROOT / "alembic.ini"), "head")
        from shop.database import sessions
        from shop.main import app

        # Requests and jobs have an event loop each here, and a connection belongs to the loop it was made in.
        sessions.configure(bind=create_async_engine(url, poolclass=NullPool))
        with TestClient(app) as client:
            yield client
