"""Answers count from when they were given: in time or too late, before their question, and how many ever."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from uuid import UUID

import psycopg
import pytest
from support.connections.kept import own_connection
from support.rows.jobs import CLEAR
from support.rows.runs import dispatcher, run_through, settle, start

from queue_workflows.engine.runs import parked_inputs
from queue_workflows.repositories import InputSubmissionRepository, RunRepository
from queue_workflows.repositories.runs.parked import ParkedJobRepository

ASK = {"nodes": [{"id": "ask", "type": "input", "schema": {"ok": {"type": "boolean"}}, "expires_s": 3600}]}
AGO = "UPDATE workflow_node_jobs SET expires_at = now() - %s * interval '1 minute'"


@pytest.fixture
def conn(qwf_dsn: str) -> Iterator[psycopg.Connection]:
    with own_connection(qwf_dsn) as connection:
        connection.execute(CLEAR)
        yield connection


def ended(connection: psycopg.Connection, run_id: UUID) -> Any:
    return RunRepository(connection).fetch(run_id).status  # type: ignore[union-attr]


def told(connection: psycopg.Connection, answer: int) -> tuple[str, str | None]:
    row = InputSubmissionRepository(connection).fetch(answer)
    assert row is not None
    return row.status, row.error


def test_one_that_is_too_late_is_refused(conn: psycopg.Connection) -> None:
    """Also before anybody has ended the question, by whoever may insert it."""
    run_id = start(conn, ASK)
    own = dispatcher(conn)
    settle(own)
    conn.execute(AGO, [1])
    late = InputSubmissionRepository(conn).insert(run_id, "ask", {"ok": True})
    settle(own)
    assert told(conn, late) == ("rejected", "node ask waits for no answer any more: its time is over")
    assert ParkedJobRepository(conn).expire().ended == 1
    settle(own)
    assert ended(conn, run_id) == "failed"


def test_one_that_was_given_in_time_counts(conn: psycopg.Connection) -> None:
    """Nobody took it up for an hour, and whoever comes then ends no question that has its answer."""
    run_id = start(conn, ASK)
    own = dispatcher(conn)
    settle(own)
    answer = InputSubmissionRepository(conn).insert(run_id, "ask", {"ok": True})
    conn.execute("UPDATE workflow_input_submissions SET created_at = now() - interval '1 hour'")
    conn.execute(AGO, [30])
    assert ParkedJobRepository(conn).expire() == (0, None)
    settle(own)
    assert (told(conn, answer), ended(conn, run_id)) == (("accepted", None), "completed")


def test_a_wrong_one_in_time_holds_the_end_up_no_longer(conn: psycopg.Connection) -> None:
    """Once it is rejected, the question has no answer."""
    run_id = start(conn, ASK)
    own = dispatcher(conn)
    settle(own)
    InputSubmissionRepository(conn).insert(run_id, "ask", {"ok": "yes"})
    conn.execute("UPDATE workflow_input_submissions SET created_at = now() - interval '1 hour'")
    conn.execute(AGO, [30])
    settle(own)
    assert ParkedJobRepository(conn).expire().ended == 1
    settle(own)
    assert ended(conn, run_id) == "failed"


def test_however_many_come_early(conn: psycopg.Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    """All are taken up in their order: wrong ones are rejected, and so are those behind the good one."""
    monkeypatch.setattr(parked_inputs, "AT_ONCE", 3)
    monkeypatch.setattr(parked_inputs, "PENDING", parked_inputs.PENDING.replace("LIMIT 100", "LIMIT 3"))
    run_id = start(
        conn, {"nodes": [{"id": "first", "module": "m"}, {**ASK["nodes"][0], "depends_on": ["first"]}]}
    )
    answers = InputSubmissionRepository(conn)
    own = dispatcher(conn)
    early = [answers.insert(run_id, "ask", {"ok": "yes"}) for _ in range(7)]
    early += [answers.insert(run_id, "ask", {"ok": True}) for _ in range(2)]
    settle(own)
    assert {told(conn, answer)[0] for answer in early} == {"pending"}
    run_through(conn, own, lambda _: {})
    assert [told(conn, answer)[0] for answer in early] == ["rejected"] * 7 + ["accepted", "rejected"]
    assert ended(conn, run_id) == "completed"
