"""The engine's tables, one family a file: the models of `tables`, loaded when the first of them is asked for.

A worker does without them, and so without SQLAlchemy: what it asks and writes is SQL, for which `columns` has
the names and types. `rules` and `insert_rules` say what a column may hold.
"""

from __future__ import annotations

import os
import time
import uuid
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from queue_workflows.models.tables import (
        AdaptedLimit,
        AppDeclaration,
        AuditLog,
        Base,
        Binary,
        ConcurrencyLimit,
        DurableEvent,
        DurableStep,
        HookRecord,
        HostHardware,
        HostHardwareHistory,
        IngestJob,
        LimitDeclaration,
        LimitSlot,
        Machine,
        RateLimit,
        Schedule,
        TaskDeclaration,
        WorkerCode,
        WorkerControl,
        WorkerControlClock,
        WorkerHeartbeat,
        WorkflowDispatchEvent,
        WorkflowInputSubmission,
        WorkflowNode,
        WorkflowNodeJob,
        WorkflowRun,
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
    "HookRecord",
    "HostHardware",
    "HostHardwareHistory",
    "IngestJob",
    "LimitDeclaration",
    "LimitSlot",
    "Machine",
    "RateLimit",
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
    "uuid7",
]


def uuid7() -> uuid.UUID:
    """A UUID of version 7: runs sort by age and their index grows at one end."""
    milliseconds = time.time_ns() // 1_000_000
    value = (milliseconds << 80) | int.from_bytes(os.urandom(10), "big")
    value = (value & ~(0xF << 76)) | (0x7 << 76)
    value = (value & ~(0x3 << 62)) | (0x2 << 62)
    return uuid.UUID(int=value)


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.tables"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
