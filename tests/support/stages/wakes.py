"""An idle process's ear: it advertises itself, listens, and tells which wakes came by when."""

from __future__ import annotations

import secrets
from typing import Self

import psycopg

CHANNEL = "ingest_job_ready"


class Ear:
    """Listens for wakes of queues, and on further channels for others, on a connection of its own."""

    def __init__(self, dsn: str, *names: str, channels: tuple[str, ...] = ()) -> None:
        self._sender = psycopg.connect(dsn, autocommit=True)
        self._connection = psycopg.connect(dsn, autocommit=True)
        for channel in (CHANNEL, *channels):
            self._connection.execute(f"LISTEN {channel}")
        for name in names or ("fetch",):
            advertised = self._connection.execute(
                "SELECT pg_try_advisory_lock_shared(qwf_wake_class(), qwf_wake_key(%s))", (name,)
            ).fetchone()
            assert advertised == (True,)

    def heard(self) -> list[str]:
        """The wakes up to now: what was committed before our own sentinel came before it."""
        sentinel = secrets.token_hex(8)
        self._sender.execute("SELECT pg_notify(%s, %s)", (CHANNEL, sentinel))
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
        self._sender.close()
