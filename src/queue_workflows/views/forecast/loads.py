"""A queue as it was read, in the form in which it is played: as it is, or with another fleet.

Of a key that jobs of other queues hold too, only what they leave is for this queue, but one slot at least.
A lock of a machine counts as a limit of as many as there are hosts with workers.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from statistics import median, median_high
from typing import Final, Protocol

from queue_workflows.config import HOOKS_QUEUE
from queue_workflows.engine.explain.job import WORKING
from queue_workflows.engine.forecast.history import Ended, History
from queue_workflows.engine.forecast.replay import Arriving, Beyond, Load, Running, Waiting
from queue_workflows.repositories.claims.by_host_lock import lock_of
from queue_workflows.repositories.forecast.queue_now import LaneJob, QueueNow
from queue_workflows.repositories.workers.obedience import Standing
from queue_workflows.states import DesiredState
from queue_workflows.views.forecast.changes import Changes

NOTHING_CHANGED: Final = Changes()
# What came in is counted for so long each, in so many parts, of which the middle one tells the pace.
_SPANS_S: Final = (15.0, 60.0, 300.0)
_PARTS: Final = 5
# Before all others: what a worker has claimed and not begun.
_FIRST: Final = 10
# After all others: what a worker died at.
_LAST: Final = -1
# Of a worker that is no more, and of one that is not there yet.
_NEW_HOST: Final = "a new host"


class Keyed(Protocol):
    """A job with what it needs beside a worker."""

    @property
    def limit_key(self) -> str | None:
        """The key of its limit."""

    @property
    def host_lock(self) -> str | None:
        """The lock of the machine that it runs on."""


class _Ordered(Keyed, Protocol):
    """A job with its place."""

    @property
    def id(self) -> int:
        """Its id."""

    @property
    def priority(self) -> int:
        """Its priority."""


@dataclass(frozen=True, slots=True)
class Fleet:
    """The workers that claim, by host with their slots; `stopped` ones only end what they hold."""

    slots: Mapping[str, int]
    workers: int
    stopped: frozenset[str]
    off: frozenset[str]


def slots_of(worker: Standing) -> int:
    """How many jobs a worker is at, as its heartbeats tell."""
    slots = worker.load.get("slots", 1)
    return slots if isinstance(slots, int) and slots > 0 else 1


def claims(worker: Standing) -> bool:
    """Whether nothing was asked of it that keeps it from claiming."""
    return worker.state in WORKING and (worker.control is None or worker.control.desired is DesiredState.ON)


def fleet_of(now: QueueNow, changes: Changes = NOTHING_CHANGED) -> Fleet:
    """The workers of a queue after changes."""
    off = {one.worker_id for one in now.workers if (now.queue, one.host_label) in changes.off}
    claiming = [one for one in now.workers if claims(one) and one.worker_id not in off]
    kept = claiming
    slots: Counter[str] = Counter()
    wanted = changes.workers.get(now.queue)
    if now.queue in changes.paused:
        wanted = 0
    if wanted is not None:
        kept = claiming[:wanted]
        usual = median_high([slots_of(one) for one in claiming or now.workers] or [1])
        hosts = [one.host_label for one in claiming] or [_NEW_HOST]
        for number in range(wanted - len(kept)):
            slots[hosts[number % len(hosts)]] += usual
    for one in kept:
        slots[one.host_label] += slots_of(one)
    stopped = {one.worker_id for one in now.workers} - off - {one.worker_id for one in kept}
    count = len(kept) if wanted is None else max(wanted, len(kept))
    return Fleet(dict(slots), count, frozenset(stopped), frozenset(off))


def load_of(now: QueueNow, history: History, changes: Changes = NOTHING_CHANGED) -> Load:
    """What is played: the queue's work before the fleet that would be there."""
    fleet = fleet_of(now, changes)
    caps = dict(_caps(now, fleet, changes))
    running, given_back = _at_work(now, fleet)
    waiting = [*given_back, *_in_order(now)]
    lowest = min((row.priority for row in waiting), default=0)
    arriving = [one for one in arrivals(now) if one.priority > lowest]
    between = {key: history.between_s(key) for key in caps}
    beyond = list(_beyond(now, waiting))
    lane = {f"{now.family.name}:{job.id}" for job in now.lane if job.limit_key in caps}
    return Load(
        waiting,
        running,
        fleet.slots,
        caps,
        arriving,
        between,
        beyond,
        lanes=frozenset(now.caps),
        in_lanes=frozenset(place for place, row in enumerate(waiting) if row.name in lane),
    )


def places_of_line(now: QueueNow, waiting: Sequence[Waiting]) -> list[int]:
    """Where the jobs of the line stand among rows that are played."""
    line = {f"{now.family.name}:{job.id}" for job in now.line}
    return [place for place, row in enumerate(waiting) if row.name in line]


def places_of_key(key: str, waiting: Sequence[Waiting]) -> list[int]:
    """Where the jobs of a key stand that could be claimed if it had room."""
    return [place for place, row in enumerate(waiting) if key in row.keys and row.due_s <= 0]


def _beyond(now: QueueNow, waiting: Sequence[Waiting]) -> Iterator[Beyond]:
    """What waits and was not read: the rest of the line, and of the lanes of keys."""
    if now.queued > len(now.line):
        yield Beyond(places_of_line(now, waiting), now.queued - len(now.line))
    read = Counter(job.limit_key for job in now.lane)
    for key, jobs in now.in_lanes.items():
        if jobs > read[key]:
            yield Beyond(places_of_key(key, waiting), jobs - read[key])


