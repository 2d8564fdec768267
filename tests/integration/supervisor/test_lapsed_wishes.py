"""Operators' wishes for a while: when they are over, their rows go, and what was asked stays written."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest
from support.connections.kept import own_connection
from support.rows.roles import Roles

from queue_workflows.engine.upkeep.tick import sweep
from queue_workflows.repositories import WorkerControlRepository
from queue_workflows.settings import Settings

CHANGES = "SELECT subject_id, action FROM audit_log WHERE subject_kind = 'worker_control' ORDER BY id"
AGE = "UPDATE worker_control SET expires_at = expires_at - make_interval(hours => %s) WHERE host_label = %s"


@pytest.fixture
def connection(qwf_dsn: str) -> Iterator[psycopg.Connection]:
    """Without wishes and what was written of them."""
    with own_connection(qwf_dsn) as connection:
        connection.execute("TRUNCATE worker_control, audit_log")
        yield connection


def wishes(connection: psycopg.Connection) -> set[str]:
    """The hosts that have one."""
    return {wish.host_label for wish in WorkerControlRepository(connection).list()}


def tick(connection: psycopg.Connection, *, chance: float = 0.0) -> None:
    sweep(connection, Settings(), recovered_s=None, chance=lambda: chance)


def three_wishes(connection: psycopg.Connection) -> None:
    """One that is over for more than a day, one since a moment, and one for good."""
    control = WorkerControlRepository(connection)
    control.set("long over", "fetch", "off", actor="ann", expires_in=3600.0)
    control.set("just over", "fetch", "pause", actor="ann", expires_in=3600.0)
    control.set("for good", "fetch", "pause", actor="ann")
    connection.execute(AGE, [26, "long over"])
    connection.execute(AGE, [2, "just over"])


def test_what_is_over_for_a_day_goes_and_its_audit_stays(connection: psycopg.Connection) -> None:
    """Only now and then, and not as long as somebody may still wonder why a worker stood still."""
    three_wishes(connection)
    before = connection.execute(CHANGES).fetchall()
    version = WorkerControlRepository(connection).version()
    tick(connection, chance=0.01)
    assert wishes(connection) == {"long over", "just over", "for good"}
    tick(connection)
    assert wishes(connection) == {"just over", "for good"}
    assert connection.execute(CHANGES).fetchall() == before
    assert ("long over fetch", "workers.off") in before
    assert WorkerControlRepository(connection).version() == version


def test_one_that_is_being_renewed_is_left_alone(qwf_dsn: str, connection: psycopg.Connection) -> None:
    """Whoever asks again has the row in hand: nobody waits for that, and nothing of it is lost."""
    three_wishes(connection)
    with psycopg.connect(qwf_dsn) as operator:
        WorkerControlRepository(operator).set("long over", "fetch", "pause", actor="bob", expires_in=60.0)
        connection.execute("SET lock_timeout = '100ms'")
        tick(connection)
        connection.execute("RESET lock_timeout")
        assert "long over" in wishes(connection)
        operator.commit()
    tick(connection)
    found = WorkerControlRepository(connection).effective("long over", "fetch")
    assert found is not None
    assert (found.desired, found.actor) == ("pause", "bob")


def test_who_may_not_delete_wishes_sweeps_all_the_same(roles: Roles) -> None:
    """A worker with the least rights leaves them to the orchestrator."""
    with roles.connect("orchestrator") as orchestrator, roles.connect("worker") as worker:
        for connection in (orchestrator, worker):
            connection.autocommit = True
        three_wishes(orchestrator)
        tick(worker)
        assert wishes(orchestrator) == {"long over", "just over", "for good"}
        tick(orchestrator)
        assert wishes(orchestrator) == {"just over", "for good"}
