"""Jobs that are over move to the history by months whole, and come back whole; each is in one place."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest
from support.rows.history import by_months, cleared, over, places, rows, settle
from support.rows.runs import settings

from queue_workflows.engine.operate.many_jobs import Verb, decide_matching
from queue_workflows.engine.upkeep import history
from queue_workflows.engine.upkeep.history import HistoryMoving
from queue_workflows.engine.upkeep.retention import EVERY_S, Pruning
from queue_workflows.repositories import IngestJobRepository
from queue_workflows.repositories.durable.fork import ForkRepository
from queue_workflows.repositories.history import HistoryRepository
from queue_workflows.repositories.reports.job_listing import JobFilter
from queue_workflows.states import JobStatus


@pytest.fixture
def connection(qwf_dsn: str) -> Iterator[psycopg.Connection[Any]]:
    """Empty tables, and a connection whose every statement is seen at once."""
    with cleared(qwf_dsn) as connection:
        yield connection


def test_nothing_moves_until_somebody_wants_it(connection: psycopg.Connection[Any]) -> None:
    """By default jobs stay in their table, and no month is made."""
    ids = over(connection, 3)
    settle(connection)
    assert places(connection) == (ids, [])
    assert HistoryRepository(connection).months() == []


def test_what_moves_and_what_stays(connection: psycopg.Connection[Any]) -> None:
    """Completed, skipped and cancelled jobs of a day ago and earlier move; what has a key or failed stays."""
    moved = [
        job for status in ("completed", "skipped", "cancelled") for job in over(connection, status=status)
    ]
    failed, keyed, ticked = over(connection, 3)
    connection.execute("UPDATE ingest_jobs SET status = 'failed' WHERE id = %s", [failed])
    connection.execute("UPDATE ingest_jobs SET dedupe_key = 'k' WHERE id = %s", [keyed])
    connection.execute("UPDATE ingest_jobs SET schedule_name = 's', tick_at = now() WHERE id = %s", [ticked])
    young = over(connection, days=0)
    waiting = IngestJobRepository(connection).enqueue("task", queue="fetch").id
    by_months(connection)
    settle(connection)
    assert places(connection) == ([failed, keyed, ticked, *young, waiting], moved)


def test_rows_come_back_as_they_were(connection: psycopg.Connection[Any]) -> None:
    """Every column, there and back; months are dropped once they are empty."""
    over(connection, 30, days=100)
    over(connection, 30)
    connection.execute(
        'UPDATE ingest_jobs SET begun_generation = 1, errors = \'[{"type": "E"}]\' WHERE id % 2 = 0'
    )
    before = rows(connection)
    by_months(connection)
    settle(connection, retention_days=1000)
    table, history = places(connection)
    assert (len(table), len(history)) == (0, 60)
    assert len(HistoryRepository(connection).months()) >= 2
    assert rows(connection) == before
    by_months(connection, False)
    settle(connection, retention_days=1000)
    assert places(connection) == (history, [])
    assert rows(connection) == before
    assert HistoryRepository(connection).months() == []


def test_no_job_is_passed_by_whatever_the_plan(connection: psycopg.Connection[Any]) -> None:
    """Beside many steps the planner may take jobs in any order: what ended first goes first all the same."""
    ids = over(connection, 4_500)
    # Ended in the other order than they were made.
    connection.execute(
        "UPDATE ingest_jobs SET finished_at = timestamptz '2026-01-01 00:00+00' - id * interval '1 s'"
    )
    connection.execute("ANALYZE ingest_jobs")
    by_months(connection)
    for join in ("nestloop", "hashjoin"):
        connection.execute(f"SET enable_{join} = off")
    settle(connection, retention_days=10_000)
    assert places(connection) == ([], ids)


def test_a_retry_by_id_finds_what_has_moved(connection: psycopg.Connection[Any]) -> None:
    """It is back in the table, claimed and completed as any other, and moves again some day."""
    moved, other = over(connection, 2)
    by_months(connection)
    settle(connection)
    jobs = IngestJobRepository(connection)
    assert jobs.retry_many([moved, other + 100], actor="ann") == {moved: 2}
    assert places(connection) == ([moved], [other])
    (job,) = jobs.claim("fetch", worker_id="w", lease_s=30)
    assert (job.id, job.attempt, job.generation) == (moved, 2, 2)
    assert jobs.complete(job) == JobStatus.COMPLETED
    settle(connection)
    assert places(connection) == ([moved], [other])


def test_a_fork_finds_what_has_moved(connection: psycopg.Connection[Any]) -> None:
    """A durable function that took no step moves as any other; it is back once a copy of it is made."""
    moved, other = over(connection, 2)
    by_months(connection)
    settle(connection)
    made = ForkRepository(connection).fork(moved, 1, actor="ann")
    assert made is not None
    assert places(connection) == ([moved, made], [other])
    assert ForkRepository(connection).fork(other + 100, 1, actor="ann") is None


def test_a_retry_that_is_rolled_back_leaves_the_job_where_it_was(
    connection: psycopg.Connection[Any],
) -> None:
    """A job comes back in the caller's transaction."""
    ids = over(connection, 2)
    by_months(connection)
    settle(connection)
    with connection.transaction(force_rollback=True):
        IngestJobRepository(connection).retry_many(ids, actor="ann")
        assert places(connection) == (ids, [])
    assert places(connection) == ([], ids)