def history_of(now: QueueNow) -> History:
    """How long jobs of the queue took."""
    ended = [
        Ended(
            one.task,
            one.limit_key,
            one.worker_id,
            one.began_s,
            one.ended_s,
            one.ready_s,
            one.created_s,
            one.failures,
            one.is_failed,
            one.backoff_s,
            one.max_attempts,
            one.was_parked,
        )
        for one in now.ended
    ]
    slots = {one.worker_id: slots_of(one) for one in now.workers}
    caps = {key: used.cap for key, used in now.caps.items() if used.cap is not None}
    return History.of(ended, slots, caps)


def arrivals(now: QueueNow) -> list[Arriving]:
    """What comes in, by task and priority, at the quickest pace that one of some spans of time shows.

    A burst is no pace: it is in one part of a span, and the middle one of the parts has none of it.
    """
    seen: dict[tuple[str, int], list[float]] = defaultdict(list)
    for task, priority, created_s in _created(now):
        seen[task, priority].append(created_s)
    found = [
        Arriving(task, priority, max(_pace(ages, span_s) for span_s in _SPANS_S))
        for (task, priority), ages in sorted(seen.items())
    ]
    return [one for one in found if one.per_s > 0]


def _pace(ages_s: Sequence[float], span_s: float) -> float:
    """How many came in a second, of the last so many: by the middle of its parts, but no more than by all."""
    parts = [0] * _PARTS
    for age_s in ages_s:
        if 0 <= age_s < span_s:
            parts[int(age_s / span_s * _PARTS)] += 1
    return min(median(parts) * _PARTS, sum(parts)) / span_s


def _created(now: QueueNow) -> Iterator[tuple[str, int, float]]:
    for one in now.ended:
        yield one.task, one.priority, one.created_s
    waiting: Sequence[_Ordered] = [*now.line, *now.lane, *now.later]
    for job in waiting:
        if (facts := now.facts.get(job.id)) is not None:
            yield facts.task, job.priority, facts.created_s


def _at_work(now: QueueNow, fleet: Fleet) -> tuple[list[Running], list[Waiting]]:
    """What runs, and before all others what workers hold unbegun, or would give back."""
    running: list[Running] = []
    given_back: list[Waiting] = []
    workers = {one.worker_id: one for one in now.workers}
    begun: Counter[str] = Counter()
    for job in now.at_work:
        worker, facts = workers[job.worker_id], now.facts.get(job.id)
        if facts is None or job.family != now.family.name or job.queue != now.queue:
            continue
        keys = needs_of(job)
        if job.worker_id in fleet.off or begun[job.worker_id] >= slots_of(worker):
            given_back.append(Waiting(job.name, facts.task, _FIRST, keys))
            continue
        begun[job.worker_id] += 1
        host = None if job.worker_id in fleet.stopped else worker.host_label
        running.append(Running(job.name, facts.task, facts.began_s or 0.0, host, keys))
    return running, given_back


def _in_order(now: QueueNow) -> Iterator[Waiting]:
    """The line with what comes out of lanes in between, then what is for later."""
    name = now.family.name
    suspects = {job.id for job in now.line if job.suspect} if now.queue != HOOKS_QUEUE else set()
    for job, host in _merged(now):
        if (facts := now.facts.get(job.id)) is not None:
            priority = _LAST if job.id in suspects else job.priority
            yield Waiting(f"{name}:{job.id}", facts.task, priority, needs_of(job), host)
    for job in now.later:
        if (facts := now.facts.get(job.id)) is not None:
            yield Waiting(
                f"{name}:{job.id}", facts.task, job.priority, needs_of(job), due_s=max(0.001, job.due_s)
            )


def _merged(now: QueueNow) -> Iterator[tuple[_Ordered, str | None]]:
    """Jobs from lanes go about one to one with those of the line enqueued after them, their keys in turn.

    None of a key before what stands in the line already of that key.
    """
    in_line = Counter(job.limit_key for job in now.line)
    kept: dict[str | None, list[tuple[int, int, LaneJob]]] = defaultdict(list)
    ready: list[tuple[int, int, LaneJob]] = []
    nth: Counter[str] = Counter()
    for held in now.lane:
        nth[held.limit_key] += 1
        place = ready if not in_line[held.limit_key] else kept[held.limit_key]
        place.append((nth[held.limit_key], held.id, held))
    heapify(ready)
    for job in now.line:
        if ready and ready[0][1] < job.id:
            yield heappop(ready)[2], None
        yield job, job.pinned_host if now.queue == HOOKS_QUEUE and job.pinned_host != "*" else None
        in_line[job.limit_key] -= 1
        if not in_line[job.limit_key]:
            for entry in kept.pop(job.limit_key, ()):
                heappush(ready, entry)
    while ready:
        yield heappop(ready)[2], None


def needs_of(job: Keyed) -> tuple[str, ...]:
    """The keys of a job: that of its limit, and of its lock."""
    lock = None if job.host_lock is None else f"lock {lock_of(job.host_lock)}"
    return tuple(key for key in (job.limit_key, lock) if key is not None)


def _caps(now: QueueNow, fleet: Fleet, changes: Changes) -> Iterator[tuple[str, int]]:
    """What of each key and lock is for this queue."""
    ours = Counter(job.limit_key for job in now.at_work if job.queue == now.queue)
    for key, used in now.caps.items():
        changed = changes.cap_of(key)
        cap = used.cap if changed is None else changed
        if cap is not None:
            elsewhere = max(0, used.taken - ours[key])
            yield key, max(min(cap, 1), cap - elsewhere)
    jobs: Sequence[Keyed] = [*now.line, *now.lane, *now.later, *now.at_work]
    for job in jobs:
        if job.host_lock is not None:
            yield f"lock {lock_of(job.host_lock)}", max(1, len(fleet.slots))
