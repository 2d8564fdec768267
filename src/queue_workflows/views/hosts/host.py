"""All that is on one host: workers, hardware now and over the last hour, locks, quarantined devices."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import psycopg

from queue_workflows.errors import UnknownHost
from queue_workflows.repositories.workers.code import CodeOfWorkers
from queue_workflows.repositories.workers.control import WorkerControlRepository
from queue_workflows.repositories.workers.hardware import HardwareRepository, HostReading
from queue_workflows.repositories.workers.hardware_history import PastReading
from queue_workflows.repositories.workers.heartbeats import HeartbeatRepository
from queue_workflows.repositories.workers.jobs_at_work import AtWorkRepository, JobAtWork
from queue_workflows.repositories.workers.obedience import Standing
from queue_workflows.repositories.workers.quarantine import Quarantine, QuarantineRepository
from queue_workflows.views.hosts.hardware import reading_json
from queue_workflows.views.hosts.history import past_readings, readings_json
from queue_workflows.views.workers.listing import code_named, code_of, wish_json, worker_json
from queue_workflows.views.workers.worker import MOST_JOBS, job_json

if TYPE_CHECKING:
    from queue_workflows.models import WorkerControl


@dataclass(frozen=True, slots=True)
class HostView:
    """A host as of one moment; `jobs` run longest, and those with a `host_lock` keep it from others there."""

    host_label: str
    workers: Sequence[Standing]
    jobs: Sequence[JobAtWork]
    wishes: Sequence[WorkerControl]
    reading: HostReading | None
    quarantined: Sequence[Quarantine]
    history: Sequence[PastReading]
    stale_s: float
    # What the code of its workers knows, by its digest.
    code: Mapping[str, CodeOfWorkers] = field(default_factory=dict)


def host(connection: psycopg.Connection[Any], host_label: str, *, stale_s: float) -> HostView:
    """The host of this label, or `UnknownHost`."""
    everything = HeartbeatRepository(connection).standing(host_label)
    workers = [one for one in everything if not one.is_quarantined]
    reading = next(iter(HardwareRepository(connection).readings(host_label)), None)
    quarantined = QuarantineRepository(connection).of(host_label)
    if host_label == "*" or not (everything or reading or quarantined):
        raise UnknownHost(host_label)
    jobs = AtWorkRepository(connection).of([one.worker_id for one in workers], limit=MOST_JOBS)
    wishes = WorkerControlRepository(connection).blocking(host_label)
    history = past_readings(connection, host_label)
    code = code_of(connection, workers)
    return HostView(host_label, workers, jobs, wishes, reading, quarantined, history, stale_s, code)


def json_of(seen: HostView) -> dict[str, Any]:
    """What `qwf workers host --json` prints."""
    reasons = {(one.host_label, one.device): one.reason for one in seen.quarantined}
    return {
        "host_label": seen.host_label,
        "workers": [worker_json(one, seen.stale_s, code_named(one, seen.code)) for one in seen.workers],
        "jobs": [job_json(one) for one in seen.jobs],
        "locks": [
            {"host_lock": one.host_lock, "job": one.name, "worker_id": one.worker_id, "since": one.since}
            for one in seen.jobs
            if one.host_lock is not None
        ],
        "wishes": [wish_json(wish) for wish in seen.wishes],
        "hardware": None if seen.reading is None else reading_json(seen.reading, seen.stale_s, reasons),
        "history": readings_json(seen.history),
        "quarantined": [
            {
                "queue": one.queue,
                "device": one.device,
                "reason": one.reason,
                "seen_s_ago": round(one.age_s, 3),
            }
            for one in seen.quarantined
        ],
    }


def command_of(host_label: str) -> str:
    """The command that shows this host."""
    return shlex.join(["qwf", "workers", "host", host_label])
