"""One turn of a dispatcher: whom it tries first, and whether it may have left something."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest
from support.jobs import CLEAR
from support.runs import dispatcher, settle, start, work

from queue_workflows.repositories.dispatching import BEGUN_AT_ONCE, EVENTS_AT_ONCE

CHAIN = {"nodes": [{"id": "a", "module": "m"}, {"id": "b", "module": "m", "depends_on": ["a"]}]}


@pytest.fixture
def conn(qwf_dsn: str) -> Iterator[psycopg.Connection]:
    with psycopg.connect(qwf_dsn, autocommit=True) as connection:
        connection.execute(CLEAR)
        yield connection


def nobody() -> bool:
    return False


def test_a_wake_tries_the_run_that_moved_last(conn: psycopg.Connection) -> None:
    """Before it looks for any; without a wake, and after a turn that moved several, it looks."""
    own = dispatcher(conn)
    start(conn, CHAIN)
    assert own.turn() == 1
    work(conn, lambda _: {})
    assert own.turn(nobody) == 0
    assert own.turn() == 1
    work(conn, lambda _: {})
    assert own.turn(nobody, woken=True) == 1
    for _ in range(2):
        start(conn, CHAIN)
    assert own.turn() == 2
    work(conn, lambda _: {})
    assert own.turn(nobody, woken=True) == 0
    assert own.turn(woken=True) == 2


def test_a_full_batch_may_have_left_something(conn: psycopg.Connection) -> None:
    """One of events, one of runs to begin, and a turn that was told to stop; nothing else has."""
    own = dispatcher(conn)
    elements = list(range(EVENTS_AT_ONCE + 1))
    start(conn, {"nodes": [{"id": "each", "module": "m", "for_each": {"$value": elements}}]})
    assert (own.turn(), own.has_more) == (1, False)
    while work(conn, lambda _: {}):
        pass
    assert (own.turn(), own.has_more) == (1, True)
    assert (own.turn(), own.has_more) == (1, False)
    for _ in range(BEGUN_AT_ONCE):
        start(conn, CHAIN)
    assert (own.turn(nobody), own.has_more) == (0, True)
    assert (own.turn(), own.has_more) == (BEGUN_AT_ONCE, True)
    settle(own)
    assert not own.has_more
