"""What becomes ready at once is opened in parts, each a transaction of its own, however much it is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from uuid import UUID

import psycopg
import pytest
from support.connections.kept import own_connection
from support.rows.jobs import CLEAR
from support.rows.runs import dispatcher, run_through, settle, start, work

from queue_workflows.engine.runs import advance
from queue_workflows.engine.runs.verbs import cancel_run
from queue_workflows.repositories import RunRepository

ROOTS = {"nodes": [{"id": f"n{number}", "module": "m"} for number in range(10)]}
# With one above them, one below them, and one that tidies up.
FAN = {
    "nodes": [
        {"id": "first", "module": "m"},
        *({"id": f"n{number}", "module": "m", "depends_on": ["first"]} for number in range(10)),
        {"id": "last", "module": "m", "depends_on": [f"n{number}" for number in range(10)]},
        {"id": "tidy", "module": "m", "depends_on": ["last"], "when": "all_done"},
    ]
}
LISTS = {
    "nodes": [
        {"id": f"each{number}", "module": "m", "for_each": {"$value": [1, 2, 3]}} for number in range(5)
    ]
}
# Each is skipped as soon as the one before is, so that one event has no end.
SKIPPED = {
    "nodes": [
        {"id": f"n{number}", "module": "m", "skip_if": True, "depends_on": [f"n{number - 1}"][:number]}
        for number in range(10)
    ]
}


@pytest.fixture
def conn(qwf_dsn: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[psycopg.Connection]:
    monkeypatch.setattr(advance, "NODES_AT_ONCE", 4)
    monkeypatch.setattr(advance, "ROWS_AT_ONCE", 6)
    with own_connection(qwf_dsn) as connection:
        connection.execute(CLEAR)
        yield connection


def jobs(connection: psycopg.Connection) -> int:
    return connection.execute("SELECT count(*) FROM workflow_node_jobs").fetchone()[0]  # type: ignore[index]


def status(connection: psycopg.Connection, run_id: UUID) -> str:
    return RunRepository(connection).fetch(run_id).status  # type: ignore[union-attr]


def opened(connection: psycopg.Connection, run_id: UUID) -> list[int]:
    """How many jobs there were after each batch, by another dispatcher each time."""
    counts = []
    while dispatcher(connection).dispatch(run_id):
        counts.append(jobs(connection))
    return counts


@pytest.mark.parametrize(
    ("document", "counts"), [(ROOTS, [4, 8, 10]), (LISTS, [6, 9, 12, 15])], ids=["nodes", "lists"]
)
def test_a_run_begins_in_parts(conn: psycopg.Connection, document: Any, counts: list[int]) -> None:
    """None is as large as the run; all are opened once, and the run completes."""
    run_id = start(conn, document)
    assert opened(conn, run_id) == counts
    run_through(conn, dispatcher(conn), lambda _: {})
    assert (status(conn, run_id), jobs(conn)) == ("completed", counts[-1])


def test_what_a_node_lets_start_is_opened_in_parts(conn: psycopg.Connection) -> None:
    """Those beyond the first part wait meanwhile, and whoever waits for all of them waits for them too."""
    run_id = start(conn, FAN)
    assert opened(conn, run_id) == [1]
    work(conn, lambda _: {})
    assert opened(conn, run_id) == [5, 9, 11]
    run_through(conn, dispatcher(conn), lambda _: {})
    assert (status(conn, run_id), jobs(conn)) == ("completed", 13)


def test_a_cascade_goes_on_in_the_next_batch(conn: psycopg.Connection) -> None:
    """Nodes that are skipped one after the other do not make a batch as long as the run either."""
    run_id = start(conn, SKIPPED)
    batches = 0
    while dispatcher(conn).dispatch(run_id):
        batches += 1
    assert (status(conn, run_id), batches) == ("completed", 3)


def test_other_events_do_not_wait_for_the_parts(conn: psycopg.Connection) -> None:
    """A cancel is acted upon with the next batch, and what was put off is not opened any more."""
    run_id = start(conn, ROOTS)
    own = dispatcher(conn)
    assert (own.dispatch(run_id), jobs(conn)) == (True, 4)
    cancel_run(run_id, conn=conn)
    assert own.dispatch(run_id)
    assert (status(conn, run_id), jobs(conn)) == ("cancelled", 4)
    settle(own)
    assert (status(conn, run_id), jobs(conn)) == ("cancelled", 4)


def test_a_failure_between_two_parts_stops_the_rest(conn: psycopg.Connection) -> None:
    """Nodes that were put off have no row, and count as the others that a stop meets waiting."""
    run_id = start(conn, ROOTS)
    own = dispatcher(conn)
    own.dispatch(run_id)

    def fail(_: Any) -> None:
        raise ValueError("no")

    work(conn, fail)
    settle(own)
    assert (status(conn, run_id), jobs(conn)) == ("failed", 4)


def test_a_failure_stops_lists_that_have_no_element_yet(conn: psycopg.Connection) -> None:
    run_id = start(conn, LISTS)
    own = dispatcher(conn)
    own.dispatch(run_id)

    def fail(_: Any) -> None:
        raise ValueError("no")

    work(conn, fail)
    settle(own)
    assert (status(conn, run_id), jobs(conn)) == ("failed", 6)


def test_a_turn_that_put_something_off_has_more(conn: psycopg.Connection) -> None:
    """So that who is woken by nobody goes on at once."""
    start(conn, ROOTS)
    own = dispatcher(conn)
    turns = [(own.turn(), own.has_more) for _ in range(4)]
    assert turns == [(1, True), (1, True), (1, True), (0, False)]
