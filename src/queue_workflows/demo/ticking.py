"""A job that comes again: each tick enqueues the next one, for later."""

from __future__ import annotations

import uuid
from typing import Any, Final

from queue_workflows.db.engine import Database
from queue_workflows.repositories import Enqueued, IngestJobRepository
from queue_workflows.repositories.connection import Handle

QUEUE: Final = "demo"
TICK: Final = "tick"
TICKS: Final = 3
EVERY_S: Final = 1.5


def key_of(run: uuid.UUID, number: int) -> str:
    """What makes one tick beside one run the only one."""
    return f"{run}-{number}"


def enqueue_tick(run: uuid.UUID, number: int, *, conn: Handle) -> Enqueued:
    """Enqueue a tick beside a run, in the transaction of `conn`; there is only ever one of a number."""
    # The repository itself: `enqueue_ingest_job` knows the queues of whatever application runs the demo.
    return IngestJobRepository(conn).enqueue(
        TICK,
        queue=QUEUE,
        args={"run": str(run), "number": number},
        dedupe_key=key_of(run, number),
        delay=EVERY_S if number > 1 else None,
    )


def tick(_reason: str, args: dict[str, Any]) -> dict[str, Any]:
    """The task. It may run twice: the next tick is there once all the same, by its key."""
    run, number = uuid.UUID(args["run"]), int(args["number"])
    if number == TICKS:
        return {"tick": number, "next": None}
    with Database.open(None, role="demo") as database, database.engine.begin() as connection:
        following = enqueue_tick(run, number + 1, conn=connection)
    return {"tick": number, "next": f"ingest:{following.id}"}
