"""The database behind the page, opened when it is first asked: a mounted app is told nothing of its start."""

from __future__ import annotations

import threading
from types import TracebackType
from typing import Final, Self

from queue_workflows import clock as time
from queue_workflows.db.connections.asking_connection import AskingConnection
from queue_workflows.db.connections.engine import Database
from queue_workflows.db.listen.listener import Listener
from queue_workflows.errors import SchemaAhead, SchemaError
from queue_workflows.roles.schema_check import wait_for_schema
from queue_workflows.roles.worker.single import MIN_SCHEMA
from queue_workflows.web.database.last_report import LastReport

SCHEMA_SEEN_FOR_S: Final = 30.0


class OpenedDatabase:
    """A database that is named by its DSN, or the configured one for None; or the host app's own handle."""

    def __init__(self, given: str | Database | None) -> None:
        self._given = given
        self._guard = threading.Lock()
        self._database: Database | None = given if isinstance(given, Database) else None
        self._schema_guard = threading.Lock()
        self._schema_seen_at: float | None = None
        self._schema: SchemaError | None = None
        self.last_report = LastReport(lambda: self.dsn)

    def database(self) -> Database:
        """The one handle of this process."""
        with self._guard:
            if self._database is None:
                dsn = self._given if isinstance(self._given, str) else None
                self._database = Database.open(dsn, role="web", creates=False)
            return self._database

    @property
    def dsn(self) -> str | None:
        """What `qwf doctor` asks this database with; None for the configured one."""
        return self._given.dsn if isinstance(self._given, Database) else self._given

    def connect(self) -> AskingConnection:
        """A new autocommit connection."""
        return self.database().connect(autocommit=True)

    def schema_flaw(self) -> SchemaError | None:
        """What is wrong with the schema for this version, as of the last half minute; None where it fits.

        It is asked on a connection of its own.
        """
        return self._schema_seen(is_doubted=False)

    def schema_refusal(self) -> str | None:
        """Why workers of this version refuse the schema; None if they do not: for an older one they wait."""
        return refusal_by(self.schema_flaw())

    def check_schema(self) -> None:
        """Raise what was wrong with the schema in the last half minute, where this code cannot read it."""
        if (refused := self._schema_seen(is_doubted=True)) is not None:
            raise refused.with_traceback(None)

    def _schema_seen(self, *, is_doubted: bool) -> SchemaError | None:
        """What is wrong with the schema; seen anew after a while, and where it was right and is doubted."""
        with self._schema_guard:
            now = time.monotonic()
            is_fresh = self._schema_seen_at is not None and now - self._schema_seen_at <= SCHEMA_SEEN_FOR_S
            if not is_fresh or (is_doubted and self._schema is None):
                self._schema = _flaw(self.database())
                self._schema_seen_at = now
            return self._schema

    def listener(self, channels: list[str]) -> Listener:
        """One that hears these channels, where there can be any."""
        return Listener.on(self.database(), channels)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _exc: BaseException | None, _at: TracebackType | None
    ) -> None:
        """Close what was opened here; a handle that was handed in is its owner's to close."""
        with self._guard:
            if self._database is not None and self._database is not self._given:
                self._database.close()
                self._database = None


def refusal_by(flaw: SchemaError | None) -> str | None:
    """What an explanation says of workers that refuse this schema; for an older one they wait."""
    return str(flaw) if isinstance(flaw, SchemaAhead) else None


def _flaw(database: Database) -> SchemaError | None:
    try:
        wait_for_schema(database, MIN_SCHEMA, 0)
    except SchemaError as refused:
        return refused
    return None
