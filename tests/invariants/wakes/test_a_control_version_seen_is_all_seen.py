"""A worker that reports a control version has seen every change up to it, the taking back of a wish too."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest
from support.connections.kept import own_connection
from support.processes.workers import running_worker
from support.rows.schemas import blocked, until

from queue_workflows.repositories import (
    HeartbeatRepository,
    IngestJobRepository,
    Watched,
    WorkerControlRepository,
)

Change = Callable[[WorkerControlRepository], Any]


@pytest.fixture
def worker(qwf_dsn: str) -> Iterator[psycopg.Connection]:
    """Somebody who looks, with nothing wished and nothing changed yet."""
    with own_connection(qwf_dsn) as connection:
        connection.execute("TRUNCATE worker_control, worker_control_clock, worker_heartbeats")
        yield connection


@pytest.fixture
def operators(worker, qwf_dsn: str) -> Iterator[tuple[psycopg.Connection, psycopg.Connection]]:
    """Two operators, each in a transaction."""
    with psycopg.connect(qwf_dsn) as one, psycopg.connect(qwf_dsn) as two:
        yield one, two
        one.rollback()
        two.rollback()


def look(connection: psycopg.Connection) -> Watched:
    """What a worker of h1's queue `fetch` learns."""
    return IngestJobRepository(connection).watch([], host_label="h1", queue="fetch")


def pause(host_label: str) -> Change:
    """A wish for a host."""
    return lambda control: control.set(host_label, "fetch", "pause", actor="ann")


def clear(host_label: str) -> Change:
    """A wish taken back."""
    return lambda control: control.clear(host_label, "fetch", actor="bob")


def test_every_change_takes_the_next_version_and_a_look_tells_the_latest(worker) -> None:
    """Set, changed or taken back; what changed nothing takes none."""
    control = WorkerControlRepository(worker)
    assert (look(worker).control_version, control.version()) == (0, 0)
    first = control.set("h1", "fetch", "pause", actor="ann")
    assert (look(worker).control_version, look(worker).control.version) == (first.version, first.version)
    other = control.set("h2", "*", "off", actor="ann")
    assert other.version > first.version
    assert (look(worker).control_version, look(worker).control.version) == (other.version, first.version)
    gone = control.clear("h1", "fetch", actor="ann")
    assert gone.version > other.version
    assert (look(worker).control_version, look(worker).control) == (gone.version, None)
    assert control.clear("h1", "fetch", actor="ann") is None
    assert control.version() == gone.version


@pytest.mark.parametrize(
    ("first", "second"),
    [(pause("h1"), pause("h2")), (clear("h0"), pause("h2")), (pause("h1"), clear("h0"))],
    ids=["set and set", "clear and set", "set and clear"],
)
def test_a_later_version_is_committed_later(
    qwf_dsn, worker, operators, first: Change, second: Change
) -> None:
    """The second change waits for the first, so that nobody sees its version and misses the other."""
    control = WorkerControlRepository(worker)
    control.set("h0", "fetch", "pause", actor="eve")
    before = control.version()
    one, two = operators
    earlier = first(WorkerControlRepository(one))
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(second, WorkerControlRepository(two))
        until(lambda: two.info.backend_pid in blocked(qwf_dsn, one.info.backend_pid), "the wait")
        assert look(worker).control_version == before
        one.commit()
        later = waiting.result(150)
    assert look(worker).control_version == earlier.version
    two.commit()
    assert look(worker).control_version == later.version > earlier.version


@pytest.mark.parametrize(
    ("first", "second"),
    [(clear("h0"), pause("h0")), (pause("h0"), clear("h0")), (clear("h0"), clear("h0"))],
    ids=["clear and set", "set and clear", "clear and clear"],
)
def test_two_operators_at_one_row_do_not_deadlock(
    qwf_dsn, worker, operators, first: Change, second: Change
) -> None:
    """Everybody locks the clock before the row: the first may change it again while the second waits."""
    WorkerControlRepository(worker).set("h0", "fetch", "pause", actor="eve")
    one, two = operators
    first(WorkerControlRepository(one))
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(second, WorkerControlRepository(two))
        until(lambda: two.info.backend_pid in blocked(qwf_dsn, one.info.backend_pid), "the wait")
        last = pause("h0")(WorkerControlRepository(one))
        one.commit()
        done = waiting.result(150)
    two.commit()
    # Numbered when it had its turn, not when it began to wait; None if there was nothing left to take back.
    assert done is None or done.version > last.version


def test_a_real_worker_says_that_it_has_seen_on(qwf_dsn, worker) -> None:
    """Also a change that means nothing to it; who waits for `on` learns when it is obeyed."""
    control, beats = WorkerControlRepository(worker), HeartbeatRepository(worker)

    def seen_by_all(version: int) -> bool:
        return [beat.control_version for beat in beats.list()] == [version]

    with running_worker(qwf_dsn):
        until(lambda: [beat.state for beat in beats.list()] == ["idle"], "an idle worker")
        paused = control.set("here", "fetch", "pause", actor="ann")
        until(lambda: seen_by_all(paused.version), "the pause is seen")
        gone = control.clear("here", "fetch", actor="ann")
        until(lambda: seen_by_all(gone.version), "on is seen")
        elsewhere = control.set("there", "*", "off", actor="ann")
        until(lambda: seen_by_all(elsewhere.version), "a change for others is seen")
