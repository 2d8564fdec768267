"""What a page may cost: as many rows as can be read, and no more looks waiting than can be served soon."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest
from support.processes.workers import until
from support.rows.jobs import Jobs
from support.servers.web_page import OperatorsPage, text_of

from queue_workflows.db.doctor.findings import Report
from queue_workflows.repositories.explain.explain_job import COUNTED_AHEAD_IN_BRIEF
from queue_workflows.repositories.workers.heartbeats import HeartbeatRepository
from queue_workflows.repositories.workers.obedience import MOST
from queue_workflows.web.database.last_report import KEPT_FOR_S, LastReport
from queue_workflows.web.database.opened import OpenedDatabase
from queue_workflows.web.database.readers import MOST_WAITING_BESIDE, Busy, Readers, within


def test_what_takes_its_time_is_waited_for_by_a_few(qwf_dsn: str) -> None:
    """One more look at the doctor is told to try again."""

    async def test() -> None:
        readers, may_end = Readers(OpenedDatabase(qwf_dsn)), threading.Event()
        looks = [
            asyncio.create_task(readers.beside(lambda _: may_end.wait(60)))
            for _ in range(MOST_WAITING_BESIDE)
        ]
        await asyncio.sleep(0)
        with pytest.raises(Busy):
            await readers.beside(lambda _: True)
        may_end.set()
        assert await asyncio.gather(*looks) == [True] * MOST_WAITING_BESIDE
        assert await readers.beside(lambda _: "again") == "again"
        readers.close()

    asyncio.run(asyncio.wait_for(test(), 60))


def test_a_look_as_a_whole_has_an_end(qwf_dsn: str) -> None:
    """However many quick statements it has: none begins when its time is over, and the next look is whole."""

    async def test() -> None:
        readers = Readers(OpenedDatabase(qwf_dsn), threads=1, look_within_s=0.2)
        asked = 0

        def without_end(conn: psycopg.Connection) -> None:
            nonlocal asked
            while True:
                conn.execute("SELECT pg_sleep(0.02)")
                asked += 1

        with pytest.raises(psycopg.errors.QueryCanceled):
            await readers.ask(without_end)
        assert 1 <= asked <= 10
        readers.look_within_s = 60.0
        assert await readers.ask(lambda conn: conn.execute("SELECT 1").fetchone()) == (1,)
        readers.close()

    asyncio.run(asyncio.wait_for(test(), 60))


def test_a_part_that_may_be_missing_is_given_up_within_the_look(qwf_dsn: str) -> None:
    """The rest of the look goes on, and ends where it had to."""

    async def test() -> None:
        readers = Readers(OpenedDatabase(qwf_dsn), threads=1, look_within_s=0.5)
        told: list[str] = []

        def look(conn: psycopg.Connection) -> None:
            with pytest.raises(psycopg.errors.QueryCanceled), within(conn, 20):
                conn.execute("SELECT pg_sleep(30)")
            conn.execute("SELECT 1")
            told.append("went on")
            with within(conn, 1000):
                conn.execute("SELECT pg_sleep(0.6)")
                conn.execute("SELECT 1")

        with pytest.raises(psycopg.errors.QueryCanceled):
            await readers.ask(look)
        assert told == ["went on"]
        assert await readers.ask(lambda conn: conn.info.transaction_status.name) == "INTRANS"
        readers.close()

    asyncio.run(asyncio.wait_for(test(), 60))


def test_many_that_look_at_the_doctor_cost_one_examination(qwf_dsn: str) -> None:
    """It is kept for some seconds, with the time that it is of, and made anew when that is over."""
    examined: list[str | None] = []

    def examine(dsn: str | None) -> Report:
        examined.append(dsn)
        return Report(())

    last = LastReport(lambda: qwf_dsn, kept_for_s=600.0, read=examine)
    with ThreadPoolExecutor(4) as pool:
        reports = list(pool.map(lambda _: last.report(), range(8)))
    assert (examined, len(set(map(id, reports)))) == ([qwf_dsn], 1)
    again = LastReport(lambda: qwf_dsn, kept_for_s=0.0, shown_for_s=0.0, read=examine)
    assert again.report() is not again.report()
    assert examined == [qwf_dsn] * 3


def test_the_doctor_asks_as_little_as_a_live_page(qwf_dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its statements, over the time for which their report is kept, are no more than eight a second."""
    asked: list[str] = []
    before = psycopg.Cursor.execute

    def counted(cursor: Any, query: Any, *more: Any, **named: Any) -> Any:
        asked.append(str(query))
        return before(cursor, query, *more, **named)

    monkeypatch.setattr(psycopg.Cursor, "execute", counted)
    last = LastReport(lambda: qwf_dsn, kept_for_s=600.0)
    assert last.report().report.checks
    assert 1 <= len(asked) <= 8 * KEPT_FOR_S
    asked.clear()
    last.report()
    assert asked == []


