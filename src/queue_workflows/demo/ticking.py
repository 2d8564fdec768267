"""A job that comes again, by a schedule that its third tick ends."""

from __future__ import annotations

import uuid
from typing import Any, Final

import sqlalchemy as sa

from queue_workflows.db.connections.engine import Database
from queue_workflows.models import IngestJob
from queue_workflows.repositories import ScheduleRepository
from queue_workflows.repositories.sql.connection import Handle

QUEUE: Final = "demo"
TICK: Final = "tick"
TICKS: Final = 3
CRON: Final = "*/2 * * * * *"


def schedule_of(run: uuid.UUID) -> str:
    """The name of the schedule beside a run."""
    return f"demo {run}"


def begin_ticking(run: uuid.UUID, *, conn: Handle) -> None:
    """Have a job tick beside a run, and for the first time at once, in the transaction of `conn`."""
    schedules = ScheduleRepository(conn)
    name = schedule_of(run)
    # By hand: what a wiring declares ticks for as long as the application has it.
    schedules.upsert(name, cron=CRON, task_name=TICK, queue=QUEUE, args={"run": str(run)})
    schedules.trigger(name, actor="demo")


def tick(reason: str, args: dict[str, Any]) -> dict[str, Any]:
    """The task. Whichever tick sees that there are enough of them ends the schedule, once or again."""
    name = schedule_of(uuid.UUID(args["run"]))
    counted = sa.select(sa.func.count()).where(IngestJob.schedule_name == name)
    with Database.open(None, role="demo") as database, database.engine.begin() as connection:
        number = connection.execute(counted).scalar_one()
        if number >= TICKS:
            ScheduleRepository(connection).delete(name)
    return {"reason": reason, "last": number >= TICKS}
