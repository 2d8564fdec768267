"""The SQL: named constants, then verbs on the caller's connection; they decide nothing and never commit."""

from queue_workflows.repositories.binaries import BinaryRepository
from queue_workflows.repositories.bulk import Enqueued
from queue_workflows.repositories.claimed import ClaimedIngestJob, ClaimedJob, ClaimedNodeJob, Fence
from queue_workflows.repositories.claiming import Marks
from queue_workflows.repositories.dispatch_events import DispatchEventRepository, EventCounts
from queue_workflows.repositories.ending import Ended, Ending, error_entry
from queue_workflows.repositories.enqueueing import enqueue_ingest_job, enqueue_many
from queue_workflows.repositories.fields import PayloadLimits
from queue_workflows.repositories.heartbeats import HeartbeatRepository
from queue_workflows.repositories.holding import Control, Watched
from queue_workflows.repositories.hook_records import HookRecordRepository
from queue_workflows.repositories.ingest_jobs import IngestJobRepository
from queue_workflows.repositories.ingest_rows import NewIngestJob
from queue_workflows.repositories.input_submissions import InputSubmissionRepository
from queue_workflows.repositories.limits import LimitRepository
from queue_workflows.repositories.machines import MachineRepository
from queue_workflows.repositories.node_jobs import NewNodeJob, NodeJobRepository
from queue_workflows.repositories.rates import RateRepository
from queue_workflows.repositories.runs import FinishedRun, ParentNode, RunRepository, StartedRun
from queue_workflows.repositories.schedules import ScheduleRepository
from queue_workflows.repositories.slots import Slot, SlotRepository, Taken, Want
from queue_workflows.repositories.sweeping import Reclaimed
from queue_workflows.repositories.worker_control import Cleared, WorkerControlRepository

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
    "Want",
    "Watched",
    "WorkerControlRepository",
    "enqueue_ingest_job",
    "enqueue_many",
    "error_entry",
]
