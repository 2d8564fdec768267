"""The engine's tables, one family a file; importing this package fills `Base.metadata`."""

from queue_workflows.models.base import Base, uuid7
from queue_workflows.models.hardware import HostHardware
from queue_workflows.models.hooks import Binary, HookRecord, Machine
from queue_workflows.models.ingest_jobs import IngestJob
from queue_workflows.models.limits import ConcurrencyLimit, LimitSlot, RateLimit
from queue_workflows.models.node_jobs import WorkflowDispatchEvent, WorkflowNodeJob
from queue_workflows.models.runs import WorkflowInputSubmission, WorkflowNode, WorkflowRun
from queue_workflows.models.schedules import Schedule
from queue_workflows.models.workers import AuditLog, WorkerControl, WorkerControlClock, WorkerHeartbeat

__all__ = [
    "AuditLog",
    "Base",
    "Binary",
    "ConcurrencyLimit",
    "HookRecord",
    "HostHardware",
    "IngestJob",
    "LimitSlot",
    "Machine",
    "RateLimit",
    "Schedule",
    "WorkerControl",
    "WorkerControlClock",
    "WorkerHeartbeat",
    "WorkflowDispatchEvent",
    "WorkflowInputSubmission",
    "WorkflowNode",
    "WorkflowNodeJob",
    "WorkflowRun",
    "uuid7",
]
