"""A host app's rows may refer to ingest jobs: none goes because a job moves, and no other job waits."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest
from support.rows.history import by_months, cleared, over, places, settle
from support.rows.runs import settings

from queue_workflows.cli.main import run
from queue_workflows.engine.upkeep import retention
from queue_workflows.engine.upkeep.retention import EVERY_S, Pruning
from queue_workflows.errors import ExitCode
from queue_workflows.repositories.history import HistoryRepository

ACTIONS = ["", "ON DELETE CASCADE", "ON DELETE SET NULL"]
ROWS = "SELECT job FROM invoice ORDER BY job"


@pytest.fixture
def connection(qwf_dsn: str) -> Iterator[psycopg.Connection[Any]]:
    """Empty tables, and a connection whose every statement is seen at once."""
    with cleared(qwf_dsn) as connection:
        yield connection


@contextmanager
def invoices(connection: psycopg.Connection[Any], ids: list[int], action: str = "") -> Iterator[None]:
    """A table of a host app that refers to jobs, with a row for each of these."""
    connection.execute(f"CREATE TABLE invoice (job bigint REFERENCES ingest_jobs (id) {action})")
    try:
        connection.execute("INSERT INTO invoice SELECT unnest(%s::bigint[])", [ids])
        yield
    finally:
        connection.execute("DROP TABLE invoice")


def prune(connection: psycopg.Connection[Any], pruning: Pruning | None = None) -> None:
    """All parts that one process prunes without a pause."""
    pruning = pruning or Pruning(settings())
    while pruning.prune(connection) < EVERY_S:
        pass


@pytest.mark.parametrize("action", ACTIONS)
def test_nothing_moves_while_a_foreign_key_refers_to_jobs(
    connection: psycopg.Connection[Any], caplog: pytest.LogCaptureFixture, action: str
) -> None:
    """It is said once, other duties go on, and jobs move once the key is gone."""
    ids, old = over(connection, 3), over(connection, days=100, status="failed")
    by_months(connection)
    with invoices(connection, ids[:2], action):
        pruning = Pruning(settings())
        for _ in range(3):
            prune(connection, pruning)
        assert places(connection) == (ids, [])
        assert not set(old) & set(ids)
        assert connection.execute(ROWS).fetchall() == [(one,) for one in ids[:2]]
        said = [one.message for one in caplog.records]
        assert [one.count("foreign keys refer to ingest_jobs: invoice (") for one in said] == [1]
    settle(connection)
    assert places(connection) == ([], ids)


def test_a_key_that_is_added_meanwhile_is_waited_for(
    connection: psycopg.Connection[Any], qwf_dsn: str
) -> None:
    """Another transaction adds it and has not committed: the mover leaves the jobs, and its rows stay."""
    ids = over(connection, 2)
    by_months(connection)
    with psycopg.connect(qwf_dsn) as app:
        app.execute("CREATE TABLE invoice (job bigint REFERENCES ingest_jobs (id) ON DELETE CASCADE)")
        app.execute("INSERT INTO invoice SELECT unnest(%s::bigint[])", [ids])
        settle(connection)
        assert places(connection) == (ids, [])
        app.commit()
        settle(connection)
        assert places(connection) == (ids, [])
        assert app.execute(ROWS).fetchall() == [(one,) for one in ids]
        app.execute("DROP TABLE invoice")


def test_partitions_are_refused_while_a_foreign_key_refers_to_jobs(
    connection: psycopg.Connection[Any], qwf_dsn: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """In one line that names it and says what to do; plain is as it was."""
    said = ["--db", qwf_dsn, "db", "history"]
    with invoices(connection, []):
        assert run([*said, "--partitioned"]) == ExitCode.CONFIGURATION
        refused = capsys.readouterr().err
        assert "foreign keys refer to ingest_jobs: invoice (invoice_job_fkey)" in refused
        assert "drop them" in refused
        assert HistoryRepository(connection).mode() is None
        assert run([*said, "--plain"]) == ExitCode.DONE
        assert capsys.readouterr().out == "history is plain, as it was\n"
    assert run([*said, "--partitioned"]) == ExitCode.DONE


@pytest.mark.parametrize("days", [31, 100], ids=["without a key", "whatever it has"])
def test_a_job_that_something_refers_to_stays_and_holds_up_no_other(
    connection: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch, days: int
) -> None:
    """Retention deletes the others, passes by that one, and deletes it within an hour once nothing does."""
    _, held, _ = over(connection, 3, days=days)
    pruning = Pruning(settings())
    with invoices(connection, [held]):
        prune(connection, pruning)
        assert places(connection) == ([held], [])
    connection.execute("UPDATE ingest_jobs SET finished_at = finished_at - interval '60 days'")
    later_on = SimpleNamespace(monotonic=lambda: time.monotonic() + 3600)
    monkeypatch.setattr(retention, "time", later_on)
    prune(connection, pruning)
    assert places(connection) == ([], [])
