"""A browser for each file of tests, and the page over a database of its own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import psycopg
import pytest
from support.connections.kept import own_connection
from support.rows.jobs import CLEAR_WITH_WORKERS, Jobs
from support.servers.browsed_page import OPERATOR, BrowsedPage, browsed_page

if TYPE_CHECKING:
    from support.browser.chromium import Browser, Tabs


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """The driver of a browser runs an event loop in this thread, so it does not outlive the file."""
    from support.browser.chromium import chromium

    with chromium() as browser:
        yield browser


@pytest.fixture
def tabs(browser: Browser) -> Iterator[Tabs]:
    """The tabs of one test."""
    from support.browser.chromium import Tabs

    tabs = Tabs(browser)
    yield tabs
    tabs.close()


@pytest.fixture(scope="module")
def shared(browser: Browser) -> Iterator[Tabs]:
    """One tab of the operator for a whole file: one for each test costs more than what is done in it."""
    from support.browser.chromium import Tabs

    tabs = Tabs(browser)
    tabs.open(OPERATOR)
    yield tabs
    tabs.close()


@pytest.fixture
def reader(shared: Tabs) -> Tabs:
    """That tab on an empty page; what it complained of before is not this test's."""
    shared.only.goto("about:blank")
    shared.complaints.clear()
    return shared


@pytest.fixture
def conn(qwf_dsn: str) -> Iterator[psycopg.Connection]:
    """A test's own hands in the database, whose tables are empty."""
    with own_connection(qwf_dsn) as connection:
        connection.execute(CLEAR_WITH_WORKERS)
        yield connection


@pytest.fixture
def ingest(conn: psycopg.Connection) -> Jobs:
    """Jobs of one family."""
    return Jobs("ingest", conn)


@pytest.fixture
def page(qwf_dsn: str, conn: psycopg.Connection) -> Iterator[BrowsedPage]:
    """The page, which knows an operator and a viewer."""
    with browsed_page(qwf_dsn) as page:
        yield page
