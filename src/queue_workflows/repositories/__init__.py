"""The SQL: named constants, then verbs on the caller's connection; they decide nothing and never commit.

The public names are resolved on first use, so that a process loads the subjects that it has to do with.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from queue_workflows.repositories.claims.end import Ended, Ending, error_entry
    from queue_workflows.repositories.claims.hold_lease import Watched
    from queue_workflows.repositories.claims.sweep import Reclaimed
    from queue_workflows.repositories.hooks.binaries import BinaryRepository
    from queue_workflows.repositories.hooks.records import HookRecordRepository
    from queue_workflows.repositories.jobs.bulk_insert import Enqueued
    from queue_workflows.repositories.jobs.enqueue import (
        aenqueue_ingest_job,
        aenqueue_many,
        enqueue_ingest_job,
        enqueue_many,
    )
    from queue_workflows.repositories.jobs.ingest import IngestJobRepository
    from queue_workflows.repositories.jobs.ingest_rows import NewIngestJob
    from queue_workflows.repositories.jobs.nodes import NewNodeJob, NodeJobRepository
    from queue_workflows.repositories.jobs.unique import Unique
    from queue_workflows.repositories.limits.caps import LimitRepository
    from queue_workflows.repositories.limits.rates import RateRepository
    from queue_workflows.repositories.limits.slots import Slot, SlotRepository, Taken, Want
    from queue_workflows.repositories.runs.inputs import InputSubmissionRepository
    from queue_workflows.repositories.runs.outbox_counts import DispatchEventRepository, EventCounts
    from queue_workflows.repositories.runs.runs import FinishedRun, ParentNode, RunRepository, StartedRun
    from queue_workflows.repositories.schedules.schedules import ScheduleRepository
    from queue_workflows.repositories.sql.checks import PayloadLimits
    from queue_workflows.repositories.sql.claimed_job import (
        ClaimedIngestJob,
        ClaimedJob,
        ClaimedNodeJob,
        Fence,
    )
    from queue_workflows.repositories.sql.low_water_marks import Marks
    from queue_workflows.repositories.workers.control import Cleared, Control, WorkerControlRepository
    from queue_workflows.repositories.workers.heartbeats import HeartbeatRepository
    from queue_workflows.repositories.workers.machines import MachineRepository

__all__ = [
    "BinaryRepository",
    "ClaimedIngestJob",
    "ClaimedJob",
    "ClaimedNodeJob",
    "Cleared",
    "Control",
    "DispatchEventRepository",
    "Ended",
    "Ending",
    "Enqueued",
    "EventCounts",
    "Fence",
    "FinishedRun",
    "HeartbeatRepository",
    "HookRecordRepository",
    "IngestJobRepository",
    "InputSubmissionRepository",
    "LimitRepository",
    "MachineRepository",
    "Marks",
    "NewIngestJob",
    "NewNodeJob",
    "NodeJobRepository",
    "ParentNode",
    "PayloadLimits",
    "RateRepository",
    "Reclaimed",
    "RunRepository",
    "ScheduleRepository",
    "Slot",
    "SlotRepository",
    "StartedRun",
    "Taken",
    "Unique",
    "Want",
    "Watched",
    "WorkerControlRepository",
    "aenqueue_ingest_job",
    "aenqueue_many",
    "enqueue_ingest_job",
    "enqueue_many",
    "error_entry",
]

_HOMES: Final = {
    "claims.end": ("Ended", "Ending", "error_entry"),
    "claims.hold_lease": ("Watched",),
    "claims.sweep": ("Reclaimed",),
    "hooks.binaries": ("BinaryRepository",),
    "hooks.records": ("HookRecordRepository",),
    "jobs.bulk_insert": ("Enqueued",),
    "jobs.enqueue": ("aenqueue_ingest_job", "aenqueue_many", "enqueue_ingest_job", "enqueue_many"),
    "jobs.ingest": ("IngestJobRepository",),
    "jobs.ingest_rows": ("NewIngestJob",),
    "jobs.nodes": ("NewNodeJob", "NodeJobRepository"),
    "jobs.unique": ("Unique",),
    "limits.caps": ("LimitRepository",),
    "limits.rates": ("RateRepository",),
    "limits.slots": ("Slot", "SlotRepository", "Taken", "Want"),
    "runs.inputs": ("InputSubmissionRepository",),
    "runs.outbox_counts": ("DispatchEventRepository", "EventCounts"),
    "runs.runs": ("FinishedRun", "ParentNode", "RunRepository", "StartedRun"),
    "schedules.schedules": ("ScheduleRepository",),
    "sql.checks": ("PayloadLimits",),
    "sql.claimed_job": ("ClaimedIngestJob", "ClaimedJob", "ClaimedNodeJob", "Fence"),
    "sql.low_water_marks": ("Marks",),
    "workers.control": ("Cleared", "Control", "WorkerControlRepository"),
    "workers.heartbeats": ("HeartbeatRepository",),
    "workers.machines": ("MachineRepository",),
}
_HOME_OF: Final = {name: module for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOME_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
