"""An idle worker's ear: it advertises itself, listens, and tells which wakes came by when."""

from __future__ import annotations

import secrets
from typing import Self

import psycopg

CHANNEL = "ingest_job_ready"


class Ear:
    """Listens for wakes of one queue on a connection of its own."""

    def __init__(self, dsn: str, queue: str = "fetch") -> None:
        self._dsn = dsn
        self._connection = psycopg.connect(dsn, autocommit=True)
        self._connection.execute(f"LISTEN {CHANNEL}")
        advertised = self._connection.execute(
            "SELECT pg_try_advisory_lock_shared(qwf_wake_class(), qwf_wake_key(%s))", (queue,)
        ).fetchone()
        assert advertised == (True,)

    def heard(self) -> list[str]:
        """The wakes up to now: what was committed before our own sentinel came before it."""
        sentinel = secrets.token_hex(8)
        with psycopg.connect(self._dsn, autocommit=True) as other:
            other.execute("SELECT pg_notify(%s, %s)", (CHANNEL, sentinel))
        payloads = []
        for notification in self._connection.notifies(timeout=150):
            if notification.payload == sentinel:
                return payloads
            payloads.append(notification.payload)
        raise AssertionError("the sentinel never came")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._connection.close()
