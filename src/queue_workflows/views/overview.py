"""The first page: what is stuck and why, then queues, workers, hosts, the outbox and questions to people.

Six statements, whatever is stored: facts, pace, workers, wishes, and the stuck jobs of each family, which
`stuck` puts into words.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import psycopg

from queue_workflows.config import RESERVED_QUEUES
from queue_workflows.engine.explain.job import Knowledge
from queue_workflows.models import WorkerControl
from queue_workflows.repositories.reports.overview import (
    COUNTED_A_MINUTE,
    MINUTES,
    Facts,
    MachineFact,
    OverviewRepository,
    Pace,
    QueueCounts,
)
from queue_workflows.repositories.reports.stuck_jobs import StuckRepository
from queue_workflows.repositories.sql.families import INGEST, NODE
from queue_workflows.repositories.workers.control import WorkerControlRepository
from queue_workflows.repositories.workers.hardware import LOOKS_MISSED
from queue_workflows.repositories.workers.heartbeats import HeartbeatRepository
from queue_workflows.repositories.workers.obedience import Standing
from queue_workflows.states import DesiredState
from queue_workflows.views.stuck import Stuck, stuck_of
from queue_workflows.views.stuck import json_of as stuck_json


@dataclass(frozen=True, slots=True)
class QueueLine:
    """A queue with its pace: `minutes` counts what ended, the last minute first."""

    counts: QueueCounts
    minutes: tuple[int, ...]
    failed: int
    workers: Mapping[str, int]
    silent_workers: int
    wishes: Sequence[WorkerControl]


@dataclass(frozen=True, slots=True)
class HostLine:
    """A host by its label; `machine` is what a supervisor told of it, and stale if it says nothing more."""

    host_label: str
    workers: Mapping[str, int]
    silent_workers: int
    quarantined: int
    machine: MachineFact | None
    stale: bool


@dataclass(frozen=True, slots=True)
class Minute:
    """What ended in one minute on all queues; at its bound it is a lower count."""

    ended: int = 0
    failed: int = 0
    at_least: bool = False


@dataclass(frozen=True, slots=True)
class Overview:
    """All of the first page as of one moment."""

    facts: Facts
    stuck: Sequence[Stuck]
    queues: Sequence[QueueLine]
    minutes: Sequence[Minute]
    workers: Mapping[str, int]
    silent_workers: int
    hosts: Sequence[HostLine]


@dataclass(frozen=True, slots=True)
class _Fleet:
    """Workers and wishes, by what several parts of the page ask of them."""

    workers: Sequence[Standing]
    wishes: Sequence[WorkerControl]
    known: Knowledge
    live: list[Standing] = field(init=False)
    by_host: Mapping[str, list[Standing]] = field(init=False)
    by_queue: Mapping[str, list[Standing]] = field(init=False)

    def __post_init__(self) -> None:
        by_host: dict[str, list[Standing]] = defaultdict(list)
        by_queue: dict[str, list[Standing]] = defaultdict(list)
        for one in self.workers:
            by_host[one.host_label].append(one)
            by_queue[one.queue].append(one)
        object.__setattr__(self, "live", [one for one in self.workers if self._lives(one)])
        object.__setattr__(self, "by_host", by_host)
        object.__setattr__(self, "by_queue", by_queue)

    def _lives(self, one: Standing) -> bool:
        return one.age_s <= self.known.stale_s and not one.is_quarantined

    def states(self, these: Iterable[Standing]) -> Counter[str]:
        """How many of these live, by what they do."""
        return Counter(str(one.state) for one in these if self._lives(one))

    def silent(self, these: Iterable[Standing]) -> int:
        """How many of these were not heard of lately."""
        return sum(one.age_s > self.known.stale_s and not one.is_quarantined for one in these)


def read_overview(connection: psycopg.Connection[Any], known: Knowledge) -> Overview:
    """Six statements; the caller's transaction makes them one moment."""
    repository = OverviewRepository(connection)
    facts = repository.facts()
    pace = repository.pace()
    workers = HeartbeatRepository(connection).standing()
    fleet = _Fleet(workers, WorkerControlRepository(connection).blocking(), known)
    groups = StuckRepository(connection).read()
    return Overview(
        facts,
        stuck_of(facts, groups, fleet.workers, fleet.wishes, known),
        list(_queues(facts, pace, fleet)),
        _minutes(pace),
        fleet.states(workers),
        fleet.silent(workers),
        list(_hosts(facts, fleet)),
    )


# How full and how fast.


