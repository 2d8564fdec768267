"""What a page may cost: as many rows as can be read, and no more looks waiting than can be served soon."""

from __future__ import annotations

import asyncio
import threading

import psycopg
import pytest
from support.servers.web_page import OperatorsPage, text_of

from queue_workflows.web.database.opened import OpenedDatabase
from queue_workflows.web.database.readers import MOST_WAITING_BESIDE, Busy, Readers


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
