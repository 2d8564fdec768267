"""The operator's page over the test file's own database, to user ada."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest
from support.connections.kept import own_connection
from support.rows.every_state import EveryState, put_every_state
from support.rows.jobs import Jobs
from support.servers.web_page import OperatorsPage, served_page

from queue_workflows.testing.servers import QwfServer


@pytest.fixture
def page(qwf_dsn: str, conn: psycopg.Connection) -> Iterator[OperatorsPage]:
    """The page on empty tables."""
    with served_page(qwf_dsn) as page:
        yield page


@pytest.fixture
def ingest(conn: psycopg.Connection) -> Jobs:
    """Jobs of one family."""
    return Jobs("ingest", conn)


@pytest.fixture(scope="module")
def full(qwf_dsn: str) -> EveryState:
    """Something in every state, once for a file that changes little of it."""
    with psycopg.connect(qwf_dsn, autocommit=True) as connection:
        return put_every_state(connection)


@pytest.fixture(scope="module")
def filled(qwf_dsn: str, full: EveryState) -> Iterator[OperatorsPage]:
    """The page over it."""
    with served_page(qwf_dsn) as page:
        yield page


@pytest.fixture(scope="module")
def empty(qwf_server: QwfServer) -> Iterator[OperatorsPage]:
    """The page over a database in which nothing ever happened."""
    with qwf_server.database() as dsn, served_page(dsn) as page:
        yield page


@pytest.fixture
def eyes(qwf_dsn: str, full: EveryState) -> Iterator[psycopg.Connection]:
    """The test's own eyes and hands on what is there."""
    with own_connection(qwf_dsn) as connection:
        yield connection
