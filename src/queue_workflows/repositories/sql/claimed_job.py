"""Jobs that a worker holds: what a claim hands out, and the fence of all that is written for them."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import datetime
from json import loads
from operator import itemgetter
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple, Self, TypeVar

from queue_workflows.errors import UnusableRow
from queue_workflows.repositories.sql.drivers.moments import moment_of
from queue_workflows.states import JobFamily


class Fence(NamedTuple):
    """The right to write for a job: the holder of this attempt has it, and nobody once it has ended."""

    job_id: int
    attempt: int
    claimed_by: str


# Looked up once, as they are called for every job.
_made, _new = tuple.__new__, object.__new__


@dataclass(slots=True)
class ClaimedJob:
    """What both families hand to a worker; the rest is in the two classes below.

    Not frozen: a frozen class sets each of its fields by a call, which costs three times as much. What the
    server returned is read when somebody asks for it: to read the moments alone costs as much as all the
    rest, and hardly a function wants to know them.
    """

    family: ClassVar[JobFamily]
    json_fields: ClassVar[tuple[str, ...]]

    # What the server returned, where it is that which made this.
    _row: Sequence[Any] = field(init=False, repr=False, compare=False)

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
    max_crashes: int | None
    at_most_once: bool
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
        """The worker that claimed it."""
        return self.claimed_by

    @property
    def fence(self) -> Fence:
        """What every write for this job has to show."""
        # Once for every job at least: made without the call that names its parts.
        return _made(Fence, (self.id, self.attempt, self.claimed_by))

    @classmethod
    def of(cls, row: Sequence[Any]) -> Self:
        """From the columns as `returned` has them."""
        job = _new(cls)
        job._row = row
        return job

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """A field that was not asked for yet."""
            # A host app's own kind of job is one of the two beneath.
            late = next((_LATE[kind] for kind in type(self).__mro__ if kind in _LATE), {}).get(name)
            if late is None:
                raise AttributeError(
                    f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self
                )
            place, read = late
            text = self._row[place]
            value = text if text is None or read is None else _read(name, read, text)
            setattr(self, name, value)
            return value


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
    survives_outage: bool
    item: Any = None

    @classmethod
    def of(cls, row: Sequence[Any]) -> Self:
        """A worker asks each for some twenty columns, so all that need no reading are taken at once."""
        job = _new(cls)
        job._row = row
        # fmt: off
        (
            job.id, job.queue, job.priority, job.position, _, job.generation, job.attempt, job.failures,
            job.max_attempts, job.backoff_s, job.crash_count, job.suspect, job.max_crashes, job.at_most_once,
            job.claimed_by, _, job.timeout_s, job.stall_timeout_s, job.host_lock, job.limit_key,
            cancelled_at, job.traceparent, _, _,
            job.run_id, job.node_id, job.map_index, job.kind, job.node_module, job.plugin, _,
            job.host_priority, job.required_model, job.step, job.background, job.survives_outage, item,
        ) = row
        # fmt: on
        if cancelled_at is None:
            job.cancel_requested_at = None
        if item is None:
            job.item = None
        return job


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

    @classmethod
    def of(cls, row: Sequence[Any]) -> Self:
        """Of these a worker has thousands a second, so what it looks at in each of them is taken at once."""
        job = _new(cls)
        job._row = row
        # All columns in their order; what has no name here is read when it is asked for.
        # fmt: off
        (
            job.id, job.queue, job.priority, job.position, _, _, job.attempt, _, _, _, _, job.suspect,
            job.max_crashes, job.at_most_once, job.claimed_by, _, job.timeout_s, job.stall_timeout_s,
            job.host_lock, job.limit_key,
            cancelled_at, _, _, _,
            job.task_name, job.reason, _, _, _, _,
        ) = row
        # fmt: on
        if cancelled_at is None:
            job.cancel_requested_at = None
        return job


C = TypeVar("C", bound=ClaimedJob)


def columns_of(kind: type[ClaimedJob]) -> list[str]:
    """The columns that make up a claimed job, in the order in which `loaded` takes them."""
    return [column.name for column in fields(kind) if column.init]


_PRIORITY, _POSITION = (itemgetter(columns_of(ClaimedJob).index(name)) for name in ("priority", "position"))


def _read(name: str, read: Callable[[str], Any], text: str) -> Any:
    """A column as its job has it, or `UnusableRow`: what Postgres stores is more than Python reads."""
    try:
        return read(text)
    except (ValueError, TypeError, RecursionError, MemoryError) as refused:
        said = f"{type(refused).__name__}: {refused}"
        raise UnusableRow(name, " ".join(said.split())[:200]) from None


def _object(text: str) -> dict[str, Any]:
    value = loads(text)
    if not isinstance(value, dict):
        raise TypeError(f"it is no JSON object but a {type(value).__name__}")
    return value


def _is_moment(name: str) -> bool:
    return name.endswith("_at")


def _late(kind: type[ClaimedJob]) -> Mapping[str, tuple[int, Callable[[str], Any] | None]]:
    """Where each column is, and what reads its text."""
    read: dict[str, Callable[[str], Any]] = dict.fromkeys(kind.json_fields, _object)
    columns = columns_of(kind)
    read |= dict.fromkeys(filter(_is_moment, columns), moment_of)
    if "item" in read:
        # The element of a list is any JSON.
        read["item"] = loads
    return {name: (place, read.get(name)) for place, name in enumerate(columns)}


_LATE: Final = {kind: _late(kind) for kind in (ClaimedNodeJob, ClaimedIngestJob)}


def returned(kind: type[ClaimedJob]) -> str:
    """What to return of `job`; JSON as text, so that no loader the caller registered can change it."""
    return ", ".join(
        f"job.{name}::text" if name in kind.json_fields or _is_moment(name) else f"job.{name}"
        for name in columns_of(kind)
    )


def loaded(kind: type[C], rows: Iterable[Sequence[Any]]) -> list[C]:
    """Claimed jobs in the order in which they are to be worked on."""
    ordered = sorted(rows, key=_POSITION)
    if len(set(map(_PRIORITY, ordered))) > 1:
        ordered.sort(key=_PRIORITY, reverse=True)
    return list(map(kind.of, ordered))