def test_a_retry_by_filter_finds_what_has_moved(connection: psycopg.Connection[Any]) -> None:
    """Page by page, in the table first and then in the history."""
    moved = over(connection, 5, status="cancelled")
    left = over(connection, 2)
    by_months(connection)
    settle(connection)
    here = over(connection, 2, status="cancelled")
    wanted = JobFilter(queue="fetch", status=("cancelled",))
    pages = decide_matching(connection, Verb.RETRY, wanted, actor="ann", reason=None, page=2)
    assert sum(page["retried"] for page in pages) == 7
    assert places(connection) == (sorted(moved + here), left)
    queued = connection.execute("SELECT count(*) FROM ingest_jobs WHERE status = 'queued'").fetchone()
    assert queued == (7,)


def test_a_month_goes_with_its_last_day(connection: psycopg.Connection[Any]) -> None:
    """What ended in it is dropped with it; the table is pruned as ever."""
    old, young = over(connection, 4, days=200), over(connection, 4)
    by_months(connection)
    settle(connection, retention_days=1000)
    failed = over(connection, days=40, status="failed")
    pruning = Pruning(settings())
    while pruning.prune(connection) < EVERY_S:
        pass
    table, history = places(connection)
    assert (table, history) == ([], young)
    assert not set(old + failed) & {*table, *history}


def test_a_month_that_somebody_reads_is_dropped_later(
    connection: psycopg.Connection[Any], qwf_dsn: str
) -> None:
    """The mover waits for a moment and leaves it to a later turn."""
    old, young = over(connection, 4, days=200), over(connection, 4)
    by_months(connection)
    settle(connection, retention_days=1000)
    with psycopg.connect(qwf_dsn) as reader:
        reader.execute("SELECT count(*) FROM ingest_jobs_and_history")
        settle(connection)
        assert places(connection) == ([], old + young)
    settle(connection)
    assert places(connection) == ([], young)


def test_a_lock_that_readers_keep_is_asked_for_less_and_less(
    connection: psycopg.Connection[Any], qwf_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All that comes to read waits behind each try: for 20 ms, and after 1, 3, 7, 15, 30 and 45 minutes."""
    over(connection, 4, days=200)
    by_months(connection)
    settle(connection, retention_days=1000)
    clock, tried = SimpleNamespace(now=0), list[int]()
    clock.monotonic = lambda: clock.now * 60.0
    monkeypatch.setattr(history, "time", clock)
    drop = HistoryRepository.drop_month

    def counted(self: HistoryRepository, *, kept_s: float) -> str | None:
        tried.append(clock.now)
        return drop(self, kept_s=kept_s)

    monkeypatch.setattr(HistoryRepository, "drop_month", counted)
    moving = HistoryMoving(settings())
    with psycopg.connect(qwf_dsn) as reader:
        reader.execute("SELECT count(*) FROM ingest_jobs_and_history")
        for clock.now in range(60):
            moving.move(connection)
    assert tried == [0, 1, 3, 7, 15, 30, 45]
    clock.now = 60
    moving.move(connection)
    assert places(connection) == ([], [])
    bounds = connection.execute(
        "SELECT proname FROM pg_proc WHERE 'lock_timeout=20ms' = ANY (proconfig) ORDER BY proname"
    )
    assert [name for (name,) in bounds] == ["qwf_history_drop_month", "qwf_history_move"]


def test_a_month_is_made_a_day_ahead(connection: psycopg.Connection[Any], qwf_dsn: str) -> None:
    """So that to move the first jobs of it waits for nobody that reads; nor does what only makes it."""
    by_months(connection)
    moved = "SELECT moved FROM qwf_history_move(NULL, %s::timestamptz)"

    def months() -> list[str]:
        return [month.name for month in HistoryRepository(connection).months()]

    connection.execute(moved, ["2026-03-30 23:00+00"])
    assert months() == []
    with psycopg.connect(qwf_dsn) as reader:
        reader.execute("SELECT count(*) FROM ingest_jobs_and_history")
        assert connection.execute(moved, ["2026-03-31 01:00+00"]).fetchone() == (0,)
        assert months() == []
    connection.execute(moved, ["2026-03-31 01:00+00"])
    assert months() == ["2026_04"]
    (job,) = over(connection)
    connection.execute("UPDATE ingest_jobs SET finished_at = '2026-04-01 00:00+00' WHERE id = %s", [job])
    with psycopg.connect(qwf_dsn) as reader:
        reader.execute("SELECT count(*) FROM ingest_jobs_and_history")
        assert connection.execute(moved, ["2026-04-01 01:00+00"]).fetchone() == (1,)
    assert places(connection) == ([], [job])


def test_what_somebody_holds_stays_for_now(connection: psycopg.Connection[Any], qwf_dsn: str) -> None:
    """A mover waits for nobody; the job goes later, with retention."""
    held, other = over(connection, 2)
    by_months(connection)
    with psycopg.connect(qwf_dsn) as holder:
        holder.execute("SELECT FROM ingest_jobs WHERE id = %s FOR UPDATE", [held])
        settle(connection)
    assert places(connection) == ([held], [other])
    settle(connection, retention_days=1)
    connection.execute("UPDATE ingest_jobs SET finished_at = finished_at - interval '60 days'")
    pruning = Pruning(settings())
    while pruning.prune(connection) < EVERY_S:
        pass
    assert places(connection) == ([], [other])


def test_columns_of_one_table_alone_stop_the_mover(
    connection: psycopg.Connection[Any], caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing is moved to where a column of it would be lost; it is said once, and retention goes on."""
    ids = over(connection, 2)
    old = over(connection, days=40)
    by_months(connection)
    connection.execute("ALTER TABLE ingest_jobs ADD COLUMN new text")
    try:
        pruning = Pruning(settings())
        for _ in range(3):
            pruning.prune(connection)
        assert places(connection) == (ids, [])
        assert not set(old) & set(ids)
        assert [one.message.count("different columns") for one in caplog.records] == [1]
    finally:
        connection.execute("ALTER TABLE ingest_jobs DROP COLUMN new")
