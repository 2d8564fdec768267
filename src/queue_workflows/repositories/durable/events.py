"""Events: emitted in the transaction of whatever they tell of, and kept until one waiter takes them."""

from __future__ import annotations

from datetime import datetime
from json import loads
from typing import Any, Final, NamedTuple

from queue_workflows.errors import PayloadError
from queue_workflows.repositories.jobs.enqueue import current_limits
from queue_workflows.repositories.sql import checks as check
from queue_workflows.repositories.sql.configured_database import checked_transaction_of
from queue_workflows.repositories.sql.connection import AsyncHandle, Handle, Statements, awaited

# What the engine's own steps and events begin with.
RESERVED: Final = "qwf:"
EMIT: Final = """
INSERT INTO durable_events (name, payload) VALUES (%(name)s::text, NULLIF(%(payload)s::text, '')::jsonb)
RETURNING id
"""
# The oldest first: that is how they are taken.
LIST: Final = """
SELECT id, name, payload::text, emitted_at FROM durable_events
WHERE name NOT LIKE 'qwf:%%' AND COALESCE(name = %(name)s::text, true) AND id > %(after)s::bigint
ORDER BY id
LIMIT %(limit)s::bigint
"""


class KeptEvent(NamedTuple):
    """An event that nobody has taken."""

    id: int
    name: str
    payload: Any
    emitted_at: datetime


class EventRepository:
    """Events, on the caller's connection and in its transaction."""

    def __init__(self, conn: Handle) -> None:
        self._sql = Statements(conn, "durable_events")

    def emit(self, name: str, payload_json: str | None) -> int:
        """Emit an event with a checked payload; its id."""
        params = {"name": event_name(name), "payload": payload_json or ""}
        ((event_id,),) = self._sql.rows(EMIT, params)
        return int(event_id)

    def kept(self, name: str | None = None, *, after: int = 0, limit: int = 100) -> list[KeptEvent]:
        """Events that nobody has taken, the oldest first."""
        rows = self._sql.rows(LIST, {"name": name, "after": after, "limit": limit})
        return [KeptEvent(row[0], row[1], None if row[2] is None else loads(row[2]), row[3]) for row in rows]


def event_name(name: str) -> str:
    """What an event may be called."""
    if check.readable("name", name).startswith(RESERVED):
        raise PayloadError(
            f"the event {name!r:.80} begins with {RESERVED}, as only the engine's do", path="name"
        )
    return name


def emit_event(name: str, payload: Any = None, *, conn: Handle | None = None) -> int:
    """Emit an event in the transaction of `conn`; it exists exactly if that commits, and has this id.

    One `ctx.wait_event` of that name takes it, also one that comes later. Without `conn` it is emitted in
    a transaction of its own.
    """
    text = None if payload is None else current_limits().json(payload)
    name = event_name(name)
    with checked_transaction_of(conn, "durable_events") as handle:
        return EventRepository(handle).emit(name, text)


async def aemit_event(name: str, payload: Any = None, *, conn: AsyncHandle | None = None) -> int:
    """`emit_event`, awaited, on an asynchronous connection."""
    return await awaited(conn, lambda usable: emit_event(name, payload, conn=usable))
