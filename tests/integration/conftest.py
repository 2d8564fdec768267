"""Fixtures for tests of real workers, and of embedded servers that they start and kill."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from support.connections.kept import own_connection
from support.rows.jobs import CLEAR_WITH_WORKERS
from support.rows.roles import Roles, least_privilege
from support.servers.places import passable_directory

from queue_workflows import db
from queue_workflows.repositories import IngestJobRepository


@pytest.fixture
def conn(qwf_dsn: str) -> Iterator[psycopg.Connection]:
    """The test's own eyes and hands on empty tables; the workers see its every statement at once."""
    with own_connection(qwf_dsn) as connection:
        connection.execute(CLEAR_WITH_WORKERS)
        yield connection


@pytest.fixture
def jobs(conn: psycopg.Connection) -> IngestJobRepository:
    """What a test does to jobs, through its own connection."""
    return IngestJobRepository(conn)


@pytest.fixture
def passable_dir() -> Iterator[Path]:
    """A short directory that every account can enter; nothing may still run in it when the test ends."""
    with passable_directory() as made:
        yield made


@pytest.fixture
def data_dir(passable_dir: Path) -> Path:
    """Where an embedded server may live."""
    return passable_dir / ".qwf"


@pytest.fixture
def roles(qwf_new_database, qwf_role_suffix) -> Iterator[Roles]:
    """A database made by its migrator, with the grants of the docs."""
    with least_privilege(qwf_new_database(template=False), qwf_role_suffix) as roles:
        db.bootstrap(roles.dsn("migrator"))
        roles.grant()
        yield roles
