"""The steps of a durable function, a copy that begins at one of them, and events that nobody has taken."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Any, Final

import psycopg

from queue_workflows.errors import PayloadError, UnknownJob
from queue_workflows.models import DurableStep
from queue_workflows.repositories import IngestJobRepository
from queue_workflows.repositories.durable.events import EventRepository, KeptEvent
from queue_workflows.repositories.durable.fork import ForkRepository
from queue_workflows.repositories.durable.listing import MOST_STEPS, StepListing
from queue_workflows.repositories.sql.families import INGEST, Family
from queue_workflows.states import StepStatus
from queue_workflows.views.jobs.names import name_of

_SHOWN: Final = (
    "position",
    "name",
    "call",
    "kind",
    "status",
    "tries",
    "attempt",
    "version",
    "result",
    "error",
    "started_at",
    "finished_at",
    "wake_at",
    "waits_for",
)


def json_of_steps(steps: Sequence[DurableStep]) -> list[dict[str, Any]]:
    """What `qwf job show --json` prints of steps."""
    return [
        {name: getattr(step, name) for name in _SHOWN}
        | {"child": None if step.child_id is None else name_of(INGEST, step.child_id)}
        for step in steps
    ]


def took_s(step: DurableStep) -> float | None:
    """How long a step took, or a wait lasted."""
    return None if step.finished_at is None else (step.finished_at - step.started_at).total_seconds()


def label_of(step: DurableStep) -> str:
    """What a step is called where it has to be told from another one."""
    return step.name if step.call == 1 else f"{step.name}#{step.call}"


def first_of(steps: Sequence[DurableStep], most: int) -> list[DurableStep]:
    """As many steps as have room, in their order: those that the function waits for, and the first others."""
    waiting = [one for one in steps if one.status == StepStatus.WAITING][:most]
    others = [one for one in steps if one.status != StepStatus.WAITING][: most - len(waiting)]
    return sorted(waiting + others, key=lambda one: (one.position, one.name, one.call))


def said_of_more(job: str, steps: Sequence[DurableStep], most: int) -> str | None:
    """How many more a job has than have room; None where all have."""
    if len(steps) <= most:
        return None
    and_more = "+" if len(steps) >= MOST_STEPS else ""
    return f"… and {len(steps) - most:,}{and_more} more: `qwf job show {job}`"


def fork(
    connection: psycopg.Connection[Any],
    family: Family,
    job_id: int,
    step: str,
    *,
    actor: str,
    reason: str | None,
    keeps_version: bool = False,
) -> str:
    """A copy of a job that begins at this step, by its name or its position; what the copy is called.

    It runs the code that is current, or that of the version that the job began under.
    """
    name = name_of(family, job_id)
    if family is not INGEST:
        raise PayloadError(
            f"{name} is a node of a run", path="job", advice="`qwf run retry` runs nodes again"
        )
    if IngestJobRepository(connection).fetch(job_id) is None:
        raise UnknownJob(name)
    forks = ForkRepository(connection)
    position = forks.position(job_id, step)
    if position is None:
        raise _no_step(name, StepListing(connection).of(family.name, job_id), step)
    made = forks.fork(job_id, position, actor=actor, reason=reason, keeps_version=keeps_version)
    if made is None:
        raise UnknownJob(name)
    return name_of(INGEST, made)


def _no_step(job: str, steps: Sequence[DurableStep], wanted: str) -> PayloadError:
    listed = ", ".join(label_of(step) for step in steps[:20] if step.position > 0) or "none"
    return PayloadError(f"{job} has no step {wanted!r:.80}", path="from", advice=f"its steps are {listed}")


def json_of_events(events: Sequence[KeptEvent]) -> list[dict[str, Any]]:
    """What `qwf event list --json` prints."""
    return [
        {"id": one.id, "event": one.name, "payload": one.payload, "emitted_at": one.emitted_at}
        for one in events
    ]


def kept_events(
    connection: psycopg.Connection[Any], name: str | None, *, after: int, limit: int
) -> list[KeptEvent]:
    """Events that nobody has taken, the oldest first."""
    return EventRepository(connection).kept(name, after=after, limit=limit)


def command_of_events(name: str | None) -> str:
    """The command that lists events."""
    return shlex.join(["qwf", "event", "list", *([] if name is None else ["--name", name])])