def test_an_older_report_is_shown_while_the_next_one_is_made(qwf_dsn: str) -> None:
    """Nobody waits for it but the first; it says that the next one is on its way."""
    made, may_end = threading.Semaphore(0), threading.Event()

    def examine(_dsn: str | None) -> Report:
        made.release()
        assert may_end.wait(60)
        return Report(())

    may_end.set()
    last = LastReport(lambda: qwf_dsn, kept_for_s=0.0, shown_for_s=600.0, read=examine)
    first = last.report()
    assert made.acquire(timeout=60)
    may_end.clear()
    older = last.report()
    assert (older.at, older.is_made_anew) == (first.at, True)
    assert made.acquire(timeout=60)
    assert last.report().at == first.at
    may_end.set()
    until(lambda: last.report().at != first.at)


def test_the_doctors_page_says_of_when_it_is(page: OperatorsPage) -> None:
    """And that a look again shows nothing newer for some seconds."""
    first, second = page.get("/doctor"), page.get("/doctor")
    assert "examined anew at most every 10s" in text_of(first)
    assert first.text == second.text


def test_more_workers_than_are_shown_are_those_heard_of_last(
    page: OperatorsPage, conn: psycopg.Connection
) -> None:
    """The list says that there are more."""
    conn.execute(
        "INSERT INTO worker_heartbeats (worker_id, host_label, queue, pid, state, last_seen)"
        " SELECT 'w' || n, 'h', 'fetch', 1, 'idle', statement_timestamp() - n * interval '1 ms'"
        f" FROM generate_series(1, {MOST} + 2) AS n"
    )
    found = {one.worker_id for one in HeartbeatRepository(conn).standing()}
    assert found == {f"w{n}" for n in range(1, MOST + 1)}
    assert "heard of longer ago" in text_of(page.get("/workers"))


def test_failures_of_very_many_kinds_are_a_page_all_the_same(
    page: OperatorsPage, conn: psycopg.Connection
) -> None:
    """The most frequent are shown, and how many are not; a program gets them all."""
    conn.execute(
        """INSERT INTO ingest_jobs (task_name, queue, status, finished_at, errors)
        SELECT 'load', 'fetch', 'failed', now(), jsonb_build_array(jsonb_build_object(
            'kind', 'exception', 'message', translate(number::text, '0123456789', 'qwrtyupsgh')))
        FROM generate_series(1, 207) AS number"""
    )
    shown = page.get("/failures")
    assert shown.text.count("<tr>") == 201
    assert "7 rarer groups are not shown" in text_of(shown)
    assert len(page.get("/failures.json").json()) == 207


def test_the_page_of_a_job_counts_to_a_thousand_what_comes_before_it(
    page: OperatorsPage, ingest: Jobs
) -> None:
    """Each of them is a row to read; a program gets the count that the command has."""
    *_, near, _, last = ingest.enqueue(COUNTED_AHEAD_IN_BRIEF + 3)
    assert f"{COUNTED_AHEAD_IN_BRIEF:,} jobs of the queue before it" in text_of(
        page.get(f"/jobs/ingest:{near}")
    )
    assert "more than 1,000 jobs of the queue before it" in text_of(page.get(f"/jobs/ingest:{last}"))
    (ahead,) = (
        reason["data"]["ahead"]
        for reason in page.get(f"/jobs/ingest:{last}/explain.json").json()["reasons"]
        if reason["code"] == "behind"
    )
    assert ahead == COUNTED_AHEAD_IN_BRIEF + 2
