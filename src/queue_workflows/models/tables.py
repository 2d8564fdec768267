"""Every model, and instances of them; importing this module fills `Base.metadata`, and loads SQLAlchemy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from sqlalchemy import inspect
from sqlalchemy.orm import make_transient_to_detached

from queue_workflows.models.base import Base
from queue_workflows.models.durable import DurableEvent, DurableStep
from queue_workflows.models.hardware import HostHardware, HostHardwareHistory, ModelMemory
from queue_workflows.models.hooks import Binary, HookRecord, Machine
from queue_workflows.models.ingest_jobs import HistoryMode, IngestJob
from queue_workflows.models.limits import (
    AdaptedLimit,
    AppDeclaration,
    ConcurrencyLimit,
    LimitDeclaration,
    LimitSlot,
    RateLimit,
    TaskDeclaration,
)
from queue_workflows.models.node_jobs import WorkflowDispatchEvent, WorkflowNodeJob
from queue_workflows.models.runs import WorkflowInputSubmission, WorkflowNode, WorkflowRun
from queue_workflows.models.schedules import Schedule
from queue_workflows.models.workers import (
    AuditLog,
    RetentionMark,
    WorkerCode,
    WorkerControl,
    WorkerControlClock,
    WorkerHeartbeat,
)

__all__ = [
    "AdaptedLimit",
    "AppDeclaration",
    "AuditLog",
    "Base",
    "Binary",
    "ConcurrencyLimit",
    "DurableEvent",
    "DurableStep",
    "HistoryMode",
    "HookRecord",
    "HostHardware",
    "HostHardwareHistory",
    "IngestJob",
    "LimitDeclaration",
    "LimitSlot",
    "Machine",
    "ModelMemory",
    "RateLimit",
    "RetentionMark",
    "Schedule",
    "TaskDeclaration",
    "WorkerCode",
    "WorkerControl",
    "WorkerControlClock",
    "WorkerHeartbeat",
    "WorkflowDispatchEvent",
    "WorkflowInputSubmission",
    "WorkflowNode",
    "WorkflowNodeJob",
    "WorkflowRun",
]

_MODELS: Final[Mapping[str, type[Base]]] = {
    mapper.class_.__tablename__: mapper.class_ for mapper in Base.registry.mappers
}


def model_of(table: str) -> type[Base]:
    """The model of a table, by the table's name."""
    return _MODELS[table]


def detached(table: str, values: Mapping[str, Any]) -> Any:
    """An instance of the table's model with these values, as if its Session had been closed."""
    model = _MODELS[table]
    # A process that has used no Session yet has mappers without instrumented attributes.
    model.registry.configure()
    instance = inspect(model).class_manager.new_instance()
    instance.__dict__.update(values)
    make_transient_to_detached(instance)
    return instance
