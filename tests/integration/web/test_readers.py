"""What reads for the page: a few threads, and never more waiting than can be served soon."""

from __future__ import annotations

import asyncio
import threading

import pytest

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
