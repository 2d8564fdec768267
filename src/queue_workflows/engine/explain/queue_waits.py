"""What the jobs of queues that ended lately waited for: each cause with its hours, by which key.

The bar of each job is made as `qwf explain --past` makes it, of so many jobs of each part of the time; where
more ended in a part, those that were read stand for all of it.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from queue_workflows.engine.explain.history import pauses, wishes_of
from queue_workflows.engine.explain.time_spent import (
    Cause,
    Weights,
    causes_of,
    full_slices,
    sliced,
    spans_of,
    weights_of,
)
from queue_workflows.engine.explain.wait_bar import Pause, Served, bar_of, facts_of
from queue_workflows.repositories.audit_log import AuditRepository
from queue_workflows.repositories.explain.waits import EndedJob, Ran, Slice, WaitRepository, at_work
from queue_workflows.repositories.sql.connection import Handle
from queue_workflows.repositories.sql.families import FAMILIES, Family

# So many parts of the time, and so many jobs of each family and part.
SLICES: Final = 48
EACH: Final = 100
# What ended in parts that are not read to their end is counted up to this, by family.
COUNTED: Final = 500_000
# What ran before that is read as far back as a job has waited, in spans that double, each in so many parts.
DOUBLED: Final = 20
BEFORE: Final = 4
EACH_BEFORE: Final = 64
# So many causes of a queue are told one by one.
CAUSES: Final = 20
OTHERS: Final = Cause("untold", "others")


@dataclass(frozen=True, slots=True)
class WaitCause:
    """What jobs of a queue waited for: how many of them, and how long all of these together."""

    cause: Cause
    jobs: int
    seconds: float


@dataclass(frozen=True, slots=True)
class QueueWaits:
    """The jobs of one queue that ended: how long they worked and waited, and for what, the dearest first."""

    family: str
    queue: str
    jobs: int
    worked_s: float
    waited_s: float
    causes: tuple[WaitCause, ...]
    # Whether more ended than were read, so that all of this is an estimate.
    is_about: bool
    # Whether it is less than all, as more ended than are counted.
    is_at_least: bool


@dataclass(frozen=True, slots=True)
class Waits:
    """All queues of which jobs ended in the time before `at`, what waited longest first."""

    at: datetime
    since_s: float
    queues: tuple[QueueWaits, ...]


@dataclass(slots=True)
class _Sums:
    jobs: float = 0.0
    worked_s: float = 0.0
    of_cause: defaultdict[Cause, list[float]] = field(default_factory=lambda: defaultdict(lambda: [0.0, 0.0]))
    # Of each job for how many it stands, and what it waited for.
    each: list[tuple[float, frozenset[Cause]]] = field(default_factory=list)
    is_about: bool = False
    is_at_least: bool = False

    def add(self, causes: Iterator[tuple[Cause, timedelta]], weight: float) -> None:
        """A job that stands for `weight` jobs; what was over until it was retried waited for nothing."""
        self.jobs += weight
        own: dict[Cause, float] = {}
        for cause, took in causes:
            if cause.kind == "work":
                self.worked_s += took.total_seconds() * weight
            elif cause.kind != "over":
                own[cause] = own.get(cause, 0.0) + took.total_seconds()
        self.each.append((weight, frozenset(own)))
        for cause, seconds in own.items():
            sums = self.of_cause[cause]
            sums[0] += weight
            sums[1] += seconds * weight


def queue_waits(
    conn: Handle,
    *,
    since_s: float,
    queue: str | None = None,
    slices: int = SLICES,
    each: int = EACH,
    counted: int = COUNTED,
) -> Waits:
    """What ended in the last `since_s` seconds; of one queue if that is asked for."""
    now, running = at_work(conn)
    parts = sliced(now - timedelta(seconds=since_s), now, slices)
    ended = {family: list(WaitRepository(conn, family).ended(parts, each=each)) for family in FAMILIES}
    asked = _pauses(conn, [one for jobs in ended.values() for one in jobs], now)
    found: list[QueueWaits] = []
    for family, jobs in ended.items():
        full = full_slices(((one.slice, one.finished_at) for one in jobs), parts, each=each)
        weights = weights_of(WaitRepository(conn, family), full, parts, each=each, counted=counted)
        # What is not read of a full part may be of any queue.
        unread = [(at, parts[place].end) for place, at in full.items()]
        before, unread_before = _ran_before(conn, family, jobs, parts)
        looked = _Look(
            now,
            jobs=jobs,
            ran=[*running[family.name], *before],
            unread=[*unread, *unread_before],
            pauses=asked,
            weights=weights,
        )
        found += [_told(family, name, sums) for name, sums in looked.sums(queue).items()]
    return Waits(now, since_s, tuple(sorted(found, key=lambda one: (-one.waited_s, one.family, one.queue))))


def _ran_before(
    conn: Handle, family: Family, jobs: Sequence[EndedJob], parts: Sequence[Slice]
) -> tuple[list[Ran], list[tuple[datetime, datetime]]]:
    """What ran before the parts, back to where the oldest of these jobs began to wait; what is not read."""
    begin, oldest = parts[0].begin, min((one.created_at for one in jobs), default=parts[0].begin)
    slices: list[Slice] = []
    step = parts[-1].end - begin
    while begin > oldest and len(slices) < BEFORE * DOUBLED:
        since = max(begin - step, oldest)
        slices += sliced(since, begin, BEFORE)
        begin, step = since, step * 2
    if not slices:
        return [], []
    ran = WaitRepository(conn, family).ran(slices, each=EACH_BEFORE)
    full = full_slices(((one.slice, one.finished_at) for one in ran), slices, each=EACH_BEFORE)
    unread = [(at, slices[place].end) for place, at in full.items()]
    return ran, [*unread, (oldest, begin)] if begin > oldest else unread


class _Look:
    """The jobs of a family that were read, and what is known of the time in which they waited."""

    def __init__(
        self,
        now: datetime,
        *,
        jobs: Sequence[EndedJob],
        ran: Sequence[Ran],
        unread: Sequence[tuple[datetime, datetime]],
        pauses: Mapping[str, Sequence[Pause]],
        weights: Weights,
    ) -> None:
        self._now, self._jobs, self._pauses, self._weights = now, jobs, pauses, weights
        self._unread = unread
        ended = [
            Ran(one.slice, one.id, one.queue, one.started_at, one.finished_at)
            for one in jobs
            if one.claimed_by is not None
        ]
        self._ran = [*ran, *ended]
        self._since = min((one.created_at for one in jobs), default=now)

    def sums(self, queue: str | None) -> dict[str, _Sums]:
        """By queue, or of one."""
        found: dict[str, _Sums] = {}
        served: dict[str, Served] = {}
        for one in self._jobs:
            name = one.queue
            if queue not in (None, name):
                continue
            if name not in found:
                found[name], served[name] = _Sums(), self._served(name)
            facts = facts_of(
                one, at=self._now, waits_since=one.waits_since, pauses=self._pauses[name], served=served[name]
            )
            found[name].add(causes_of(bar_of(facts)), self._weights.of_slice.get(one.slice, 1.0))
            found[name].is_about |= one.slice in self._weights.of_slice
            found[name].is_at_least |= one.slice in self._weights.at_least
        return found

    def _served(self, queue: str) -> Served:
        spans = [*spans_of(self._ran, queue, self._now), *self._unread]
        return Served.of(spans, self._since, self._now)


def _pauses(conn: Handle, jobs: Sequence[EndedJob], now: datetime) -> dict[str, list[Pause]]:
    """Of each queue what held for it while any of these jobs was there."""
    queues = {one.queue for one in jobs}
    if not queues:
        return {}
    since = min(one.created_at for one in jobs)
    entries = AuditRepository(conn).of_queues(queues, since=since, until=now, limit=1_000)
    found: dict[str, list[Pause]] = {queue: [] for queue in queues}
    for wish in wishes_of(entries):
        about = wish.set_by.subject_id.partition(" ")[2]
        for pause in pauses([wish]):
            for queue in queues if about == "*" else queues & {about}:
                found[queue].append(Pause(*pause))
    return found


def _told(family: Family, queue: str, sums: _Sums) -> QueueWaits:
    causes = [WaitCause(cause, round(jobs), seconds) for cause, (jobs, seconds) in sums.of_cause.items()]
    dearest = heapq.nlargest(CAUSES, causes, key=lambda one: (one.seconds, one.cause))
    waited_s = sum(one.seconds for one in causes)
    if len(causes) > CAUSES:
        rest = {one.cause for one in set(causes) - set(dearest)}
        jobs = sum(weight for weight, own in sums.each if own & rest)
        seconds = sum(one.seconds for one in causes if one.cause in rest)
        dearest.append(WaitCause(OTHERS, round(jobs), seconds))
    return QueueWaits(
        family=family.name,
        queue=queue,
        jobs=round(sums.jobs),
        worked_s=sums.worked_s,
        waited_s=waited_s,
        causes=tuple(dearest),
        is_about=sums.is_about,
        is_at_least=sums.is_at_least,
    )
