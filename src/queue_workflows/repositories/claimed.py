"""Jobs that a worker holds: what a claim hands out, and the fence of all that is written for them."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from operator import itemgetter
from typing import Any, ClassVar, Final, NamedTuple, TypeVar

from queue_workflows.states import JobFamily


class Fence(NamedTuple):
    """Who may write for a job: the holder of this attempt, and nobody once it has ended."""

    job_id: int
    attempt: int
    claimed_by: str


@dataclass(slots=True)
class ClaimedJob:
    """What both families hand to a worker; the rest is in the two classes below.

    Not frozen: a frozen class sets each of its fields by a call, which costs three times as much.
    """

    family: ClassVar[JobFamily]
    json_fields: ClassVar[tuple[str, ...]]

    id: int
    queue: str
    priority: int
    position: int
    run_at: datetime
    generation: int
    attempt: int
    failures: int
    max_attempts: int
    backoff_s: float | None
    crash_count: int
    suspect: bool
    claimed_by: str
    lease_expires_at: datetime
    timeout_s: float | None
    stall_timeout_s: float | None
    host_lock: str | None
    limit_key: str | None
    cancel_requested_at: datetime | None
    traceparent: str | None
    created_at: datetime
    started_at: datetime

    @property
    def worker_id(self) -> str:
        """Who claimed it."""
        return self.claimed_by

    @property
    def fence(self) -> Fence:
        """What every write for this job has to show."""
        return Fence(self.id, self.attempt, self.claimed_by)


@dataclass(slots=True)
class ClaimedNodeJob(ClaimedJob):
    """A node of a run; its inputs are as written, with refs, and `item` is the element that it is for."""

    family: ClassVar[JobFamily] = JobFamily.NODE
    json_fields: ClassVar[tuple[str, ...]] = ("inputs", "item")

    run_id: uuid.UUID
    node_id: str
    map_index: int
    kind: str
    node_module: str | None
    plugin: str | None
    inputs: dict[str, Any]
    host_priority: int
    required_model: str | None
    step: int | None
    background: bool
    item: Any = None


@dataclass(slots=True)
class ClaimedIngestJob(ClaimedJob):
    """A task with its arguments."""

    family: ClassVar[JobFamily] = JobFamily.INGEST
    json_fields: ClassVar[tuple[str, ...]] = ("args",)

    task_name: str
    reason: str | None
    args: dict[str, Any]
    dedupe_key: str | None
    schedule_name: str | None
    tick_at: datetime | None


C = TypeVar("C", bound=ClaimedJob)


def columns_of(kind: type[ClaimedJob]) -> list[str]:
    """The columns that make up a claimed job, in the order in which `loaded` takes them."""
    return [field.name for field in fields(kind)]


_PRIORITY, _POSITION = (itemgetter(columns_of(ClaimedJob).index(name)) for name in ("priority", "position"))
# What `json.loads` does in the end; the server's own text is sound, and begins with its first letter.
_scanned: Final[Callable[[str, int], tuple[Any, int]]] = json.JSONDecoder().scan_once  # type: ignore[attr-defined]


def returned(kind: type[ClaimedJob]) -> str:
    """What to return of `job`; JSON as text, so that no loader the caller registered can change it."""
    return ", ".join(
        f"job.{name}::text" if name in kind.json_fields else f"job.{name}" for name in columns_of(kind)
    )


def loaded(kind: type[C], rows: Iterable[Sequence[Any]]) -> list[C]:
    """Claimed jobs in the order in which they are to be worked on."""
    ordered = sorted(rows, key=_POSITION)
    if len(set(map(_PRIORITY, ordered))) > 1:
        ordered.sort(key=_PRIORITY, reverse=True)
    jobs = [kind(*row) for row in ordered]
    for name in kind.json_fields:
        for job in jobs:
            text = getattr(job, name)
            if text is not None:
                # Most have none, and are not to wait until a parser has come into the caches.
                setattr(job, name, {} if text == "{}" else _scanned(text, 0)[0])
    return jobs
