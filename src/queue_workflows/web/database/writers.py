"""The threads that act, each act on a connection of its own, which no page reads from."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from typing import Any, Final, TypeVar

import psycopg

from queue_workflows.web.database.opened import OpenedDatabase

T = TypeVar("T")

THREADS: Final = 2
# What a lock of somebody else's holds up is given up, and said so, long before a browser does.
LOCK_WITHIN: Final = "SET lock_timeout = '5s'"


class Writers:
    """Acts for signed-in users."""

    def __init__(self, opened: OpenedDatabase, *, threads: int = THREADS) -> None:
        self._opened = opened
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="qwf-web-writer")
        self._ending = threading.Event()

    def is_ending(self) -> bool:
        """Whether what goes on in pages shall stop after the one that it is at."""
        return self._ending.is_set()

    def begin(self, act: Callable[[psycopg.Connection[Any]], T]) -> Future[T]:
        """Have it done as soon as a thread is free, on an autocommit connection of its own."""
        return self._pool.submit(self._act, act)

    async def ask(self, act: Callable[[psycopg.Connection[Any]], T]) -> T:
        """Have it done, and wait for what it says."""
        return await asyncio.wrap_future(self.begin(act))

    def close(self) -> None:
        """Take no more; what has begun stops where it can."""
        self._ending.set()
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _act(self, act: Callable[[psycopg.Connection[Any]], T]) -> T:
        with closing(self._opened.connect()) as connection:
            connection.execute(LOCK_WITHIN)
            return act(connection)
