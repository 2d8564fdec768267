"""The operator's page over the test file's own database, to user ada."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest
from support.rows.jobs import Jobs
from support.servers.web_page import OperatorsPage, served_page


@pytest.fixture
def page(qwf_dsn: str, conn: psycopg.Connection) -> Iterator[OperatorsPage]:
    """The page on empty tables."""
    with served_page(qwf_dsn) as page:
        yield page


@pytest.fixture
def ingest(conn: psycopg.Connection) -> Jobs:
    """Jobs of one family."""
    return Jobs("ingest", conn)