def _queues(facts: Facts, pace: Sequence[Pace], fleet: _Fleet) -> Iterator[QueueLine]:
    counted = {(one.queue, one.family): one for one in facts.queues}
    ended: dict[tuple[str, str], list[Pace]] = defaultdict(list)
    for one in pace:
        ended[one.queue, one.family].append(one)
    served = {(one.queue, _family_of(one.queue)) for one in fleet.live}
    for key in sorted(counted.keys() | ended.keys() | served):
        queue, family = key
        minutes = [0] * MINUTES
        for one in ended.get(key, ()):
            minutes[one.ago] = one.ended
        there = fleet.by_queue.get(queue, []) if _family_of(queue) == family else []
        yield QueueLine(
            counted.get(key) or QueueCounts(family, queue, 0, None, 0, {}, 0, 0, frozenset()),
            tuple(minutes),
            sum(one.failed for one in ended.get(key, ())),
            fleet.states(there),
            fleet.silent(there),
            [wish for wish in fleet.wishes if wish.queue in (queue, "*")],
        )


def _family_of(queue: str) -> str:
    return NODE.name if queue in RESERVED_QUEUES else INGEST.name


def _minutes(pace: Sequence[Pace]) -> list[Minute]:
    ended: Counter[tuple[int, str]] = Counter()
    failed: Counter[int] = Counter()
    for one in pace:
        ended[one.ago, one.family] += one.ended
        failed[one.ago] += one.failed
    both = [(ended[ago, NODE.name], ended[ago, INGEST.name]) for ago in range(MINUTES)]
    return [
        Minute(sum(each), failed[ago], any(count >= COUNTED_A_MINUTE for count in each))
        for ago, each in enumerate(both)
    ]


def _hosts(facts: Facts, fleet: _Fleet) -> Iterator[HostLine]:
    machines = {one.host_label: one for one in facts.machines}
    for label in sorted(machines.keys() | fleet.by_host.keys()):
        there = fleet.by_host.get(label, [])
        machine = machines.get(label)
        stale_s = fleet.known.stale_s
        yield HostLine(
            label,
            fleet.states(there),
            fleet.silent(there),
            sum(one.is_quarantined for one in there),
            machine,
            machine is not None and machine.age_s > max(stale_s, LOOKS_MISSED * machine.every_s),
        )


# As data.


def json_of(seen: Overview) -> dict[str, Any]:
    """What `qwf overview --json` prints."""
    facts = seen.facts
    return {
        "at": facts.now,
        "stuck": [stuck_json(one) for one in seen.stuck],
        "queues": [_queue_json(one) for one in seen.queues],
        "minutes": [
            {"ended": one.ended, "failed": one.failed, "at_least": one.at_least} for one in seen.minutes
        ],
        "workers": dict(seen.workers) | {"silent": seen.silent_workers},
        "hosts": [_host_json(one) for one in seen.hosts],
        "outbox": {
            "due": facts.due.count,
            "lag_s": facts.due.age_s or 0.0,
            "failing": facts.failing.count,
            "poisoned": facts.poisoned.count,
            "orchestrators": facts.orchestrators,
        },
        "inputs": {"waiting": facts.inputs.count, "longest_s": facts.inputs.age_s},
    }


def _queue_json(one: QueueLine) -> dict[str, Any]:
    counts = one.counts
    return {
        "family": counts.family,
        "queue": counts.queue,
        "queued": counts.queued,
        "oldest_queued_s": counts.oldest_queued_s,
        "scheduled": counts.scheduled,
        "held": dict(counts.held),
        "running": counts.running,
        "awaiting_input": counts.awaiting_input,
        "at_least": sorted(counts.at_least),
        "minutes": list(one.minutes),
        "ended": sum(one.minutes),
        "failed": one.failed,
        "workers": dict(one.workers),
        "silent_workers": one.silent_workers,
        "asked": [
            {"host_label": wish.host_label, "desired": DesiredState(wish.desired), "actor": wish.actor}
            for wish in one.wishes
        ],
    }


def _host_json(one: HostLine) -> dict[str, Any]:
    machine = None
    if one.machine is not None:
        machine = one.machine.reading.get("machine", {}) | {"sampled_s_ago": round(one.machine.age_s, 3)}
    return {
        "host_label": one.host_label,
        "workers": dict(one.workers),
        "silent_workers": one.silent_workers,
        "quarantined": one.quarantined,
        "machine": machine,
        "devices": 0 if one.machine is None else len(one.machine.reading.get("devices", ())),
        "stale": one.stale,
    }


def command_of() -> str:
    """The command that shows this page."""
    return "qwf overview"
