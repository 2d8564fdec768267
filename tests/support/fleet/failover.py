"""Producers that go on through a failover, and what became of the jobs that were acknowledged to them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress

import psycopg
from support.processes.workers import patiently

from queue_workflows import enqueue_ingest_job
from queue_workflows.db.connections.engine import Database
from queue_workflows.errors import QwfError

KEYS = "SELECT dedupe_key, status FROM ingest_jobs"


class Producer(threading.Thread):
    """Enqueues jobs, each in a transaction of its own, and keeps the keys of those that were acknowledged.

    On the process's own connections, or with `dsn` on one of its own, which no other producer waits for.
    """

    def __init__(self, name: str, dsn: str | None = None) -> None:
        super().__init__(name=name, daemon=True)
        self.dsn = dsn
        self.acknowledged: list[str] = []
        self.ends = threading.Event()
        self.failed = 0
        self._number = 0

    def run(self) -> None:
        while not self.ends.is_set():
            try:
                if self.dsn is None:
                    self._enqueue(None)
                else:
                    self._enqueue_on_one(self.dsn)
            except (QwfError, psycopg.Error):
                self.failed += 1
                self.ends.wait(0.1)

    def _enqueue_on_one(self, dsn: str) -> None:
        with (
            Database.open(dsn, role="test") as database,
            closing(database.connect(autocommit=True)) as connection,
        ):
            while not self.ends.is_set():
                self._enqueue(connection)

    def _enqueue(self, connection: psycopg.Connection | None) -> None:
        self._number += 1
        key = f"{self.name}-{self._number}"
        enqueue_ingest_job("note", queue="fetch", dedupe_key=key, conn=connection)
        self.acknowledged.append(key)


@contextmanager
def producing(name: str, count: int = 3, dsn: str | None = None) -> Iterator[list[Producer]]:
    """So many of them, each ended when the block is."""
    producers = [Producer(f"{name}-{number}", dsn) for number in range(count)]
    for producer in producers:
        producer.start()
    try:
        yield producers
    finally:
        for producer in producers:
            producer.ends.set()
        for producer in producers:
            producer.join(300)


def acknowledged(producers: list[Producer]) -> int:
    """How many jobs they were told to be there."""
    return sum(len(producer.acknowledged) for producer in producers)


def statuses(dsn: str) -> dict[str, str]:
    """Of each job, by its key; nothing while no server takes writes."""
    with (
        suppress(QwfError, psycopg.Error),
        Database.open(dsn, role="test") as database,
        closing(database.connect()) as connection,
    ):
        return dict(connection.execute(KEYS).fetchall())
    return {}


def all_are_done(dsn: str, producers: list[Producer]) -> None:
    """What was acknowledged is there, and ends."""
    kept = {key for producer in producers for key in producer.acknowledged}
    patiently(lambda: bool(found := statuses(dsn)) and kept <= found.keys())
    patiently(lambda: set(statuses(dsn).values()) == {"completed"})
