"""Heartbeats that the host agent writes say nothing that is over."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from support.connections.kept import own_connection

from queue_workflows.repositories import HeartbeatRepository
from queue_workflows.repositories.workers.heartbeats import Said
from queue_workflows.roles.agent.rounds import Rounds

RESTING: Said = {"host_label": "h", "queue": "fetch", "pid": 7, "state": "idle", "control_version": 3}
SEEN = "SELECT worker_id, state, control_version FROM worker_heartbeats ORDER BY worker_id"
LONG_AGO = "UPDATE worker_heartbeats SET last_seen = now() - interval '1 minute'"


@pytest.fixture
def connection(qwf_dsn: str) -> Iterator[psycopg.Connection[Any]]:
    with own_connection(qwf_dsn) as connection:
        connection.execute("DELETE FROM worker_heartbeats")
        yield connection
        connection.execute("DELETE FROM worker_heartbeats")


def test_no_row_comes_back_and_newer_words_stand(connection: psycopg.Connection[Any]) -> None:
    """A worker that has ended stays gone, one that has spoken since is as it said; the agent is told."""
    heartbeats, rounds = HeartbeatRepository(connection), Rounds()
    heartbeats.beat("h:fetch:1", host_label="h", queue="fetch", pid=7, state="paused", control_version=4)
    for worker_id in ("h:fetch:1", "h:fetch:2"):
        rounds.beat(worker_id, RESTING, 10.0)
    rounds.ask(connection, [], 12.0)
    assert rounds.unknown == ["h:fetch:2"]
    assert connection.execute(SEEN).fetchall() == [("h:fetch:1", "paused", 4)]
    connection.execute(LONG_AGO)
    rounds.beat("h:fetch:1", RESTING, 12.0)
    rounds.ask(connection, [], 12.5)
    assert rounds.unknown == []
    assert connection.execute(SEEN).fetchall() == [("h:fetch:1", "idle", 3)]


def test_what_is_old_is_written_no_more(connection: psycopg.Connection[Any]) -> None:
    """As of an agent that was stopped, or of a worker that has left it."""
    rounds = Rounds()
    heartbeats = HeartbeatRepository(connection)
    for worker_id in ("h:fetch:1", "h:fetch:2"):
        heartbeats.beat(worker_id, host_label="h", queue="fetch", pid=7, state="paused")
        rounds.beat(worker_id, RESTING, 10.0 if worker_id.endswith("1") else 19.0)
    connection.execute(LONG_AGO)
    rounds.forget("h:fetch:2")
    rounds.ask(connection, [], 20.0)
    assert connection.execute(SEEN).fetchall() == [("h:fetch:1", "paused", 0), ("h:fetch:2", "paused", 0)]
